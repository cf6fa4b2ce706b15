// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/gen"
)

var (
	claim  = Object{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}
	node   = Object{Kind: "Node", Name: "node-a"}
	errRaw = errors.New("raw")
)

func TestFromAPI(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	cases := map[string]struct {
		reason string
		err    error
		want   Kind
	}{
		"Conflict":    {reason: "another client wrote first", err: apierrors.NewConflict(resource, "a", errRaw), want: KindWait},
		"Exists":      {reason: "the cache does not show the object yet", err: apierrors.NewAlreadyExists(resource, "a"), want: KindWait},
		"Overloaded":  {reason: "the API server is overloaded", err: apierrors.NewTooManyRequestsError("slow"), want: KindWait},
		"Timeout":     {reason: "the API server was too slow", err: apierrors.NewTimeoutError("slow", 1), want: KindWait},
		"Unavailable": {reason: "the API server is restarting", err: apierrors.NewServiceUnavailable("restarting"), want: KindWait},
		"Forbidden":   {reason: "waiting does not grant permissions", err: apierrors.NewForbidden(resource, "a", errRaw), want: KindInternal},
		"NotFound":    {reason: "callers handle missing objects themselves", err: apierrors.NewNotFound(resource, "a"), want: KindInternal},
		"Internal":    {reason: "the API server failed", err: apierrors.NewInternalError(errRaw), want: KindInternal},
		"Unknown":     {reason: "the error is not from the API server", err: errRaw, want: KindInternal},
		"Deadline":    {reason: "the API server was too slow for the call", err: fmt.Errorf("get: %w", context.DeadlineExceeded), want: KindWait},
		"Refused":     {reason: "the API server is restarting", err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, want: KindWait},
		"Unreachable": {reason: "the machine of the API server is gone", err: &net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}, want: KindWait},
		"EtcdRestart": {reason: "the API server does not repeat a write", err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 500, Message: "rpc error: code = Unavailable desc = error reading from server: EOF"}}, want: KindWait},
		"Election":    {reason: "etcd elects a leader", err: &apierrors.StatusError{ErrStatus: metav1.Status{Code: 500, Message: "etcdserver: leader changed"}}, want: KindWait},
		"EOF":         {reason: "the connection was closed within a response", err: io.ErrUnexpectedEOF, want: KindWait},
		"Context":     {reason: "the caller ended the request, which is not a failure", err: fmt.Errorf("get: %w", context.Canceled), want: KindWait},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			err := FromAPI(node, "reading it", tc.err)
			assert.Equal(t, tc.want, err.Kind, tc.reason)
			assert.Equal(t, node, err.Object)
			require.ErrorIs(t, err, tc.err)
			assert.Contains(t, err.Error(), "Node node-a: reading it: ")
		})
	}
}

func TestAsError(t *testing.T) {
	assert.Nil(t, AsError("p", nil), "AsError returns nil for nil")

	foreign := AsError("p", errRaw)
	assert.Equal(t, KindInternal, foreign.Kind, "an error of any other type is the plugin's failure")
	assert.Equal(t, "p", foreign.Plugin)
	require.ErrorIs(t, foreign, errRaw)

	refusal := Refuse(claim, "no").Advise("yes").Because(errRaw)
	named := AsError("p", fmt.Errorf("wrapped: %w", refusal))
	assert.Equal(t, "p", named.Plugin)
	assert.Empty(t, refusal.Plugin, "AsError does not change the plugin's value, which can be shared")
	named.Plugin = ""
	assert.Equal(t, refusal, named, "AsError keeps all other fields")

	own := AsError("p", &Error{Kind: KindStale, Plugin: "q"})
	assert.Equal(t, "q", own.Plugin, "AsError keeps an existing name")
}

// agents are the pods of an agent by node.
var agents = Selection{
	Name: "test/agents", Example: &corev1.Pod{}, Namespace: "kube-system",
	Labels: labels.SelectorFromSet(labels.Set{"app": "agent"}), Fields: fields.OneTermEqualSelector("status.phase", "Running"),
	Value: func(o client.Object) string { return o.(*corev1.Pod).Spec.NodeName }, //nolint:forcetypeassert,errcheck // It has the type of the example.
}

func TestSelection_Check(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		change func(s *Selection)
		fails  bool
	}{
		"Complete": {reason: "all required fields are set", change: func(*Selection) {}},
		"All":      {reason: "selectors are optional", change: func(s *Selection) { s.Labels, s.Fields, s.Namespace = nil, nil, "" }},
		"Name":     {reason: "the name identifies the cache", change: func(s *Selection) { s.Name = "" }, fails: true},
		"Example":  {reason: "the kind is unknown", change: func(s *Selection) { s.Example = nil }, fails: true},
		"Together": {reason: "there is only one value", change: func(s *Selection) { s.Value = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := agents
			tc.change(&s)
			err := s.Check()
			assert.Equal(t, tc.fails, err != nil, tc.reason)
			if tc.fails {
				assert.ErrorContains(t, err, "required")
			}
		})
	}
}

func TestTransform(t *testing.T) {
	transform := Transform(func(pod *corev1.Pod) *corev1.Pod { return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}} })
	got, err := transform(gen.Pod("a", gen.BoundTo("node-a")))
	require.NoError(t, err)
	assert.Equal(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, got)
	other := gen.Node("a")
	got, err = transform(other)
	require.NoError(t, err)
	assert.Same(t, other, got, "an object of another type does not change")
}

func TestInvalidParameters(t *testing.T) {
	var all []*Error
	for i := range 7 {
		p := Parameter{Annotation: "a.prebind.dev/" + strconv.Itoa(i), On: Object{Kind: "Pod", Namespace: "default", Name: "web"}}
		all = append(all, p.Invalid("must be %d", i))
	}
	assert.EqualError(t, InvalidParameters(all[:1]), "Pod default/web: annotation a.prebind.dev/0 must be 0; correct the annotation")
	joined := InvalidParameters(all)
	assert.EqualError(t, joined, "Pod default/web: annotation a.prebind.dev/0 must be 0; annotation a.prebind.dev/1 must be 1; "+
		"annotation a.prebind.dev/2 must be 2; annotation a.prebind.dev/3 must be 3; annotation a.prebind.dev/4 must be 4; and 2 more; correct the annotation")
	assert.Len(t, joined.Fields, 5)
	assert.Equal(t, Field{Path: "metadata.annotations[a.prebind.dev/4]", Message: "must be 4"}, joined.Fields[4])
	assert.Equal(t, KindInvalid, joined.Kind)
	assert.Len(t, all[0].Fields, 1, "the errors do not change")
}
