// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// owner creates the pod of the name again and again: pods are deleted at any time, and end. At last, there is one pod that stays. The
// scheduler forsakes the last pod of some owners: it posts one Binding, and no other.
func (w *world) owner(name string, forsakes bool) {
	d := w.random("owner " + name)
	for n := 1; w.stormy(); n++ {
		w.createPod(name, n, d, false)
		if !w.pause(d.between(time.Second, 4*time.Minute)) {
			return
		}
		w.endPod(name, d.one(3))
		if !w.pause(d.between(0, 20*time.Second)) {
			return
		}
		w.removePod(name)
	}
	w.createPod(name, 0, d, forsakes)
}

func (w *world) createPod(name string, n int, d *dice, forsaken bool) {
	uid := types.UID(fmt.Sprintf("%s-%d", name, n))
	options := []gen.PodOption{gen.UID(uid)}
	if d.one(4) {
		options = append(options, gen.Annotation(gpu, "GPU-"+strconv.Itoa(d.below(2))))
	}
	w.executing.Lock()
	if d.one(2) {
		claim := "data-" + string(uid)
		if d.one(3) && !forsaken {
			claim = "shared"
		}
		options = append(options, gen.UsesClaim(claim))
		w.createClaim(claim)
	}
	if d.one(2) {
		devices := "devices-" + string(uid)
		if d.one(2) {
			devices = "team"
		}
		options = append(options, gen.UsesResourceClaim(devices))
		// A scheduler has allocated devices that every node reaches.
		claim := gen.ResourceClaim(devices, gen.UID(types.UID(devices+"-uid")), gen.RequestsDevices("gpus", 1), gen.AllocatedFor("", "gpus", gen.Device("gpu-0")))
		claim.Status.Allocation.AllocationTimestamp = nil
		if _, ok := fakeapi.Get(w.api, claim); !ok {
			w.api.Put(claim)
		}
	}
	if w.stepping && w.random("steps of "+string(uid)).one(2) {
		options = append(options, gen.Label(stepped, "true"))
	}
	pod := gen.Pod(name, options...)
	if d.one(8) {
		pod.Status.NominatedNodeName = nominated
		pod.ManagedFields = []metav1.ManagedFieldsEntry{{
			Manager: "kube-scheduler", Operation: metav1.ManagedFieldsOperationUpdate, Subresource: "status",
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:nominatedNodeName":{}}}`),
		}}
	}
	w.mu.Lock()
	w.forsaken[uid], w.created[uid] = forsaken, time.Now()
	w.mu.Unlock()
	w.api.Put(pod)
	w.executing.Unlock()
	w.note("pod %s is created, forsaken: %v", uid, forsaken)
	w.actors.Go(func() { w.schedule("scheduler", name, uid, forsaken) })
	if !forsaken && d.one(4) {
		// Another scheduler takes the pod for its own.
		w.actors.Go(func() { w.schedule("rival", name, uid, false) })
	}
}

// createClaim creates a claim. The claim that pods share is ReadWriteOncePod.
func (w *world) createClaim(name string) {
	options := []gen.ClaimOption{gen.OfClass(class), gen.UID(types.UID(name + "-uid" + strconv.FormatInt(time.Since(w.began).Milliseconds(), 10)))}
	if name == "shared" {
		options = append(options, gen.AccessModes(corev1.ReadWriteOncePod))
	}
	claim := gen.Claim(name, options...)
	if _, ok := fakeapi.Get(w.api, claim); !ok {
		w.api.Put(claim)
	}
}

// nominated is the node that another component has nominated for a pod.
const nominated = "node-x"

// replaceShared deletes the claim that pods share, and creates another one with its name, while no pod uses it.
func (w *world) replaceShared() {
	w.executing.Lock()
	defer w.executing.Unlock()
	claim, ok := fakeapi.Get(w.api, gen.Claim("shared"))
	if !ok || slices.ContainsFunc(fakeapi.All(w.api, &corev1.Pod{}), func(p *corev1.Pod) bool { return claimOf(p) == "shared" }) {
		return
	}
	w.api.Remove(claim)
	w.api.Remove(gen.Volume("pv-" + string(claim.UID)))
	w.createClaim("shared")
}

