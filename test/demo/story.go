// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/install"
)

// look is the poll interval of the story.
const look = 200 * time.Millisecond

// story reports the events of the pods of a StatefulSet.
type story struct {
	*demo
	// name is the name of the StatefulSet, and want is the number of its pods.
	name  string
	want  int
	begin time.Time
	// The reported events by pod, and the reported Event objects.
	calls        map[string]int
	node, volume map[string]string
	runs         map[string]bool
	events       map[types.UID]bool
	// waited is the time from the first call to the end of the last one.
	waited map[string]time.Duration
	last   time.Time
}

func newStory(d *demo, name string, want int) *story {
	now := time.Now()
	return &story{
		demo: d, name: name, want: want, begin: now, last: now,
		calls: map[string]int{}, waited: map[string]time.Duration{}, events: map[types.UID]bool{},
		node: map[string]string{}, volume: map[string]string{}, runs: map[string]bool{},
	}
}

// allRun ends the story when every pod runs.
func (s *story) allRun() bool { return len(s.runs) == s.want }

// quiet ends the story when every pod has its node and no event has occurred for noMore.
func (s *story) quiet() bool { return len(s.node) == s.want && time.Since(s.last) > noMore }

// follow reports events until the story is over. The sources are the API server's audit log, for
// the calls to Prebind, and the objects.
func (s *story) follow(ctx context.Context, over func(*story) bool) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		if err := s.tellNews(ctx); err != nil {
			return err
		}
		if over(s) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("following the pods of %s: %w", s.name, ctx.Err())
		case <-tick.C:
		}
	}
}

func (s *story) tellNews(ctx context.Context) error {
	list, err := s.pods(ctx)
	if err != nil {
		return err
	}
	events, err := s.cluster.AuditEvents()
	if err != nil {
		return err
	}
	for _, pod := range list {
		if err := errors.Join(s.tellEvents(ctx, &pod), s.tellClaim(ctx, &pod)); err != nil {
			return err
		}
		s.tellCalls(pod.Name, events)
		if n := pod.Spec.NodeName; n != "" && s.node[pod.Name] == "" {
			s.node[pod.Name] = n
			s.tell(pod.Name, "is bound to %s", n)
		}
		if pod.Status.Phase == corev1.PodRunning && !s.runs[pod.Name] {
			s.runs[pod.Name] = true
			s.tell(pod.Name, "is Running")
		}
	}
	return nil
}

// tellEvents reports the events in which Prebind says what a bind waits for, or why it was rejected.
func (s *story) tellEvents(ctx context.Context, pod *corev1.Pod) error {
	list, err := s.client.EventsV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "regarding.uid=" + string(pod.UID)})
	if err != nil {
		return err
	}
	for _, e := range list.Items {
		if strings.HasPrefix(e.ReportingController, "prebind") && !s.events[e.UID] {
			s.events[e.UID] = true
			s.tell(pod.Name, "event %s: %s", e.Reason, e.Note)
		}
	}
	return nil
}

// tellClaim reports that the pod's claim is bound.
func (s *story) tellClaim(ctx context.Context, pod *corev1.Pod) error {
	name := claimOf(pod)
	if name == "" || s.volume[pod.Name] != "" {
		return nil
	}
	claim, err := s.client.CoreV1().PersistentVolumeClaims(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if v := claim.Spec.VolumeName; v != "" {
		s.volume[pod.Name] = v
		s.tell(pod.Name, "its claim %s is bound to %s", name, v)
	}
	return nil
}

// tellCalls reports each response to the pod's Binding.
func (s *story) tellCalls(pod string, events []cluster.AuditEvent) {
	var first time.Time
	calls := 0
	for _, e := range events {
		if e.ObjectRef.Namespace != namespace || e.ObjectRef.Name != pod {
			continue
		}
		calls++
		if calls == 1 {
			first = e.RequestReceivedTimestamp.Time
		}
		if calls <= s.calls[pod] {
			continue
		}
		s.calls[pod] = calls
		s.waited[pod] = e.StageTimestamp.Sub(first)
		said, asked := e.Annotations[install.WebhookName+"/decision"]
		if !asked {
			continue
		}
		s.tell(pod, "Binding, call %d: %s", calls, s.explain(said, e.ResponseStatus))
	}
}

func (s *story) explain(decision string, status *metav1.Status) string {
	if status == nil || status.Message == "" {
		return decision
	}
	_, message, _ := strings.Cut(status.Message, "denied the request: ")
	return fmt.Sprintf("%s (%d): %s", decision, status.Code, message)
}

func (s *story) tell(pod, format string, args ...any) {
	s.last = time.Now()
	s.say("%6.1fs  %-10s %s", time.Since(s.begin).Seconds(), pod, fmt.Sprintf(format, args...))
}

// table prints the final state of the pods.
func (s *story) table(ctx context.Context) error {
	list, err := s.pods(ctx)
	if err != nil {
		return err
	}
	s.say("")
	w := tabwriter.NewWriter(s.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "POD\tSTATUS\tNODE\tTOPOLOGY.PREBIND.DEV/…\tCLAIM → VOLUME\tCALLS\tBIND WAITED")
	for _, pod := range list {
		volume := claimOf(&pod) + " → " + cmp.Or(s.volume[pod.Name], "none")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%s\n", pod.Name, pod.Status.Phase, pod.Spec.NodeName, topologyOf(&pod), volume,
			s.calls[pod.Name], s.waited[pod.Name].Round(10*time.Millisecond))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	s.say("")
	return nil
}

func (s *story) pods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := s.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + s.name})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// topologyOf lists the pod's topology annotations in a short form.
func topologyOf(pod *corev1.Pod) string {
	var out []string
	for key, value := range pod.Annotations {
		if short, ours := strings.CutPrefix(key, "topology.prebind.dev/"); ours {
			out = append(out, short+"="+value)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func claimOf(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}
