// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Interval is how often files are looked at.
const Interval = time.Second

// looksUntilTold is how many looks in a row must find bad files until that is told:
// of two files, one is written first.
const looksUntilTold = 5

// Options are what the followers of files have in common. All fields are required.
type Options struct {
	Clock   clock.WithTicker
	Log     klog.Logger
	Metrics *Metrics
}

func (o Options) validate() error {
	if o.Clock == nil || o.Metrics == nil {
		return errors.New("certificates: Clock and Metrics are required")
	}
	return nil
}

// follower keeps the latest good content of some files. The libraries for it
// (certwatcher of controller-runtime, dynamiccertificates of the API server) take
// an expired certificate for a good one, and keep failures to themselves.
type follower[T any] struct {
	o Options
	// name is what the metrics call it.
	name  string
	paths []string
	// parse makes sense of the files, or says what is wrong with them now.
	parse func(files [][]byte, now time.Time) (T, error)
	// expires is when the content ends to be of use.
	expires func(T) time.Time

	current atomic.Pointer[content[T]]
	// failures are how many looks in a row have found bad files, and told says
	// that the log has it that the current content is expired.
	failures int
	told     bool
}

type content[T any] struct {
	files [][]byte
	value T
}

// begin reads the files for the first time.
func (f *follower[T]) begin() error {
	loaded, err := f.load()
	if err != nil {
		return err
	}
	f.use(loaded)
	return nil
}

// get returns the latest good content.
func (f *follower[T]) get() T { return f.current.Load().value }

// Start follows the files until the context ends. It implements manager.Runnable.
func (f *follower[T]) Start(ctx context.Context) error {
	tick := f.o.Clock.NewTicker(Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			f.look()
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*follower[T]) NeedLeaderElection() bool { return false }

// look takes the files over if they have changed and are good. What is wrong with
// them is told once.
func (f *follower[T]) look() {
	loaded, err := f.load()
	switch {
	case err != nil:
		if f.failures++; f.failures == looksUntilTold {
			f.o.Log.Error(err, "Kept the certificate as it was: the new files cannot be used", "certificate", f.name)
			f.o.Metrics.Changed(f.name, err)
		}
	case loaded != f.current.Load():
		f.use(loaded)
		f.o.Log.Info("Took over changed files", "certificate", f.name, "files", f.paths, "expires", f.expires(loaded.value))
		f.o.Metrics.Changed(f.name, nil)
		f.failures, f.told = 0, false
	default:
		f.failures = 0
	}
	if expires := f.expires(f.get()); !f.told && f.o.Clock.Now().After(expires) {
		f.told = true
		f.o.Log.Error(nil, "The certificate in use has expired: replace it", "certificate", f.name, "files", f.paths, "expired", expires)
	}
}

// load returns the content of the files, the current one if they are unchanged.
func (f *follower[T]) load() (*content[T], error) {
	files := make([][]byte, 0, len(f.paths))
	for _, path := range f.paths {
		file, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if current := f.current.Load(); current != nil && slices.EqualFunc(current.files, files, bytes.Equal) {
		return current, nil
	}
	value, err := f.parse(files, f.o.Clock.Now())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.paths[0], err)
	}
	return &content[T]{files: files, value: value}, nil
}

func (f *follower[T]) use(loaded *content[T]) {
	f.current.Store(loaded)
	f.o.Metrics.Expires(f.name, f.expires(loaded.value))
}
