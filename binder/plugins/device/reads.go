// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/podstate"
)

// maxAttempt is the maximum length of an attempt in a record, in bytes. Attempts of the
// engine are shorter. Tenants can write annotations of any length.
const maxAttempt = 128

// restore returns the record of a node whose ConfigMap does not exist: the first record, or
// one that was lost. It contains the grants of running pods, according to their annotations.
// A tenant can edit those: an added annotation only blocks devices, but the device of a
// removed annotation is free.
func restore(ctx context.Context, live framework.Reader, node string) (*record, error) {
	rec := newRecord(node)
	return rec, eachRunningOn(ctx, live, node, func(metadata *metav1.PartialObjectMetadata) {
		pod := &corev1.Pod{ObjectMeta: metadata.ObjectMeta}
		rec.bind(pod, grantOf(pod))
	})
}

// eachRunningOn calls the function for each pod on the node that is not finished, from the API server.
func eachRunningOn(ctx context.Context, live framework.Reader, node string, do func(*metav1.PartialObjectMetadata)) error {
	if err := podstate.EachRunningOn(ctx, live, node, do); err != nil {
		return framework.FromAPI(framework.Object{Kind: "Node", Name: node}, "listing its pods to find the devices that they hold", err)
	}
	return nil
}

// makeRoom removes holders of requested devices whose pods are gone. It returns an error if other pods hold one of the devices. It reads the
// pods with the largest shares first, and only until they show that: a tenant can have many pods that hold a little of a device. It adds each
// pod that it has read to gone, and does not read it again: a pod that is gone stays gone.
func makeRoom(ctx context.Context, live framework.Reader, rec *record, bc *framework.BindContext, a ask, gone map[types.UID]bool) error {
	for _, c := range rec.conflicts(bc.Pod.UID, a.devices) {
		c.holders = slices.DeleteFunc(c.holders, func(uid types.UID) bool { return rec.Entries[uid] == nil }) // It held an earlier device, too.
		share := func(uid types.UID) share { return rec.Entries[uid].held(c.key, c.id) }
		slices.SortStableFunc(c.holders, func(a, b types.UID) int { return cmp.Compare(share(b), share(a)) })
		free := whole
		for _, uid := range c.holders {
			if _, read := gone[uid]; !read {
				e := rec.Entries[uid]
				pod, err := framework.Get(ctx, live, &corev1.Pod{}, e.Pod.Namespace, e.Pod.Name)
				if err != nil {
					return err
				}
				at := stateOf(pod, uid, bc.Node.Name)
				gone[uid] = at != podstate.Pending && at != podstate.BoundHere
			}
			if gone[uid] {
				rec.drop(uid)
			} else if free -= share(uid); free < c.asked {
				return framework.Refuse(framework.ObjectOf(bc.Node), "%s", rec.describe(rec.conflicts(bc.Pod.UID, a.devices))).
					Advise("choose other devices or another node")
			}
		}
	}
	return nil
}

// grantOf returns the grant of a bound pod, according to its annotations.
func grantOf(pod *corev1.Pod) grant {
	a, _ := parse(framework.Parameters(Name, &corev1.Binding{}, pod)) // Invalid annotations list no devices.
	attempt := pod.Annotations[framework.AttemptAnnotation]
	if len(attempt) > maxAttempt {
		attempt = ""
	}
	return grant{Attempt: attempt, Devices: a.devices}
}