// endPod ends the pod: it finishes, or it is deleted and no longer runs.
func (w *world) endPod(name string, finishes bool) {
	if !finishes {
		w.removePod(name)
		return
	}
	w.executing.Lock()
	defer w.executing.Unlock()
	fakeapi.Change(w.api, gen.Pod(name), "kubelet", func(p *corev1.Pod) {
		if p.Spec.NodeName != "" {
			p.Status.Phase = corev1.PodSucceeded
		}
	})
}

func devicesOf(pod *corev1.Pod) string {
	if pod == nil || len(pod.Spec.ResourceClaims) == 0 {
		return ""
	}
	return *pod.Spec.ResourceClaims[0].ResourceClaimName
}

// collect removes the reservations of pods that were bound and no longer run, like kube-controller-manager.
func (w *world) collect(claim *resourcev1.ResourceClaim) {
	gone := map[types.UID]bool{}
	for _, r := range claim.Status.ReservedFor {
		pod, ok := fakeapi.Get(w.api, gen.Pod(r.Name))
		w.mu.Lock()
		if w.bound[r.UID] && (!ok || pod.UID != r.UID || !runs(pod)) {
			gone[r.UID] = true
		}
		w.mu.Unlock()
	}
	if len(gone) == 0 {
		return
	}
	w.actors.Go(func() {
		if !w.pause(time.Second) {
			return
		}
		fakeapi.Change(w.api, claim, "kube-controller-manager", func(c *resourcev1.ResourceClaim) {
			c.Status.ReservedFor = slices.DeleteFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return gone[r.UID] })
		})
	})
}

func (w *world) removePod(name string) {
	w.executing.Lock()
	defer w.executing.Unlock()
	if pod, ok := fakeapi.Get(w.api, gen.Pod(name)); ok {
		w.note("pod %s is deleted", pod.UID)
		w.api.Remove(pod)
	}
}

// schedule is a scheduler that posts Bindings of the pod until it is bound or gone. It chooses another node after a rejection.
func (w *world) schedule(actor, name string, uid types.UID, once bool) {
	d := w.random(actor + " " + string(uid))
	node := nodes[d.below(len(nodes))]
	for more := true; more && w.over.Err() == nil; more = !once {
		pod, ok := fakeapi.Get(w.api, gen.Pod(name))
		if !ok || pod.UID != uid || pod.Spec.NodeName != "" {
			return
		}
		if d.one(2) {
			node = nodes[d.below(len(nodes))]
		}
		if w.stormy() && pod.Labels[stepped] != "" && !d.one(4) {
			// Its rival often chooses this node, too. Then their attempts share the BindTasks.
			node = nodes[w.random("node of "+string(uid)).below(len(nodes))]
		}
		binding := gen.Binding(pod, node, gen.UID(uid))
		if pod.Annotations[gpu] == "" || d.one(2) {
			metav1.SetMetaDataAnnotation(&binding.ObjectMeta, gpu, "GPU-"+strconv.Itoa(d.below(2)))
		}
		// Like kube-scheduler, it knows where the volume is.
		if at := w.nodeOf(pod); at != "" && !d.one(8) {
			binding.Target.Name = at
		}
		if d.one(8) {
			fakeapi.Change(w.api, pod, "kubectl", func(p *corev1.Pod) {
				metav1.SetMetaDataAnnotation(&p.ObjectMeta, "example.com/note", binding.Target.Name)
			})
		}
		user := "scheduler-" + strconv.Itoa(d.below(2))
		repeats := 10
		if once {
			repeats = 0
		}
		w.post(d, pod, binding, user, repeats)
		pause := d.between(100*time.Millisecond, 15*time.Second)
		if d.one(3) {
			// It schedules the pod at once, while the earlier attempt is rolled back.
			pause = d.between(0, 30*time.Millisecond)
		}
		if !w.pause(pause) {
			return
		}
	}
}

// nodeOf returns the node of the volume of the pod, if the pod can be bound to no other.
func (w *world) nodeOf(pod *corev1.Pod) string {
	claim, ok := fakeapi.Get(w.api, gen.Claim(claimOf(pod)))
	if !ok || claim.Spec.VolumeName != "" && claim.Name == "shared" {
		return ""
	}
	return claim.Annotations[selectedNode]
}

func claimOf(pod *corev1.Pod) string {
	for _, v := range pod.Spec.Volumes {
		if v.PersistentVolumeClaim != nil {
			return v.PersistentVolumeClaim.ClaimName
		}
	}
	return ""
}

