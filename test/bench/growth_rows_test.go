// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/gen"
)

// preFlight selects the time of a plugin's PreFlight, which does not write or wait.
func preFlight(plugin string) ownTime {
	return ownTime{what: "PreFlight", label: fmt.Sprintf("extension_point=%q,plugin=%q", "PreFlight", plugin)}
}

// static measures a bind to one of many free volumes of one class. The number of nodes stays the same.
func static(name string, options func(node string) []gen.VolumeOption) growth {
	const nodes, class = 500, "static"
	return growth{
		name: name, size: 2000, most: 150, controllers: true,
		fill: func(ctx context.Context, g *grown, had, n int) error {
			if had == 0 {
				if err := g.addNodes(ctx, min(nodes, n)); err != nil {
					return err
				}
				if _, err := g.client.StorageV1().StorageClasses().Create(ctx, gen.StorageClass(class, volume.NotSupportedProvisioner), metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			return inParallel(ctx, 32, n-had, func(ctx context.Context, i int) error {
				own := append([]gen.VolumeOption{gen.VolumeOfClass(class)}, options(large((had+i)%g.large))...)
				_, err := g.client.CoreV1().PersistentVolumes().Create(ctx, gen.Volume(fmt.Sprintf("free-%d", had+i), own...), metav1.CreateOptions{})
				return err
			})
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			pods := make([]*corev1.Pod, min(g.most, n/2))
			if err := inParallel(ctx, 16, len(pods), func(ctx context.Context, i int) error {
				name := fmt.Sprintf("static-%d-%d", n, i)
				claim := gen.Claim(name, gen.InNamespace(prebind), gen.OfClass(class))
				if _, err := g.client.CoreV1().PersistentVolumeClaims(prebind).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
					return err
				}
				var err error
				pods[i], err = g.createPod(ctx, name, gen.UsesClaim(name))
				return err
			}); err != nil {
				return err
			}
			if err := g.rest(ctx); err != nil {
				return err
			}
			return g.binds(ctx, n, "bind", len(pods), []ownTime{preFlight("volumebinding")}, func(ctx context.Context, i int) error {
				return g.bindTo(ctx, pods[i], large(i%g.large), nil)
			})
		},
	}
}

func staticLocal() growth {
	return static("static-local", func(node string) []gen.VolumeOption { return []gen.VolumeOption{gen.OnNode(node)} })
}

func staticShared() growth {
	return static("static-shared", func(string) []gen.VolumeOption { return nil })
}

// devices measures a grant of a device, and the work of a replica at rest, with one record per node.
// Each record holds two bound pods with four devices each. Prebind writes the records itself.
func devices() growth {
	const perNode = 2
	return growth{
		name: "devices", size: 500, most: 200,
		fill: func(ctx context.Context, g *grown, had, n int) error {
			if err := g.addNodes(ctx, n); err != nil {
				return err
			}
			return g.turn(ctx, prebind, func(ctx context.Context) error {
				err := inParallel(ctx, 16, perNode*(n-had), func(ctx context.Context, i int) error {
					node := had + i/perNode
					pod, err := g.createPod(ctx, fmt.Sprintf("holder-%d-%d", node, i%perNode))
					if err != nil {
						return err
					}
					gpus := []string{"GPU-0,GPU-1,GPU-2,GPU-3", "GPU-4,GPU-5,GPU-6,GPU-7"}[i%perNode]
					return g.bindTo(ctx, pod, large(node), map[string]string{"device.prebind.dev/gpu": gpus})
				})
				if err != nil {
					return err
				}
				return g.rest(ctx) // Prebind confirms each grant after its bind.
			})
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			if err := g.sinceStart(ctx, n, "start"); err != nil {
				return err
			}
			// Measure the replica at rest before any bind, because Prebind confirms a grant after the bind.
			if err := g.idle(ctx, n, "10 s at rest"); err != nil {
				return err
			}
			pods, err := g.create(ctx, prebind, fmt.Sprintf("grant-%d", n), min(g.most, n), gen.Tolerates(corev1.TaintNodeNotReady))
			if err != nil {
				return err
			}
			if err := g.calm(ctx, prebind); err != nil {
				return err
			}
			own := []ownTime{preFlight("device"), {what: "PreBind", label: `extension_point="PreBind",plugin="device"`}}
			return g.binds(ctx, n, "bind", len(pods), own, func(ctx context.Context, i int) error {
				return g.bindTo(ctx, pods[i], large(i), map[string]string{"device.prebind.dev/gpu": "GPU-" + fmt.Sprint(8+n%7)})
			})
		},
	}
}

// sinceStart adds the usage of the replica since its start.
func (g *grown) sinceStart(ctx context.Context, size int, what string) error {
	now, err := g.usageAfter(ctx)
	if err != nil {
		return err
	}
	g.out.add(prebind, size, what+": API requests", sum(now.metrics, "rest_client_requests_total", ""))
	g.out.add(prebind, size, what+": CPU ms", now.cpu*1e3)
	return nil
}

// marks measures a replica that finds marks on ResourceClaims, which any user with the role edit can write.
// The number of claims stays the same. At the larger size, each claim has ten times as many marks.
func marks() growth {
	const claims = 50
	return growth{
		name: "marks", size: 500, most: 10,
		fill: func(ctx context.Context, g *grown, _, n int) error {
			return inParallel(ctx, 16, claims, func(ctx context.Context, i int) error {
				name := fmt.Sprintf("marked-%d", i)
				annotations := map[string]string{}
				for range max(n/claims, 1) {
					annotations[fmt.Sprintf("resource-claims.prebind.dev/%s.forged00-0000000001", uuid.NewUUID())] = `{"pod":"no-such-pod","node":"node-1"}`
				}
				patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
				if err != nil {
					return err
				}
				api := g.client.ResourceV1().ResourceClaims(prebind)
				if _, err := api.Create(ctx, gen.ResourceClaim(name, gen.InNamespace(prebind), gen.RequestsDevices("any.example.com", 1)), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
					return err
				}
				_, err = api.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "tenant"})
				return err
			})
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			if err := g.sinceStart(ctx, n, "start until rest"); err != nil {
				return err
			}
			return g.idle(ctx, n, "10 s after it")
		},
	}
}
