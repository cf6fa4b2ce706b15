// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	claim  = Object{Kind: "PersistentVolumeClaim", Namespace: "shop", Name: "data"}
	node   = Object{Kind: "Node", Name: "node-a"}
	errRaw = errors.New("raw")
)

func TestErrorText(t *testing.T) {
	cases := map[string]struct {
		reason string
		err    *Error
		want   string
	}{
		"All": {
			reason: "plugin, object, message and advice, in one line",
			err:    &Error{Kind: KindRefuse, Plugin: "volumebinding", Object: claim, Message: "it is gone", Advice: "make it"},
			want:   "volumebinding: PersistentVolumeClaim shop/data: it is gone; make it",
		},
		"ClusterScoped": {reason: "no namespace, no slash", err: Refuse(node, "it is gone"), want: "Node node-a: it is gone"},
		"NoObject":      {reason: "the zero Object names none", err: Wait(Object{}, "%d of %d", 1, 2), want: "1 of 2"},
		"Advise":        {reason: "advice is formatted", err: Stale(node, "no").Advise("take %s", "another"), want: "Node node-a: no; take another"},
		"NoAdvice":      {reason: "advice may be missing", err: &Error{Kind: KindInternal, Plugin: "p", Message: "m"}, want: "p: m"},
		"Internal":      {reason: "the cause is the message", err: Internal(claim, errRaw), want: "PersistentVolumeClaim shop/data: raw"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tc.want, tc.err.Error(), tc.reason) })
	}
}

func TestKinds(t *testing.T) {
	made := map[Kind]*Error{
		KindRefuse: Refuse(node, "a"), KindWait: Wait(node, "a"), KindStale: Stale(node, "a"), KindInternal: Internal(node, errRaw),
	}
	for kind, err := range made {
		assert.Equal(t, kind, err.Kind)
		assert.Equal(t, node, err.Object)
		for other := range made {
			assert.Equal(t, kind == other, IsKind(fmt.Errorf("wrapped: %w", err), other))
		}
	}
	assert.False(t, IsKind(nil, KindRefuse), "no error is of no kind")
	assert.False(t, IsKind(errRaw, KindInternal), "only AsError makes a foreign error internal")
	assert.ErrorIs(t, Refuse(node, "a").Because(errRaw), errRaw, "the cause is kept")
	assert.NoError(t, errors.Unwrap(Refuse(node, "a")), "or there is none")
}

func TestFromAPI(t *testing.T) {
	resource := schema.GroupResource{Resource: "nodes"}
	cases := map[string]struct {
		reason string
		err    error
		want   Kind
	}{
		"Conflict":      {reason: "another was faster", err: apierrors.NewConflict(resource, "a", errRaw), want: KindWait},
		"Overloaded":    {reason: "it asks for patience", err: apierrors.NewTooManyRequestsError("slow"), want: KindWait},
		"ServerTimeout": {reason: "it asks for another try", err: apierrors.NewServerTimeout(resource, "get", 1), want: KindWait},
		"Timeout":       {reason: "it was too slow this time", err: apierrors.NewTimeoutError("slow", 1), want: KindWait},
		"Unavailable":   {reason: "it is restarting", err: apierrors.NewServiceUnavailable("restarting"), want: KindWait},
		"Wrapped":       {reason: "wrapping changes nothing", err: fmt.Errorf("x: %w", apierrors.NewServiceUnavailable("restarting")), want: KindWait},
		"Forbidden":     {reason: "a permission does not come by waiting", err: apierrors.NewForbidden(resource, "a", errRaw), want: KindInternal},
		"NotFound":      {reason: "callers handle a missing object before", err: apierrors.NewNotFound(resource, "a"), want: KindInternal},
		"Internal":      {reason: "the API server's own mistake", err: apierrors.NewInternalError(errRaw), want: KindInternal},
		"Unknown":       {reason: "no answer of the API server at all", err: errRaw, want: KindInternal},
		"Deadline":      {reason: "it was too slow for the call", err: fmt.Errorf("get: %w", context.DeadlineExceeded), want: KindWait},
		"Refused":       {reason: "it is restarting", err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, want: KindWait},
		"Reset":         {reason: "it is restarting", err: &net.OpError{Op: "read", Err: syscall.ECONNRESET}, want: KindWait},
		"EOF":           {reason: "it went away in the middle of an answer", err: io.ErrUnexpectedEOF, want: KindWait},
		"Context":       {reason: "the caller ended the request, which is not a failure", err: fmt.Errorf("get: %w", context.Canceled), want: KindWait},
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
	assert.Nil(t, AsError("p", nil), "no error stays none")

	foreign := AsError("p", errRaw)
	assert.Equal(t, KindInternal, foreign.Kind, "an error of any other type is the plugin's failure")
	assert.Equal(t, "p", foreign.Plugin)
	require.ErrorIs(t, foreign, errRaw)

	refusal := Refuse(claim, "no").Advise("yes").Because(errRaw)
	named := AsError("p", fmt.Errorf("wrapped: %w", refusal))
	assert.Equal(t, "p", named.Plugin)
	assert.Empty(t, refusal.Plugin, "the plugin's own value, which may be shared, is not changed")
	named.Plugin = ""
	assert.Equal(t, refusal, named, "everything else is kept")

	own := AsError("p", &Error{Kind: KindStale, Plugin: "q"})
	assert.Equal(t, "q", own.Plugin, "a name that is there stays")
}
