// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/prebind/prebind/binder/work"
)

// minBackoff is the shortest time between two Bindings of a refused pod that counts as backoff, in addition to the duration of a
// Binding.
const minBackoff = 250 * time.Millisecond

// requestTimeout limits the requests of one look.
const requestTimeout = 30 * time.Second

var (
	// errTime is the error of until at the end of its time.
	errTime = errors.New("the time is over")
	// errInterrupted is the error of a run whose context has ended.
	errInterrupted = errors.New("interrupted")
)

// until polls until the condition holds. Errors of the API server are retried until the end of the time; a violation ends
// the wait. It returns errTime if the condition never held.
func (s *session) until(ctx context.Context, limit time.Duration, condition func(ctx context.Context) (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, limit, true, func(context.Context) (bool, error) {
		// The end of the time must not look like an error of the API server.
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		ok, err := condition(ctx)
		if _, ok := errors.AsType[*violation](err); ok {
			return false, err
		}
		last = err
		return ok, nil
	})
	switch {
	case err == nil || !wait.Interrupted(err):
		return err
	case ctx.Err() != nil:
		return errInterrupted
	case last != nil:
		return last
	default:
		return errTime
	}
}

// read returns the pod. It is a violation if it was replaced.
func (s *session) read(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	now, err := s.client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != pod.UID:
		return nil, &violation{
			what:   fmt.Sprintf("pod %s was deleted or replaced by another component, such as the scheduler", pod.Name),
			advice: "Bind the pod with a Binding. Do not create it again with spec.nodeName: such a pod does not pass Prebind.",
		}
	case err != nil:
		return nil, fmt.Errorf("reading pod %s: %w", pod.Name, err)
	}
	return now, nil
}

// bound waits until the pod is bound. The advice is that of the violation if it is not.
func (s *session) bound(ctx context.Context, pod *corev1.Pod, limit time.Duration, advice string) (*corev1.Pod, error) {
	var now *corev1.Pod
	err := s.until(ctx, limit, func(ctx context.Context) (ok bool, err error) {
		now, err = s.read(ctx, pod)
		return err == nil && now.Spec.NodeName != "", err
	})
	if errors.Is(err, errTime) {
		return nil, &violation{what: fmt.Sprintf("pod %s was not bound within %s%s", pod.Name, limit, s.eventsOf(ctx, pod)), advice: advice}
	}
	return now, err
}

// events returns the events of the pod, by time.
func (s *session) events(ctx context.Context, pod types.UID) ([]eventsv1.Event, error) {
	list, err := s.client.EventsV1().Events(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing events: %w", err)
	}
	all := slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Regarding.UID != pod })
	slices.SortStableFunc(all, func(a, b eventsv1.Event) int { return timeOf(a).Compare(timeOf(b)) })
	return all, nil
}

func timeOf(e eventsv1.Event) time.Time {
	if !e.EventTime.IsZero() {
		return e.EventTime.Time
	}
	return cmp.Or(e.DeprecatedFirstTimestamp, e.ObjectMeta.CreationTimestamp).Time
}

// eventsOf returns the last events of the pod as the end of a sentence. It is empty if the pod has no events.
func (s *session) eventsOf(ctx context.Context, pod *corev1.Pod) string {
	all, err := s.events(ctx, pod.UID)
	if err != nil || len(all) == 0 {
		return ""
	}
	var texts []string
	for _, e := range all[max(len(all)-2, 0):] {
		texts = append(texts, e.Reason+": "+strings.Join(strings.Fields(e.Note), " "))
	}
	return "; its last events: " + strings.Join(texts, " | ")
}

// sighting is a decision of Prebind on a Binding of a pod.
type sighting struct {
	at   time.Time
	node string
}

// sightings returns what events with the reason show, by time. Events combine repeated decisions: they show the first two on
// each node by each replica.
func sightings(all []eventsv1.Event, reason string) []sighting {
	var seen []sighting
	for _, e := range all {
		if e.Reason != reason {
			continue
		}
		node := ""
		if e.Related != nil && e.Related.Kind == "Node" {
			node = e.Related.Name
		}
		seen = append(seen, sighting{at: timeOf(e), node: node})
		if e.Series != nil {
			seen = append(seen, sighting{at: e.Series.LastObservedTime.Time, node: node})
		}
	}
	slices.SortFunc(seen, func(a, b sighting) int { return a.at.Compare(b.at) })
	return seen
}

// refusals returns the visible refusals of the pod's Bindings.
func (s *session) refusals(ctx context.Context, pod *corev1.Pod) ([]sighting, error) {
	all, err := s.events(ctx, pod.UID)
	return sightings(all, work.ReasonRefused), err
}

// waitSightings returns what events show about the waits of the pod.
func (s *session) waitSightings(ctx context.Context, pod *corev1.Pod) ([]sighting, error) {
	all, err := s.events(ctx, pod.UID)
	return sightings(all, work.ReasonWaiting), err
}

// nodesOf returns the nodes of the sightings, each once. Some waits name another object than a node.
func nodesOf(seen []sighting) []string {
	var nodes []string
	for _, x := range seen {
		if x.node != "" && !slices.Contains(nodes, x.node) {
			nodes = append(nodes, x.node)
		}
	}
	return nodes
}

// pace compares the times between Bindings of refused pods with the durations of calls at the same time. A loop posts the next
// Binding after one call. On a slow cluster, that can be later than a backoff on a fast one.
type pace struct {
	// shortest is the shortest time between two Bindings. 0 means that no pod had two.
	shortest         time.Duration
	fastest, slowest time.Duration
}

// called adds the duration of a call.
func (p *pace) called(took time.Duration) {
	p.slowest = max(p.slowest, took)
	if p.fastest == 0 || took < p.fastest {
		p.fastest = took
	}
}

// add adds the refusals of a pod, by time.
func (p *pace) add(seen []sighting) {
	for i := 1; i < len(seen); i++ {
		if gap := seen[i].at.Sub(seen[i-1].at); p.shortest == 0 || gap < p.shortest {
			p.shortest = gap
		}
	}
}

// loops returns whether a Binding followed too soon, even if its call was as fast as the fastest one.
func (p *pace) loops() bool { return p.shortest > 0 && p.shortest < minBackoff+p.fastest }

// waits returns whether the scheduler waits, even if its calls are as slow as the slowest one.
func (p *pace) waits() bool { return p.shortest >= minBackoff+p.slowest }

func (p *pace) violation() *violation {
	return &violation{
		what:   fmt.Sprintf("the scheduler posted a Binding again %s after a refusal", p.shortest.Round(time.Millisecond)),
		advice: "After a refusal, put the pod back into the queue with backoff, as for pods that do not fit. Do not repeat the Binding in a loop.",
	}
}

// String is the end of a sentence. If the pace is not clear, it is a sentence.
func (p pace) String() string {
	text := seconds(p.shortest) + " between two Bindings"
	if !p.waits() {
		text += fmt.Sprintf(" prove neither backoff nor a loop, because calls took %s to %s; repeat the run when the cluster has less load", seconds(p.fastest), seconds(p.slowest))
	}
	return text
}

// complaints returns the warnings about the pod that are not of Prebind, each once.
func (s *session) complaints(ctx context.Context, pod *corev1.Pod) ([]string, error) {
	all, err := s.events(ctx, pod.UID)
	var found []string
	for _, e := range all {
		ours := e.Reason == work.ReasonRefused || e.Reason == work.ReasonWaiting
		if e.Type == corev1.EventTypeWarning && !ours && !slices.Contains(found, e.Reason) {
			found = append(found, e.Reason)
		}
	}
	return found, err
}
