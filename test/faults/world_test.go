// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/storage/volume"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	ns = "faults"
	// nodes is the number of nodes. Each node has the given number of devices of each kind.
	nodes   = 6
	devices = 8
	// replicas is the number of replicas that faults target.
	replicas = 2
	// unreserved is the DeviceClass of claims that their scheduler allocates but does not reserve. scheduled is the one of
	// claims that kube-scheduler allocates and reserves. Their templates have the same names.
	unreserved = "unreserved.example.com"
	scheduled  = "scheduled.example.com"
	// openKey is a label of nodes that some pods wait for.
	openKey = "faults.example.com/open"
	// lateKey is an annotation of Bindings that the API server rejects after Prebind has allowed them, by a policy of this name.
	lateKey = "late.faults.example.com"
)

// world is a control plane with replicas. Each replica uses a separate proxy to the API server.
type world struct {
	cluster  *cluster.Cluster
	prebind  *install.Prebind
	client   kubernetes.Interface
	watcher  client.WithWatch
	replicas []*replica
	ledger   *ledger
	// disturbed records the replicas that faults affect.
	disturbed *disturbances
	// disk is the folder of a small disk for etcd, if there is one.
	disk string
}

type replica struct {
	*install.Replica
	// wrong is the constant offset of its clock.
	wrong time.Duration
	proxy *cluster.APIProxy
	// debug is the address of /debug.
	debug string
	// atFirst contains its goroutines and memory before the load.
	atFirst held
}

// newWorld starts a cluster with n replicas. Faults target only the first of them.
func newWorld(t *testing.T, binary string, n int, o cluster.Options) *world {
	t.Helper()
	c := clustertest.Start(t, o)
	w := &world{cluster: c, client: c.Client(), disturbed: newDisturbances(n)}
	var err error
	w.watcher, err = client.NewWithWatch(c.Config(), client.Options{})
	require.NoError(t, err)
	open := cluster.WithLabels(map[string]string{openKey: "yes"})
	require.NoError(t, cluster.CreateNodes(t.Context(), w.client, cluster.Nodes("node", nodes, open)...))
	w.prebind, err = install.New(t.Context(), install.Options{Cluster: w.cluster, Binary: binary, Clock: true})
	require.NoError(t, err)
	require.NoError(t, w.prebind.AddComponents(t.Context(), "plugins/policy"))
	w.startReplica(t)
	w.policies(t)
	for range n - 1 {
		w.startReplica(t) // It is ready when it has the policies.
	}
	w.objects(t)
	w.ledger = newLedger(t, w)
	for _, r := range w.replicas {
		r.atFirst = r.settledAtFirst(t)
	}
	return w
}

func (w *world) startReplica(t *testing.T) {
	t.Helper()
	proxy, err := w.cluster.NewAPIProxy(w.prebind.Kubeconfig(), t.TempDir())
	require.NoError(t, err)
	t.Cleanup(proxy.Close)
	// Sample every 16 KiB instead of every 512 KiB, because the permitted growth is small.
	w.prebind.Setenv("GODEBUG", "memprofilerate=16384")
	w.prebind.Setenv("GOGC", "100") // Its memory is limited as in production.
	debug, err := w.cluster.ReserveAddress(t.Context())
	require.NoError(t, err)
	started, err := w.prebind.Start(t.Context(), "--kubeconfig="+proxy.Kubeconfig, "--debug-bind-address="+debug)
	require.NoError(t, err)
	r := &replica{Replica: started, proxy: proxy, debug: debug}
	t.Cleanup(func() {
		_ = r.Kill()
		if t.Failed() {
			t.Logf("last lines of the log of %s:\n%s", r.Name(), r.Tail(60))
		}
	})
	w.replicas = append(w.replicas, r)
}

// objects creates the namespace and all objects that pods need.
func (w *world) objects(t *testing.T) {
	t.Helper()
	create := func(objects ...client.Object) {
		for _, o := range objects {
			require.NoError(t, w.watcher.Create(t.Context(), o), "%T %s", o, o.GetName())
		}
	}
	create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}})
	require.NoError(t, cluster.WaitForPods(t.Context(), w.client, ns))
	create(
		gen.StorageClass("dynamic", cluster.ProvisionerName, gen.Parameter("delay", "500ms")),
		gen.StorageClass("slow", cluster.ProvisionerName, gen.Parameter("delay", "6s")),
		gen.StorageClass("static", volume.NotSupportedProvisioner),
	)
	for _, class := range []string{unreserved, scheduled} {
		create(gen.ResourceClaimTemplate(strings.TrimSuffix(class, ".example.com"), gen.InNamespace(ns), gen.RequestsDevices(class, 1)))
	}
	create(gen.DeviceClass(scheduled))
	create(
		&admissionregistrationv1.ValidatingAdmissionPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: lateKey},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
				MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
						Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}},
					},
				}}},
				Validations: []admissionregistrationv1.Validation{{Expression: fmt.Sprintf("!(%q in object.metadata.?annotations.orValue({}))", lateKey)}},
			},
		},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			ObjectMeta: metav1.ObjectMeta{Name: lateKey},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: lateKey, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		},
	)
	for n := range nodes {
		create(gen.ResourceSlice(scheduled, nodeName(n), gen.Devices("device", devices)...))
	}
}

func nodeName(n int) string { return fmt.Sprintf("node-%d", n+1) }

// setOpen sets the label that some pods wait for on all nodes. It returns the last error of the API server.
func (w *world) setOpen(ctx context.Context, value string) error {
	var last error
	for n := range nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(n)}}
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, openKey, value)
		if err := w.watcher.Patch(ctx, node, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
			last = err
		}
	}
	return last
}

// logs returns the log lines of replicas that report a data race, a panic or a fatal error.
func (w *world) logs() []string {
	var found []string
	for _, r := range w.replicas {
		content, err := os.ReadFile(r.LogFile())
		if err != nil {
			found = append(found, err.Error())
		}
		for line := range strings.SplitSeq(string(content), "\n") {
			for _, word := range []string{"DATA RACE", "panic:", "panicked", "fatal error:"} {
				if strings.Contains(line, word) {
					found = append(found, r.Name()+": "+line)
				}
			}
		}
	}
	return found
}
