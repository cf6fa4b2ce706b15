// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const (
	// stepped is the label of pods to which the policy with tasks applies, and ofSteps begins the keys of its annotations.
	stepped = "steps"
	ofSteps = "steps.policy.prebind.dev/"
)

// taskSpec is a task of a generation of the policy.
type taskSpec struct {
	name, handler string
	timeout       time.Duration
	allow, kept   bool
}

// steps are the policy with tasks and the histories of its BindTasks. They are guarded by world.mu.
type steps struct {
	generations map[string][]taskSpec
	histories   map[types.UID]*history
	// posted are the UIDs and nodes of Bindings.
	posted map[string]bool
}

// history is what the oracle has seen of a BindTask.
type history struct {
	spec v1alpha1.BindTaskSpec
	// ready says that it was Ready before it was deleted, and byHand that neither Prebind nor its handler has deleted it.
	ready, byHand bool
	// changed wakes its handler.
	changed chan struct{}
}

// changeSteps changes the policy with tasks in the storm. Sometimes there is none. At last, there is one.
func (w *world) changeSteps() {
	d := w.random("steps")
	for n := 1; w.pause(d.between(30*time.Second, 4*time.Minute)); n++ {
		if !w.stormy() {
			w.putSteps(n, d, false)
			return
		}
		w.putSteps(n, d, d.one(4))
	}
}

// putSteps replaces the policy with tasks. The handler of a task can be another one than before.
func (w *world) putSteps(n int, d *dice, none bool) {
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "steps", UID: "steps", Generation: int64(n + 1)}}
	generation, tasks := "", []taskSpec(nil)
	if none {
		w.api.Remove(p)
	} else {
		generation = strconv.Itoa(n)
		spec := "matchConstraints: {podSelector: {matchLabels: {steps: \"true\"}}}\nmutations: {annotations: [{key: generation, valueExpression: \"'" + generation + "'\"}]}\ntasks:\n"
		for _, name := range []string{"fetch", "attach"}[d.below(2):] {
			t := taskSpec{name: name, handler: "sim.example/" + name + "-" + strconv.Itoa(d.below(2)), timeout: d.between(10*time.Second, 2*time.Minute).Truncate(time.Second), allow: d.one(3), kept: d.one(2)}
			onTimeout, retain := v1alpha1.OnTimeoutRefuse, v1alpha1.RetainUntilBound
			if t.allow {
				onTimeout = v1alpha1.OnTimeoutAllow
			}
			if t.kept {
				retain = v1alpha1.RetainWhilePodRuns
			}
			spec += fmt.Sprintf("- {name: %s, handler: %s, timeout: %s, onTimeout: %s, retain: %s}\n", t.name, t.handler, t.timeout, onTimeout, retain)
			tasks = append(tasks, t)
		}
		require.NoError(w.t, yaml.UnmarshalStrict([]byte(spec), &p.Spec))
		w.mu.Lock()
		w.steps.generations[generation] = tasks
		w.mu.Unlock()
		w.api.Put(p)
	}
	w.note("the policy with tasks has generation %q: %+v", generation, tasks)
	w.mu.Lock()
	var earlier []string
	for name := range w.spells {
		if strings.HasPrefix(name, "steps ") {
			earlier = append(earlier, name)
		}
	}
	w.mu.Unlock()
	for _, name := range earlier {
		w.set(name, false)
	}
	w.set("steps "+generation, true)
}

func hasStatus(t *v1alpha1.BindTask, condition string) bool {
	return slices.ContainsFunc(t.Status.Conditions, func(c v1alpha1.TaskCondition) bool {
		return c.Type == condition && c.Status == metav1.ConditionTrue
	})
}

