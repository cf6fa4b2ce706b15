// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package golden

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/test/gen"
)

// denier is a plugin that denies the bind of the pod named first, in PreFlight or in PreBind.
type denier struct{ inPreFlight bool }

func (denier) Name() string { return "denier" }

func (d denier) PreFlight(bc *framework.BindContext) (framework.Verdict, error) {
	if bc.Written {
		return framework.Verdict{}, nil
	}
	return framework.Verdict{Writes: []string{"deny"}}, d.deny(bc, d.inPreFlight)
}

func (d denier) PreBind(_ context.Context, bc *framework.BindContext) error { return d.deny(bc, true) }

func (denier) PreBindRollBack(context.Context, framework.Mark) error { return nil }

func (denier) PostBind(context.Context, framework.Mark, *corev1.Pod) error { return nil }

func (denier) Marks(context.Context) ([]framework.Mark, error) { return nil, nil }

func (denier) deny(bc *framework.BindContext, now bool) error {
	if now && bc.Pod.Name == "first" {
		return framework.Refuse(framework.Object{}, "the plugin denies the pod first")
	}
	return nil
}

// TestDeniedBindKeepsNoClaim checks that a ReadWriteOncePod claim is free as soon as another plugin denies the bind after the
// PreFlight of volumebinding.
func TestDeniedBindKeepsNoClaim(t *testing.T) {
	for name, inPreFlight := range map[string]bool{"PreFlight": true, "PreBind": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := gen.Claim("data", gen.UID("claim"), gen.AccessModes(corev1.ReadWriteOncePod), gen.BoundToVolume("pv"))
				objects := []client.Object{gen.Node("node-a"), claim, gen.Volume("pv", gen.ClaimRef(claim))}
				pod := func(name string) *corev1.Pod { return gen.Pod(name, gen.UID(types.UID(name)), gen.UsesClaim("data")) }
				p := newPrebind(t, setup{plugins: []on{volumes}, added: []framework.Plugin{denier{inPreFlight: inPreFlight}}}, append(objects, pod("first"), pod("second")))
				defer p.stop(t)
				bind := func(name string) *admissionv1.AdmissionResponse {
					var review admissionv1.AdmissionReview
					response := p.serve(t, reviewOf(gen.Binding(pod(name), "node-a"), false))
					require.NoError(t, json.Unmarshal(response.Body.Bytes(), &review))
					synctest.Wait()
					return review.Response
				}
				require.False(t, bind("first").Allowed)
				second := bind("second")
				assert.True(t, second.Allowed, "%v", second.Result)
			})
		})
	}
}
