// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// Only the cache knows which volumes and capacities a claim could use. Before the plugin rejects
// a claim because there is none, a survey checks that the cache holds every object that the API
// server held when the call arrived: it lists the metadata of all objects of the kind and
// compares them with the cache. All calls share surveys, and the rate of surveys is limited.
const (
	// surveyPage is the page size of a survey.
	surveyPage = 500
	// surveyTakes is the maximum duration of a survey.
	surveyTakes = 30 * time.Second
	// catchUp is the maximum time that a survey waits for the cache.
	catchUp = 2 * time.Second
	// surveyPatience is the maximum time that a call waits for a survey. After that, the client
	// has to call again.
	surveyPatience = 5 * time.Second
	// surveyEvery is the minimum time between the starts of two surveys of a kind.
	// After a long one the pause is surveyRest times its duration, so that surveys
	// run at most a quarter of the time.
	surveyEvery = 2 * time.Second
	surveyRest  = 3
	// surveyReads limits how many objects that are missing from the cache a survey reads one by
	// one, in case they were deleted in the meantime.
	surveyReads = 100
	// askedFor is the time that a survey remembers a bind whose client has to call again.
	// askedMost limits the number of these binds.
	askedFor  = 2 * time.Minute
	askedMost = 10_000
)

// lackError is the cause of a rejection if no object of these kinds fits.
type lackError struct{ kinds []string }

func (e lackError) Error() string { return "no object fits" }

// lacks returns the kinds whose objects could change the decision.
func lacks(err error) []string {
	if e := (lackError{}); errors.As(err, &e) {
		return e.kinds
	}
	return nil
}

// The kinds of surveys.
const (
	volumeKind   = "PersistentVolume"
	capacityKind = "CSIStorageCapacity"
)

// newSurveys returns the surveys of the plugin, by kind.
func (p *Plugin) newSurveys() map[string]*survey {
	of := func(gv schema.GroupVersion, kind string, example client.Object, holds holds) *survey {
		return &survey{
			h: p.h, kind: gv.WithKind(kind), example: example, holds: holds, asked: utilcache.NewLRUExpireCacheWithClock(askedMost, p.h.Clock),
		}
	}
	return map[string]*survey{
		volumeKind: of(corev1.SchemeGroupVersion, volumeKind, &corev1.PersistentVolume{}, func(ctx context.Context, o *metav1.PartialObjectMetadata) bool {
			pv, err := framework.Get(ctx, p.h.Cached, &corev1.PersistentVolume{}, "", o.Name)
			return pv != nil && err == nil && !older(pv, o) && p.free.follows(pv)
		}),
		capacityKind: of(storagev1.SchemeGroupVersion, capacityKind, &storagev1.CSIStorageCapacity{}, func(ctx context.Context, o *metav1.PartialObjectMetadata) bool {
			c, err := framework.Get(ctx, p.h.Cached, &storagev1.CSIStorageCapacity{}, o.Namespace, o.Name)
			return c != nil && err == nil && !older(c, o)
		}),
	}
}

// surveyed returns a snapshot on which PreFlight may reject the bind. If the given one
// lacks an object and is live, it makes sure that the cache holds all objects of the kind
// that the API server held when this bind lacked one for the first time, and reads again.
// If that cannot be shown yet, it returns an error after which the client calls again.
func (p *Plugin) surveyed(ctx context.Context, reader framework.Reader, bc *framework.BindContext, s snapshot) (snapshot, error) {
	_, err := findPodVolumes(s)
	kinds := lacks(err)
	switch {
	case len(kinds) == 0 && (err == nil || bc.Live):
		p.forget(bc)
		return s, nil
	case !bc.Live:
		return s, nil
	}
	waiting, cancel := context.WithTimeout(ctx, surveyPatience)
	defer cancel()
	about := framework.AsError(Name, err).Object
	for _, kind := range kinds {
		if err := p.surveys[kind].prove(waiting, askerOf(bc), about); err != nil {
			return s, err
		}
	}
	p.forget(bc)
	return p.read(ctx, reader, bc)
}

// asked returns whether the bind lacked an object before.
func (p *Plugin) asked(bc *framework.BindContext) bool {
	for _, s := range p.surveys {
		if _, ok := s.asked.Get(askerOf(bc)); ok {
			return true
		}
	}
	return false
}

// forget discards the result of the survey for the bind. If the bind lacks an object again, it
// needs a new survey.
func (p *Plugin) forget(bc *framework.BindContext) {
	for _, s := range p.surveys {
		s.asked.Remove(askerOf(bc))
	}
}

// holds returns whether the cache has the object in this version or a newer one.
type holds func(ctx context.Context, o *metav1.PartialObjectMetadata) bool

// asker is a bind that lacks an object.
type asker struct {
	pod  types.UID
	node string
}

func askerOf(bc *framework.BindContext) asker { return asker{pod: bc.Pod.UID, node: bc.Node.Name} }