// post posts a Binding like client-go: it repeats a 429 up to ten times. Most calls reach the same replica, because API servers reuse
// connections.
func (w *world) post(d *dice, pod *corev1.Pod, binding *corev1.Binding, user string, repeats int) {
	var p *process
	for range repeats + 1 {
		living := w.living()
		if len(living) == 0 {
			return
		}
		if p == nil || p.dead() || d.one(5) {
			// Half of the calls reach a replica that cannot renew its lease, because others can roll back what it allows.
			i := slices.IndexFunc(living, (*process).isCut)
			if i < 0 || d.one(2) {
				i = d.below(len(living))
			}
			p = living[i]
		}
		pause, again := w.call(d, p, pod, binding, user)
		if !again || !w.pause(pause) {
			return
		}
	}
}

// call posts a Binding to the replica once. It returns whether the client repeats it, and after which time.
func (w *world) call(d *dice, p *process, pod *corev1.Pod, binding *corev1.Binding, user string) (pause time.Duration, again bool) {
	limit := 29 * time.Second
	if w.stormy() && d.one(4) {
		limit = d.between(0, 4*time.Second) // The client has a timeout.
	}
	ctx, cancel := context.WithTimeout(p.killed, limit)
	began := time.Now()
	w.mu.Lock()
	w.steps.posted[string(pod.UID)+" "+binding.Target.Name] = true
	w.mu.Unlock()
	decision := p.engine.Bind(ctx, binder.Request{
		Pod: client.ObjectKeyFromObject(pod), Binding: binding.DeepCopy(), User: authenticationv1.UserInfo{Username: user},
	})
	ended := ctx.Err() != nil
	cancel()
	if p.awake() && time.Since(began) > limit {
		w.note("%s: the answer about %s is too late", p.id, pod.UID)
		return 0, false
	}
	if p.dead() {
		w.note("%s: no answer about %s: the connection is lost", p.id, pod.UID)
		return 0, false
	}
	w.checkDecision(p, pod, binding, user, decision, ended)
	if decision.Err == nil {
		w.execute(d, p, pod, binding, decision, began)
		return 0, false
	}
	w.note("%s: %s to %s with %s: %v", p.id, pod.UID, binding.Target.Name, binding.Annotations[gpu], decision.Err)
	return decision.RetryAfter, decision.Err.Kind == framework.KindWait
}

// execute is GuaranteedUpdate of the API server: it merges the annotations and sets the node, at once or up to 49 s after the request began:
// 34 s in the API server, and then in etcd.
func (w *world) execute(d *dice, p *process, pod *corev1.Pod, binding *corev1.Binding, decision binder.Decision, began time.Time) {
	annotations := map[string]string{}
	maps.Copy(annotations, binding.Annotations)
	maps.Copy(annotations, decision.Annotations)
	late := d.between(time.Millisecond, 20*time.Millisecond)
	if w.stormy() && (d.one(10) || p.isCut() || binding.Target.Name == quiet) {
		late = d.between(0, max(0, 49*time.Second-time.Since(began)))
	}
	lost := w.stormy() && d.one(30)
	allowed := time.Now()
	do := func() {
		if !w.pause(late) || lost {
			return
		}
		w.executing.Lock()
		defer w.executing.Unlock()
		now, ok := fakeapi.Get(w.api, gen.Pod(pod.Name))
		if !ok || now.UID != pod.UID || now.Spec.NodeName != "" || now.DeletionTimestamp != nil {
			return
		}
		w.note("%s: %s is bound to %s with %s, attempt %s", p.id, pod.UID, binding.Target.Name, annotations[gpu], decision.Attempt)
		fakeapi.Change(w.api, now, "apiserver", func(o *corev1.Pod) {
			o.Spec.NodeName = binding.Target.Name
			if o.Annotations == nil {
				o.Annotations = map[string]string{}
			}
			maps.Copy(o.Annotations, annotations)
			o.Status.Phase, o.Status.NominatedNodeName = corev1.PodPending, ""
		})
		w.starts(p, now, binding.Target.Name, allowed)
	}
	if late > 34*time.Second || d.one(2) {
		// The client does not wait for the end.
		w.actors.Go(do)
		w.pause(min(late, 34*time.Second))
		return
	}
	do()
}
