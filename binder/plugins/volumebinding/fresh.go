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
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

// A claim is refused because no object fits it only when the cache holds every
// object that the API server held after the call came. A survey shows that: it
// lists the metadata of all objects of the kind and compares each with the cache.
// All calls share surveys, and their number is limited.
const (
	// surveyPage is how many objects a survey lists at a time.
	surveyPage = 500
	// surveyTakes is the maximum duration of a survey.
	surveyTakes = 30 * time.Second
	// catchUp is how long a survey waits for the cache.
	catchUp = 2 * time.Second
	// surveyPatience is how long a call waits for a survey before it is told to call
	// again.
	surveyPatience = 5 * time.Second
	// surveyEvery is the minimum time between the starts of two surveys of a kind.
	// After a long one the pause is surveyRest times its duration, so that surveys
	// run at most a quarter of the time.
	surveyEvery = 2 * time.Second
	surveyRest  = 3
	// surveyReads is how many objects that the cache still lacks a survey reads one
	// by one, to see whether they were deleted in the meantime.
	surveyReads = 100
	// askedFor is how long a call is remembered that has to come again, and askedMost
	// how many are.
	askedFor  = 2 * time.Minute
	askedMost = 10_000
)

// lackError is the cause of a refusal because no object of these kinds fits.
type lackError struct{ kinds []string }

func (e lackError) Error() string { return "no object fits" }

// lacks returns the kinds of which an object that the cache does not hold yet
// could change the decision.
func lacks(err error) []string {
	if e := (lackError{}); errors.As(err, &e) {
		return e.kinds
	}
	return nil
}

// The kinds that are surveyed.
const (
	volumeKind   = "PersistentVolume"
	capacityKind = "CSIStorageCapacity"
)

// newSurveys returns those of the plugin, by kind.
func (p *Plugin) newSurveys(c clock.PassiveClock) map[string]*survey {
	of := func(gv schema.GroupVersion, kind string, example client.Object, holds holds) *survey {
		return &survey{
			kind: gv.WithKind(kind), example: example, live: p.live, changes: p.changes, clock: c, holds: holds,
			asked: utilcache.NewLRUExpireCacheWithClock(askedMost, c),
		}
	}
	return map[string]*survey{
		volumeKind: of(corev1.SchemeGroupVersion, volumeKind, &corev1.PersistentVolume{}, func(ctx context.Context, o *metav1.PartialObjectMetadata) bool {
			pv := &corev1.PersistentVolume{}
			found, err := get(ctx, p.cached, volumeKind, "", o.Name, pv)
			return found && err == nil && !older(pv, o) && p.free.follows(pv)
		}),
		capacityKind: of(storagev1.SchemeGroupVersion, capacityKind, &storagev1.CSIStorageCapacity{}, func(ctx context.Context, o *metav1.PartialObjectMetadata) bool {
			c := &storagev1.CSIStorageCapacity{}
			found, err := get(ctx, p.cached, capacityKind, o.Namespace, o.Name, c)
			return found && err == nil && !older(c, o)
		}),
	}
}

// caughtUp returns nil when the cache holds all objects of the kinds that the API
// server held when this bind was first refused for the lack of one. Otherwise the
// client is to call again.
func (p *Plugin) caughtUp(ctx context.Context, bc *framework.BindContext, refusal error) error {
	ctx, cancel := context.WithTimeout(ctx, surveyPatience)
	defer cancel()
	about := framework.AsError(Name, refusal).Object
	for _, kind := range lacks(refusal) {
		if err := p.surveys[kind].prove(ctx, askerOf(bc), about); err != nil {
			return err
		}
	}
	p.forget(bc)
	return nil
}

// forget makes the next refusal of this bind one that needs a survey of its own.
func (p *Plugin) forget(bc *framework.BindContext) {
	for _, s := range p.surveys {
		s.asked.Remove(askerOf(bc))
	}
}

// holds says whether the cache has the object in this version or a newer one.
type holds func(ctx context.Context, o *metav1.PartialObjectMetadata) bool

// asker is a bind that was refused for the lack of an object.
type asker struct {
	pod  types.UID
	node string
}

func askerOf(bc *framework.BindContext) asker { return asker{pod: bc.Pod.UID, node: bc.Node.Name} }