// survey runs the surveys of one kind, one at a time. It is safe for concurrent use.
type survey struct {
	h    framework.Handle
	kind schema.GroupVersionKind
	// example is an object of the kind.
	example client.Object
	holds   holds
	// asked holds, by asker, the number of the first survey that began after it asked.
	asked *utilcache.LRUExpireCache

	mu sync.Mutex
	// begun is the number of the last survey that started. proven is the number of the last
	// survey after which the cache held all objects.
	begun, proven int
	// running is the survey in progress, or nil.
	running *run
	// next is the earliest start of the next survey.
	next time.Time
}

// run is one survey. err may be read when done is closed.
type run struct {
	done chan struct{}
	err  error
}

// prove returns nil if a survey that began after the asker's first call has shown that the
// cache is not behind. Errors are about the given object.
func (s *survey) prove(ctx context.Context, by asker, about framework.Object) error {
	again := func(doing string) error {
		return framework.Wait(about, "no known %s fits, and %s", s.kind.Kind, doing).
			Advise("retry the Binding")
	}
	current, proven := s.ask(ctx, by)
	switch {
	case proven:
		return nil
	case current == nil:
		return again("a check for newer objects is pending")
	}
	select {
	case <-current.done:
	case <-ctx.Done():
		return again("a check for newer objects is in progress")
	}
	switch {
	case errors.Is(current.err, errBehind):
		return again("the cache is behind the API server")
	case current.err != nil:
		return framework.FromAPI(about, "listing all "+s.kind.Kind+" objects", current.err)
	}
	return nil
}

// ask returns the survey that the asker has to wait for, or nil if its client has to call
// again. proven means that an earlier survey has answered the asker.
func (s *survey) ask(ctx context.Context, by asker) (current *run, proven bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	need := s.begun + 1
	if before, ok := s.asked.Get(by); ok {
		need, _ = before.(int)
	} else {
		s.asked.Add(by, need, askedFor)
	}
	switch {
	case s.proven >= need:
		return nil, true
	case s.running != nil && s.begun >= need:
		return s.running, false
	case s.running != nil || s.h.Clock.Now().Before(s.next):
		return nil, false
	}
	s.begun++
	s.running = &run{done: make(chan struct{})}
	// Other calls share the survey, so it must not end with this call.
	go s.conduct(context.WithoutCancel(ctx), s.running, s.begun)
	return s.running, false
}

// conduct runs the survey with the number.
func (s *survey) conduct(ctx context.Context, r *run, number int) {
	begin := s.h.Clock.Now()
	ctx, cancel := context.WithTimeout(ctx, surveyTakes)
	defer cancel()
	err := s.compare(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.err = err; err == nil {
		s.proven = number
	}
	end := s.h.Clock.Now()
	s.next = begin.Add(surveyEvery)
	if rested := end.Add(surveyRest * end.Sub(begin)); rested.After(s.next) {
		s.next = rested
	}
	s.running = nil
	close(r.done)
}

// errBehind means that the API server holds objects that the cache did not receive in time.
var errBehind = errors.New("the cache is behind the API server")

// compare returns nil if the cache holds all objects that the API server holds now.
func (s *survey) compare(ctx context.Context) error {
	var missing []*metav1.PartialObjectMetadata
	for next := ""; ; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(s.kind.GroupVersion().WithKind(s.kind.Kind + "List"))
		if err := s.h.Live.List(ctx, page, client.Limit(surveyPage), client.Continue(next)); err != nil {
			return err
		}
		for i := range page.Items {
			if o := &page.Items[i]; !s.holds(ctx, o) {
				missing = append(missing, o)
			}
		}
		if next = page.Continue; next == "" {
			break
		}
	}
	return s.awaitCache(ctx, missing)
}

// awaitCache waits until the cache holds the objects.
func (s *survey) awaitCache(ctx context.Context, missing []*metav1.PartialObjectMetadata) error {
	refs := make([]framework.Ref, 0, len(missing))
	for _, o := range missing {
		refs = append(refs, framework.RefTo(s.example, o.Namespace, o.Name))
	}
	held := func(o *metav1.PartialObjectMetadata) bool { return s.holds(ctx, o) }
	until := s.h.Clock.Now().Add(catchUp)
	return framework.Await(ctx, s.h, &framework.BindContext{}, func(ctx context.Context, _ framework.Reader) (framework.Waiting, error) {
		missing = slices.DeleteFunc(missing, held)
		switch {
		case len(missing) == 0:
			return framework.Waiting{}, nil
		case s.h.Clock.Now().Before(until):
			return framework.Waiting{Object: refs[0].Object(), For: "the cache", Until: until}, nil
		case len(missing) > surveyReads:
			return framework.Waiting{}, errBehind
		}
		// The cache never gets objects that were deleted in the meantime.
		for _, o := range missing {
			now := &metav1.PartialObjectMetadata{}
			now.SetGroupVersionKind(s.kind)
			now, err := framework.Get(ctx, s.h.Live, now, o.Namespace, o.Name)
			if err != nil {
				return framework.Waiting{}, err
			}
			if now != nil && !s.holds(ctx, now) {
				return framework.Waiting{}, errBehind
			}
		}
		return framework.Waiting{}, nil
	}, refs...)
}
