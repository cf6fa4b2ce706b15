// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// interval is the time between two reads of the files.
const interval = time.Second

// readsUntilReported is the number of consecutive reads of invalid files after which the follower
// reports them. Two files cannot be replaced at the same moment.
const readsUntilReported = 5

// follower keeps the latest valid content of some files. It replaces certwatcher of
// controller-runtime and dynamiccertificates of the API server, because they accept an expired
// certificate and do not report failures.
type follower[T any] struct {
	o Shared
	// name is the value of the metrics' label.
	name  string
	paths []string
	// parse returns the content and the time at which it is no longer valid, with an error for content that is not valid now. A zero
	// time means that the files have no content.
	parse func(files [][]byte, now time.Time) (T, time.Time, error)

	current atomic.Pointer[content[T]]
	// failures is the number of consecutive reads of invalid files.
	failures int
}

type content[T any] struct {
	files   [][]byte
	value   T
	expires time.Time
	// invalid is why the first content is not valid now, or nil.
	invalid error
}

// newFollower reads the files for the first time. It also uses content that is not valid now: after an outage, the backoff of restarts would
// delay a renewed certificate by minutes.
func newFollower[T any](o Shared, name string, parse func([][]byte, time.Time) (T, time.Time, error), paths ...string) (*follower[T], error) {
	f := &follower[T]{o: o, name: name, paths: paths, parse: parse}
	loaded, err := f.load()
	if loaded == nil {
		return nil, err
	}
	if err != nil {
		o.Log.Error(err, "Not ready, waiting for valid files", "certificate", name)
		o.Metrics.Changed(name, err)
		f.failures = readsUntilReported
	}
	f.use(loaded)
	return f, nil
}

// ready returns an error while the content has not been valid yet.
func (f *follower[T]) ready() error { return f.current.Load().invalid }

// get returns the latest valid content.
func (f *follower[T]) get() T { return f.current.Load().value }

// start follows the files until the context ends.
func (f *follower[T]) start(ctx context.Context) { wait.UntilWithContext(ctx, f.look, interval) }

// look loads the files if they are changed and valid. It reports invalid files once.
func (f *follower[T]) look(context.Context) {
	loaded, err := f.load()
	if err != nil {
		if f.failures++; f.failures == readsUntilReported {
			f.o.Log.Error(err, "Kept the current certificate: the new files are not valid", "certificate", f.name)
			f.o.Metrics.Changed(f.name, err)
		}
		return
	}
	f.failures = 0
	if loaded != f.current.Load() {
		f.use(loaded)
		f.o.Log.Info("Loaded changed files", "certificate", f.name, "files", f.paths, "expires", loaded.expires)
		f.o.Metrics.Changed(f.name, nil)
	}
}

// load returns the content of the files, with an error for content that is not valid now. For unchanged files it returns the current content.
func (f *follower[T]) load() (*content[T], error) {
	files := make([][]byte, 0, len(f.paths))
	for _, path := range f.paths {
		file, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if current := f.current.Load(); current != nil && current.invalid == nil && slices.EqualFunc(current.files, files, bytes.Equal) {
		return current, nil
	}
	value, expires, err := f.parse(files, f.o.Clock.Now())
	if err != nil {
		err = fmt.Errorf("%s: %w", f.paths[0], err)
	}
	if expires.IsZero() {
		return nil, err
	}
	return &content[T]{files: files, value: value, expires: expires, invalid: err}, err
}

func (f *follower[T]) use(loaded *content[T]) {
	f.current.Store(loaded)
	f.o.Metrics.Expires(f.name, loaded.expires)
}
