// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/component-helpers/storage/volume"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
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
			if err := g.idle(ctx, n, "10 s at rest", g.window()); err != nil {
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

const (
	ownedClass = "owned.example.com"
	perPool    = 8
)

// owned measures the allocation of a claim of a class that belongs to Prebind, and its rejection on a node
// without a free device. All devices of the other nodes are allocated. One more node with free devices
// exists for each size.
func owned() growth {
	return growth{
		name: "owned", size: 400, most: 40,
		shipped: withArgs([]string{"plugins/resource-claims-allocate"}, "--resource-claims-allocate="+ownedClass),
		fill: func(ctx context.Context, g *grown, had, n int) error {
			if had == 0 {
				if _, err := g.client.ResourceV1().DeviceClasses().Create(ctx, gen.DeviceClass(ownedClass), metav1.CreateOptions{}); err != nil {
					return err
				}
			}
			pools := (n + perPool - 1) / perPool
			if err := g.addNodes(ctx, pools+1); err != nil {
				return err
			}
			first := (had + perPool - 1) / perPool
			if err := inParallel(ctx, 16, pools-first, func(ctx context.Context, i int) error { return g.fullPool(ctx, large(first+i)) }); err != nil {
				return err
			}
			// One node has free devices. Its name contains the size.
			free := fmt.Sprintf("free-%d", n)
			if err := g.addNode(ctx, cluster.Node(free)); err != nil {
				return err
			}
			_, err := g.client.ResourceV1().ResourceSlices().Create(ctx, gen.ResourceSlice(ownedClass, free, gen.Devices("device", g.most)...), metav1.CreateOptions{})
			return err
		},
		measure: func(ctx context.Context, g *grown, n int) error {
			const rejections = 3
			pods := make([]*corev1.Pod, g.most)
			if err := inParallel(ctx, 8, len(pods), func(ctx context.Context, i int) (err error) {
				pods[i], err = g.createClaimant(ctx, fmt.Sprintf("owned-%d-%d", n, i))
				return err
			}); err != nil {
				return err
			}
			if err := g.calm(ctx, prebind); err != nil {
				return err
			}
			last := len(pods) - rejections
			if err := g.binds(ctx, n, "allocation", last, nil, func(ctx context.Context, i int) error {
				return g.bindTo(ctx, pods[i], fmt.Sprintf("free-%d", n), nil)
			}); err != nil {
				return err
			}
			return g.binds(ctx, n, "rejection", rejections, nil, func(ctx context.Context, i int) error {
				return g.bindRefused(ctx, pods[last+i], large(0), "no free devices")
			})
		},
	}
}

// withArgs returns an installation with additional components and arguments.
func withArgs(components []string, args ...string) shipped {
	return shipped{components: components, args: fixed(args)}
}

// createClaimant creates a pod with a claim of the owned class.
func (g *grown) createClaimant(ctx context.Context, name string) (*corev1.Pod, error) {
	claim := gen.ResourceClaim(name, gen.InNamespace(prebind), gen.RequestsDevices(ownedClass, 1))
	if _, err := g.client.ResourceV1().ResourceClaims(prebind).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return g.createPod(ctx, name, gen.UsesResourceClaim(name))
}

// fullPool creates the node's slice, claims that use all of its devices, and the pool's record as
// described in docs/resource-claims.md.
func (g *grown) fullPool(ctx context.Context, node string) error {
	if _, err := g.client.ResourceV1().ResourceSlices().Create(ctx, gen.ResourceSlice(ownedClass, node, gen.Devices("device", perPool)...), metav1.CreateOptions{}); err != nil {
		return err
	}
	data := map[string]string{"driver": ownedClass, "pool": node}
	for d := range perPool {
		device := gen.Device(fmt.Sprintf("device-%d", d))
		name := fmt.Sprintf("%s-%d", node, d)
		made := gen.ResourceClaim(name, gen.InNamespace(prebind), gen.RequestsDevices(ownedClass, 1),
			gen.AllocatedFor(node, ownedClass, device), gen.ReservedForPod(name, uuid.NewUUID()))
		made.Finalizers = []string{resourcev1.Finalizer}
		status := made.Status
		claim, err := g.client.ResourceV1().ResourceClaims(prebind).Create(ctx, made, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		claim.Status = status
		if _, err := g.client.ResourceV1().ResourceClaims(prebind).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return err
		}
		entry, err := json.Marshal(map[string]any{"claim": prebind + "/" + name, "uid": claim.UID, "version": claim.ResourceVersion, "attempt": "ended000-0000000001"})
		if err != nil {
			return err
		}
		data["device."+device.Name] = string(entry)
	}
	hash := sha256.Sum256([]byte(ownedClass + "\n" + node))
	record := &corev1.ConfigMap{Data: data, ObjectMeta: metav1.ObjectMeta{
		Namespace: install.Namespace, Name: "prebind-pool-" + hex.EncodeToString(hash[:16]),
		Labels: map[string]string{"app.kubernetes.io/component": "prebind-pool-record", "app.kubernetes.io/managed-by": "prebind"},
	}}
	_, err := g.client.CoreV1().ConfigMaps(install.Namespace).Create(ctx, record, metav1.CreateOptions{})
	return err
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
					annotations[fmt.Sprintf("resource-claims.prebind.dev/%s.forged00-0000000001", uuid.NewUUID())] = `{"pod":"no-such-pod","node":"node-1","allocated":true}`
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
			return g.idle(ctx, n, "10 s after it", g.window())
		},
	}
}
