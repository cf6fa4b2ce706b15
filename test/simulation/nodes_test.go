// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/policy/v1alpha1"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

// putNode creates a node with the driver.
func (w *world) putNode(name string, uid types.UID) {
	w.api.Put(gen.Node(name, gen.Ready(110), gen.UID(uid), gen.Label("closed", "false")))
	node := gen.CSINode(name)
	gen.OwnedBy("Node", name, uid)(&node.ObjectMeta)
	node.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver, NodeID: name}}
	w.api.Put(node)
}

// maintain cordons the node, restarts its driver, and replaces the node.
func (w *world) maintain(name string) {
	d := w.random("maintenance of " + name)
	for n := 1; w.stormy(); n++ {
		if !w.pause(d.between(10*time.Second, 3*time.Minute)) {
			return
		}
		var what string
		var end func()
		lasts := d.between(time.Second, time.Minute)
		switch d.below(6) {
		case 0:
			what = "cordoned " + name
			w.cordon(name, true)
			end = func() { w.cordon(name, false) }
		case 1:
			what = "driverless " + name
			w.setDrivers(name, nil)
			end = func() { w.setDrivers(name, []storagev1.CSINodeDriver{{Name: driver, NodeID: name}}) }
		case 2:
			// The node is replaced, and its CSINode is that of the earlier node for a while.
			what = "driverless " + name
			old, _ := fakeapi.Get(w.api, gen.CSINode(name))
			w.deleteNode(name)
			w.putNode(name, types.UID(fmt.Sprintf("%s-uid-%d", name, n)))
			now, _ := fakeapi.Get(w.api, gen.CSINode(name))
			fakeapi.Change(w.api, now, "kubelet", func(c *storagev1.CSINode) { c.OwnerReferences = old.OwnerReferences })
			end = func() {
				fakeapi.Change(w.api, now, "kubelet", func(c *storagev1.CSINode) { c.OwnerReferences = now.OwnerReferences })
			}
		case 3, 4:
			what = "closed " + name
			w.close(name, true)
			end = func() { w.close(name, false) }
		default:
			what = "missing " + name
			w.deleteNode(name)
			end = func() { w.putNode(name, types.UID(fmt.Sprintf("%s-uid-%d", name, n))) }
		}
		w.set(what, true)
		w.pause(lasts)
		end()
		w.set(what, false)
	}
}

func (w *world) cordon(name string, on bool) {
	fakeapi.Change(w.api, gen.Node(name), "kubectl", func(n *corev1.Node) { n.Spec.Unschedulable = on })
}

// close sets the label of a node that the policy of the run does not accept.
func (w *world) close(name string, on bool) {
	fakeapi.Change(w.api, gen.Node(name), "kubectl", func(n *corev1.Node) { n.Labels["closed"] = fmt.Sprint(on) })
}

func (w *world) setDrivers(name string, drivers []storagev1.CSINodeDriver) {
	fakeapi.Change(w.api, gen.CSINode(name), "kubelet", func(n *storagev1.CSINode) { n.Spec.Drivers = drivers })
}

// deleteNode removes the node and its pods.
func (w *world) deleteNode(name string) {
	w.api.Remove(gen.Node(name))
	w.api.Remove(gen.CSINode(name))
	for _, pod := range fakeapi.All(w.api, &corev1.Pod{}) {
		if pod.Spec.NodeName == name {
			w.removePod(pod.Name)
		}
	}
}

// spell is a time for which a state holds.
type spell struct {
	on           bool
	began, ended time.Time
}

// set records that a state holds from now on, or no longer.
func (w *world) set(what string, on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.spells[what]
	switch now := time.Now(); {
	case on && !s.on:
		s = spell{on: true, began: now}
	case !on && s.on:
		s.on, s.ended = false, now
	}
	w.spells[what] = s
}

// latest is how old the state is on which a decision may be based: the longest delay of a watch, of an answer to a live read, and the time
// of the decision and of its write.
const latest = 10*time.Second + lateAnswer + 5*time.Second

// sure returns whether every cache shows that the state holds.
func (w *world) sure(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.spells[what]
	return s.on && time.Since(s.began) > latest
}

// recent returns whether a replica can have read that the state holds.
func (w *world) recent(what string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.spells[what]
	return s.on || !s.ended.IsZero() && time.Since(s.ended) <= latest
}

// generations are the specs of the policy of the run. The first one rejects closed nodes, and the second one waits.
var generations = []string{
	`validations: [{expression: "node.metadata.labels.closed == 'false'", message: the node is closed}]`,
	`waitFor: [{name: open, expression: "node.metadata.labels.closed == 'false'", timeout: 30s}]`,
}

// changePolicy changes the policy in the storm.
func (w *world) changePolicy() {
	d := w.random("policy")
	for n := 1; w.pause(d.between(30*time.Second, 4*time.Minute)) && w.stormy(); n++ {
		w.putPolicy(n)
	}
}

func (w *world) putPolicy(n int) {
	const mutations = "\nmutations: {annotations: [{key: generation, valueExpression: \"'%d'\"}, {key: user, valueExpression: request.userInfo.username}]}"
	p := &v1alpha1.BindPolicy{ObjectMeta: metav1.ObjectMeta{Name: "sim", UID: "sim", Generation: int64(n + 1)}}
	require.NoError(w.t, yaml.UnmarshalStrict([]byte(generations[n%2]+fmt.Sprintf(mutations, n)), &p.Spec))
	w.api.Put(p)
	w.set("policy "+fmt.Sprint(n-1), false)
	w.set("policy "+fmt.Sprint(n), true)
}