// survey is the surveys of one kind, one at a time. It is safe for concurrent use.
type survey struct {
	kind schema.GroupVersionKind
	// example is an object of the kind.
	example client.Object
	live    client.Reader
	changes *framework.Hub
	clock   clock.PassiveClock
	holds   holds
	// asked holds, by asker, the number of the first survey that answers it: one that
	// began after it asked.
	asked *utilcache.LRUExpireCache

	mu sync.Mutex
	// begun and proven are the numbers of the last survey that began, and of the last
	// one after which the cache held everything.
	begun, proven int
	// running is the one in progress, or nil.
	running *run
	// next is when another one may begin.
	next time.Time
}

// run is one survey. err may be read when done is closed.
type run struct {
	done chan struct{}
	err  error
}

// prove returns nil when a survey that began after the asker came for the first
// time has shown that the cache is not behind. The object is the one that errors
// are about.
func (s *survey) prove(ctx context.Context, by asker, about framework.Object) error {
	again := func(doing string) error {
		return framework.Wait(about, "no %s that Prebind knows fits, and %s", s.kind.Kind, doing).
			Advise("repeat the Binding, as clients that honour Retry-After do by themselves")
	}
	current, proven := s.ask(ctx, by)
	switch {
	case proven:
		return nil
	case current == nil:
		return again("the API server has to be asked for newer ones")
	}
	select {
	case <-current.done:
	case <-ctx.Done():
		return again("the API server is being asked for newer ones")
	}
	switch {
	case errors.Is(current.err, errBehind):
		return again("the API server has newer ones")
	case current.err != nil:
		return framework.FromAPI(about, "listing all "+s.kind.Kind+" objects", current.err)
	}
	return nil
}

// ask returns the survey that the asker has to wait for; nil where it has to come
// again. It says whether an earlier one has proven what the asker needs.
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
	case s.running != nil || s.clock.Now().Before(s.next):
		return nil, false
	}
	s.begun++
	s.running = &run{done: make(chan struct{})}
	// It is for others as well, and does not end with this call.
	go s.conduct(context.WithoutCancel(ctx), s.running, s.begun)
	return s.running, false
}

// conduct makes the survey of this number.
func (s *survey) conduct(ctx context.Context, r *run, number int) {
	begin := s.clock.Now()
	ctx, cancel := context.WithTimeout(ctx, surveyTakes)
	defer cancel()
	err := s.compare(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.err = err; err == nil {
		s.proven = number
	}
	end := s.clock.Now()
	s.next = begin.Add(surveyEvery)
	if rested := end.Add(surveyRest * end.Sub(begin)); rested.After(s.next) {
		s.next = rested
	}
	s.running = nil
	close(r.done)
}

// errBehind says that the API server has objects that the cache does not get.
var errBehind = errors.New("the cache is behind the API server")

// compare returns nil when the cache holds all that the API server holds now.
func (s *survey) compare(ctx context.Context) error {
	var missing []*metav1.PartialObjectMetadata
	for next := ""; ; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(s.kind.GroupVersion().WithKind(s.kind.Kind + "List"))
		if err := s.live.List(ctx, page, client.Limit(surveyPage), client.Continue(next)); err != nil {
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
	return s.await(ctx, missing)
}

// await waits until the cache holds the objects.
func (s *survey) await(ctx context.Context, missing []*metav1.PartialObjectMetadata) error {
	changes := s.changes.Subscribe()
	defer changes.Close()
	for _, o := range missing {
		changes.Add(framework.RefTo(s.example, o.Namespace, o.Name))
	}
	held := func(o *metav1.PartialObjectMetadata) bool { return s.holds(ctx, o) }
	waiting, cancel := context.WithTimeout(ctx, catchUp)
	defer cancel()
	for {
		if missing = slices.DeleteFunc(missing, held); len(missing) == 0 {
			return nil
		}
		select {
		case <-changes.C():
			continue
		case <-waiting.Done():
		}
		if len(missing) > surveyReads {
			return errBehind
		}
		// Those that were deleted in the meantime never come.
		for _, o := range missing {
			now := &metav1.PartialObjectMetadata{}
			now.SetGroupVersionKind(s.kind)
			found, err := get(ctx, s.live, s.kind.Kind, o.Namespace, o.Name, now)
			if err != nil {
				return err
			}
			if found && !s.holds(ctx, now) {
				return errBehind
			}
		}
		return nil
	}
}