// taskChanged keeps the history of a BindTask, and gives a new one to its handler.
func (w *world) taskChanged(t *v1alpha1.BindTask, deleted bool) {
	w.mu.Lock()
	h, known := w.steps.histories[t.UID]
	if !known {
		h = &history{spec: t.Spec, changed: make(chan struct{}, 1)}
		w.steps.histories[t.UID] = h
	}
	ends := deleted || t.DeletionTimestamp != nil
	h.ready = h.ready || !ends && hasStatus(t, "Ready")
	posted, byHand := w.steps.posted[string(t.Spec.Pod.UID)+" "+t.Spec.NodeName], h.byHand
	w.mu.Unlock()
	w.set("BindTask "+t.Name+" failed", !deleted && hasStatus(t, "Failed"))
	if !posted {
		w.problem("BindTask %s is for pod %s on %s, which no client binds", t.Name, t.Spec.Pod.UID, t.Spec.NodeName)
	}
	pod, ok := fakeapi.Get(w.api, gen.Pod(t.Spec.Pod.Name))
	if ends && !byHand && ok && runs(pod) && holds(pod, t) {
		w.problem("pod %s runs, and its BindTask %s is deleted", pod.UID, t.Name)
	}
	if !known {
		w.note("BindTask %s (%s) is created: %s for %s on %s", t.Name, t.UID, t.Spec.Handler, t.Spec.Pod.UID, t.Spec.NodeName)
		w.actors.Go(func() { w.handle(t.Name, t.UID, h.changed) })
	}
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

// holds returns whether the pod keeps the BindTask while it runs.
func holds(pod *corev1.Pod, t *v1alpha1.BindTask) bool {
	return pod.UID == t.Spec.Pod.UID && pod.Spec.NodeName == t.Spec.NodeName && t.Spec.Retain == v1alpha1.RetainWhilePodRuns &&
		pod.Annotations[ofSteps+t.Spec.Task] == string(t.UID)
}

// handle is the handler of one BindTask. It remembers nothing: when it crashes, it continues with what the BindTask says. In the storm, it is
// slow, fails, changes its mind, or is gone for minutes.
func (w *world) handle(name string, uid types.UID, changed <-chan struct{}) {
	d := w.random("handler of " + name + string(uid))
	finalizes, lies := !d.one(4), d.one(6)
	key := &v1alpha1.BindTask{ObjectMeta: metav1.ObjectMeta{Name: name}}
	report := func(condition string, status metav1.ConditionStatus) {
		fakeapi.Change(w.api, key, "handler", func(t *v1alpha1.BindTask) {
			if t.UID != uid {
				return
			}
			t.Status.Conditions = slices.DeleteFunc(t.Status.Conditions, func(c v1alpha1.TaskCondition) bool { return c.Type == condition })
			t.Status.Conditions = append(t.Status.Conditions, v1alpha1.TaskCondition{Type: condition, Status: status, Message: "said " + name})
			t.Status.Annotations = map[string]v1alpha1.AnnotationValue{t.Spec.Task: v1alpha1.AnnotationValue(uid)}
		})
	}
	takes := func(longest time.Duration) bool {
		switch {
		case !w.stormy():
			longest = min(longest, 3*time.Second)
		case d.one(12):
			longest = 4 * time.Minute // It is gone.
		}
		return w.pause(d.between(0, longest))
	}
	for takes(time.Second) { // Its watch is late.
		t, ok := fakeapi.Get(w.api, key)
		if !ok || t.UID != uid {
			return
		}
		finalizer, answered := slices.Contains(t.Finalizers, t.Spec.Handler), hasStatus(t, "Ready") || hasStatus(t, "Failed")
		switch {
		case t.DeletionTimestamp != nil && finalizer:
			if !takes(20 * time.Second) { // It undoes its work.
				return
			}
			if now, ok := fakeapi.Get(w.api, key); ok && now.UID == uid {
				now.Finalizers = nil
				_ = w.api.Connect().Update(w.over, now) // After a conflict, it tries again.
			}
		case t.DeletionTimestamp == nil && !answered && finalizes && !finalizer:
			fakeapi.Change(w.api, key, "handler", func(t *v1alpha1.BindTask) {
				if t.UID == uid && t.DeletionTimestamp == nil {
					t.Finalizers = []string{t.Spec.Handler}
				}
			})
		case t.DeletionTimestamp == nil && !answered:
			if !takes(10 * time.Second) {
				return
			}
			switch {
			case !w.stormy() || !d.one(5):
				report("Ready", metav1.ConditionTrue)
			case d.one(2):
				report("Failed", metav1.ConditionTrue)
			default:
				report("Ready", metav1.ConditionFalse)
			}
		case t.DeletionTimestamp == nil && lies && w.stormy():
			lies = false
			if d.one(2) {
				report("Failed", metav1.ConditionTrue)
			} else {
				report("Ready", metav1.ConditionFalse)
			}
		default:
			select {
			case <-changed:
			case <-w.over.Done():
				return
			}
		}
	}
}

// meddle deletes BindTasks by hand.
func (w *world) meddle() {
	d := w.random("meddler")
	for w.pause(d.between(10*time.Second, 2*time.Minute)) && w.stormy() {
		all := fakeapi.All(w.api, &v1alpha1.BindTask{})
		if len(all) == 0 {
			continue
		}
		t := all[d.below(len(all))]
		w.mu.Lock()
		w.steps.histories[t.UID].byHand = true
		w.mu.Unlock()
		w.note("BindTask %s is deleted by hand", t.Name)
		_ = w.api.Connect().Delete(w.over, t)
	}
}

// checkSteps checks that the tasks of a pod that runs were done for it, on its node, and that it has those that it keeps.
func (w *world) checkSteps(pod *corev1.Pod) {
	generation := pod.Annotations[ofSteps+"generation"]
	w.mu.Lock()
	specs := w.steps.generations[generation]
	w.mu.Unlock()
	for _, s := range specs {
		uid := types.UID(pod.Annotations[ofSteps+s.name])
		if uid == "" {
			if !s.allow || time.Since(w.created[pod.UID]) < s.timeout {
				w.problem("pod %s runs on %s without its task %s", pod.UID, pod.Spec.NodeName, s.name)
			}
			continue
		}
		w.mu.Lock()
		var h history
		if known := w.steps.histories[uid]; known != nil {
			h = *known
		}
		w.mu.Unlock()
		if !h.ready || h.spec.Task != s.name || h.spec.Handler != s.handler || h.spec.Pod.UID != pod.UID || h.spec.NodeName != pod.Spec.NodeName || (h.spec.Retain == v1alpha1.RetainWhilePodRuns) != s.kept {
			w.problem("pod %s runs on %s with a BindTask that is not its own, or was not ready: %+v", pod.UID, pod.Spec.NodeName, h)
		}
		exists := slices.ContainsFunc(fakeapi.All(w.api, &v1alpha1.BindTask{}), func(t *v1alpha1.BindTask) bool { return t.UID == uid && t.DeletionTimestamp == nil })
		if s.kept && !h.byHand && !exists {
			w.problem("pod %s runs on %s, and its task %s does not exist", pod.UID, pod.Spec.NodeName, s.name)
		}
	}
}

// leftTasks returns the BindTasks that should be gone at the end.
func (w *world) leftTasks(pods map[types.UID]*corev1.Pod, waiting map[types.UID]bool) (wrong []string) {
	for _, t := range fakeapi.All(w.api, &v1alpha1.BindTask{}) {
		pod := pods[t.Spec.Pod.UID]
		switch {
		case waiting[t.Spec.Pod.UID]:
		case pod == nil || !runs(pod) || pod.Spec.NodeName != t.Spec.NodeName || t.Spec.Retain != v1alpha1.RetainWhilePodRuns:
			wrong = append(wrong, fmt.Sprintf("BindTask %s of pod %s on %s is left", t.Name, t.Spec.Pod.UID, t.Spec.NodeName))
		case len(t.Spec.Attempts) > 0:
			wrong = append(wrong, fmt.Sprintf("BindTask %s of pod %s on %s is not confirmed", t.Name, t.Spec.Pod.UID, t.Spec.NodeName))
		}
	}
	return wrong
}
