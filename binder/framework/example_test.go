// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework_test

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/prebind/prebind/binder/framework"
)

// attachment is a custom resource that PreBind creates and a controller fulfills, with a finalizer. Its name contains the UID of the pod and the
// node, so that each method finds the one of its bind.
type attachment struct {
	metav1.ObjectMeta

	// Marks are those of the attempts. PostBind removes all of them, which confirms the attachment.
	Marks          []framework.Mark
	Attached, Lost bool
}

// preFlight is the PreFlight of such a plugin. SetupBindContextExtension has read the attachment of the pod and the node, or nil.
func preFlight(bc *framework.BindContext, a *attachment) (framework.Verdict, error) {
	object := framework.Object{Kind: "Attachment", Name: string(bc.Pod.UID) + "-" + bc.Node.Name}
	switch {
	case a == nil:
		return framework.Verdict{Writes: []string{"attach the device"}}, nil
	case a.DeletionTimestamp != nil: // An earlier attempt was rolled back.
		wait, err := bc.AtMost(time.Minute, framework.Wait{Object: object, For: "its deletion"}, "check the fabric")
		return framework.Verdict{Wait: wait}, err
	case len(a.Marks) > 0 && !slices.Contains(a.Marks, bc.Mark()):
		return framework.Verdict{Writes: []string{"add the mark"}}, nil
	case a.Lost:
		return framework.Verdict{}, framework.Refuse(object, "the device cannot be attached").Advise("choose another node")
	case !a.Attached:
		wait, err := bc.AtMost(4*time.Minute, framework.Wait{Object: object, For: "the device to be attached"}, "check the fabric")
		return framework.Verdict{Wait: wait}, err
	default:
		return framework.Verdict{}, nil
	}
}

// A plugin that writes an object waits until a controller has fulfilled it.
func ExamplePreBinder() {
	now := time.Now()
	bc := &framework.BindContext{
		Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod-1"}}, Node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		Attempt: "r1-1", Now: now, Since: now,
	}
	marks := []framework.Mark{bc.Mark()}
	for _, a := range []*attachment{nil, {Marks: make([]framework.Mark, 1)}, {Marks: marks}, {Marks: marks, Lost: true}, {Marks: marks, Attached: true}} {
		v, err := preFlight(bc, a)
		fmt.Println(v.Writes, v.Wait.For, err)
	}
	// Output:
	// [attach the device]  <nil>
	// [add the mark]  <nil>
	// [] the device to be attached <nil>
	// []  Attachment pod-1-node-a: the device cannot be attached; choose another node
	// []  <nil>
}
