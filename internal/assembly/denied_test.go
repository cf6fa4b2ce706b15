// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"context"
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
)

var volumes = schema.GroupResource{Resource: "persistentvolumes"}

// unstreamed is a client without streamed lists.
type unstreamed struct{}

func (unstreamed) IsWatchListSemanticsUnSupported() bool { return true }

// A rejected watch has a record until it succeeds.
func TestDenied(t *testing.T) {
	forbidden := apierrors.NewForbidden(volumes, "", errors.New(`User "prebind" cannot list resource "persistentvolumes"`))
	var lists, watches error
	version := 0
	reflector := toolscache.NewReflector(toolscache.ToListWatcherWithWatchListSemantics(&toolscache.ListWatch{
		ListWithContextFunc: func(context.Context, metav1.ListOptions) (runtime.Object, error) {
			version++
			return &corev1.PersistentVolumeList{ListMeta: metav1.ListMeta{ResourceVersion: strconv.Itoa(version)}}, lists
		},
		WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) {
			w := watch.NewFake()
			w.Stop()
			return w, watches
		},
	}, unstreamed{}), &corev1.PersistentVolume{}, toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), 0)

	f := &denied{}
	f.usedBy(&corev1.PersistentVolume{}, "PreBind plugin volumebinding")
	f.usedBy(&corev1.PersistentVolume{}, "PreBind plugin node-ready")
	// run runs the reflector until its watch ends.
	run := func(listFails, watchFails error) error {
		lists, watches = listFails, watchFails
		if err := reflector.ListAndWatchWithContext(t.Context()); err != nil {
			f.handle(t.Context(), reflector, err)
		}
		return f.err()
	}
	require.NoError(t, f.err())
	err := run(forbidden, nil)
	require.ErrorIs(t, err, forbidden)
	for _, words := range []string{"PreBind plugin volumebinding: ", "cannot list resource", "apply its role of this version, or switch it off"} {
		require.ErrorContains(t, err, words)
	}
	assert.NotContains(t, err.Error(), "\n")
	require.EqualError(t, run(forbidden, nil), err.Error())
	missing := apierrors.NewNotFound(volumes, "")
	require.ErrorContains(t, run(missing, nil), "the API server does not serve a kind")
	require.NoError(t, run(nil, nil), "the permission is granted")
	require.NoError(t, run(errors.New("unavailable"), nil), "another error is not a missing permission")
	require.ErrorIs(t, run(forbidden, nil), forbidden, "the permission is lost")
	require.ErrorIs(t, run(nil, forbidden), forbidden, "a list without a watch is not enough")
	require.NoError(t, run(nil, nil))
}
