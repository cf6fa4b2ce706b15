// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/cluster/clustertest"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

// The variants that take turns.
const (
	none      = "none"      // no webhook
	nothing   = "nothing"   // controller-runtime's server with a handler that does nothing
	constant  = "constant"  // controller-runtime's server with a handler that adds one annotation
	following = "following" // constant with a cache of pending pods
	prebind   = "prebind"   // Prebind as shipped
)

// webhookLabel of a namespace selects the webhook of its Bindings.
const webhookLabel = "bench.prebind.dev/webhook"

const (
	// constantAnnotation is the annotation of the constant webhook.
	constantAnnotation = "bench.prebind.dev/constant"
	// zone is an annotation of Prebind.
	zone = "topology.prebind.dev/zone"
)

// rivals is a control plane with one namespace per variant. The namespace of a pod selects the webhook of its Binding. All
// webhooks are registered and reached in the same way. Only the process of the variant whose turn it is runs.
type rivals struct {
	cluster *cluster.Cluster
	client  kubernetes.Interface
	prebind *install.Prebind
	// targets is the number of nodes that pods are bound to. 0 means three.
	targets int
	// second is the webhook's address of the variant secondVariant.
	second, secondVariant string
	// processes contains the processes of the webhooks by variant, except none.
	processes map[string]*cluster.Process
}

// shipped describes differences from the shipped installation.
type shipped struct {
	// components of config/webhook to add.
	components []string
	// args are additional arguments of the replica.
	args []string
	// second are the additional arguments of another replica, whose variant is secondVariant. Nil means no other replica.
	second        []string
	secondVariant string
}

// newRivals starts the control plane with the nodes, and prepares the variants without starting them.
func newRivals(tb testing.TB, o cluster.Options, nodes []*corev1.Node, s shipped, variants ...string) *rivals {
	tb.Helper()
	ctx := tb.Context()
	c := clustertest.Start(tb, o)
	r := &rivals{cluster: c, processes: map[string]*cluster.Process{}}
	config := c.Config()
	config.ContentType = runtime.ContentTypeProtobuf // As kube-scheduler.
	var err error
	r.client, err = kubernetes.NewForConfig(config)
	require.NoError(tb, err)
	require.NoError(tb, cluster.CreateNodes(ctx, r.client, nodes...))
	binary, err := install.Build(ctx, install.BuildOptions{Dir: c.Dir()})
	require.NoError(tb, err)
	r.prebind, err = install.New(ctx, install.Options{Cluster: c, Binary: binary})
	require.NoError(tb, err)
	start := func(additional []string) *install.Replica {
		replica, err := r.prebind.Start(ctx, append([]string{"-v=0"}, additional...)...) // -v as shipped.
		require.NoError(tb, err)
		require.NoError(tb, replica.Kill())
		return replica
	}
	if len(s.components) > 0 {
		require.NoError(tb, r.prebind.AddComponents(ctx, s.components...))
	}
	replica := start(s.args)
	r.processes[prebind] = replica.Process
	if s.second != nil {
		second := start(s.second)
		r.processes[s.secondVariant], r.second, r.secondVariant = second.Process, second.WebhookAddress(), s.secondVariant
	}
	// Route as for the other webhooks, without a readiness check per connection.
	c.Services().Route(install.Namespace, install.Service, install.ServicePort, cluster.Backend{Address: replica.WebhookAddress()})
	require.NoError(tb, r.register(ctx, variants))
	tb.Cleanup(func() {
		for _, p := range r.processes {
			clustertest.Kill(tb, p)
		}
	})
	return r
}

// register creates the namespaces and the webhook configurations.
func (r *rivals) register(ctx context.Context, variants []string) error {
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", r.webhookProgram(), "./webhook").CombinedOutput(); err != nil {
		return fmt.Errorf("building the other webhooks: %w\n%s", err, out)
	}
	configs := r.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	shipped, err := configs.Get(ctx, "prebind", metav1.GetOptions{})
	if err != nil {
		return err
	}
	for _, variant := range variants {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: variant, Labels: map[string]string{webhookLabel: variant}}}
		if _, err := r.client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	for i, variant := range variants {
		own := forVariant(shipped, variant)
		switch variant {
		case none, kyvernoLive:
			continue
		case admissionPolicy:
			err = r.apply(ctx, "admission-policy.yaml")
		case kyverno:
			err = r.addKyverno(ctx) // For both variants.
		case prebind:
			own.Name, own.ResourceVersion = shipped.Name, shipped.ResourceVersion
			_, err = configs.Update(ctx, own, metav1.UpdateOptions{})
		default:
			port := int32(9000 + i)
			own.Webhooks[0].ClientConfig.Service.Port = &port
			if _, err = configs.Create(ctx, own, metav1.CreateOptions{}); err != nil {
				break
			}
			address := r.second
			if variant != r.secondVariant {
				address, err = r.serve(ctx, variant)
			}
			err = errors.Join(err, r.expose(ctx, variant, port, address))
		}
		if err != nil {
			return fmt.Errorf("registering %s: %w", variant, err)
		}
	}
	return nil
}

// forVariant returns the shipped configuration with a selector for the variant.
func forVariant(shipped *admissionregistrationv1.MutatingWebhookConfiguration, variant string) *admissionregistrationv1.MutatingWebhookConfiguration {
	own := shipped.DeepCopy()
	own.ObjectMeta = metav1.ObjectMeta{Name: "bench-" + variant}
	hook := &own.Webhooks[0]
	hook.NamespaceSelector.MatchExpressions = append(hook.NamespaceSelector.MatchExpressions, metav1.LabelSelectorRequirement{
		Key: webhookLabel, Operator: metav1.LabelSelectorOpIn, Values: []string{variant},
	})
	return own
}

// webhookProgram returns the path of the program of the other webhooks.
func (r *rivals) webhookProgram() string { return filepath.Join(r.cluster.Dir(), "bin", "webhook") }

// serve prepares the process of a variant, and returns its address.
func (r *rivals) serve(ctx context.Context, variant string) (string, error) {
	address, err := r.cluster.ReserveAddress(ctx)
	if err != nil {
		return "", err
	}
	args := []string{"--cert-dir=" + r.prebind.CertDir(), "--bind-address=" + address}
	if variant == constant || variant == following {
		args = append(args, "--annotation="+constantAnnotation)
	}
	if variant == following || variant == informer {
		args = append(args, "--kubeconfig="+r.cluster.Kubeconfig(), fmt.Sprintf("--all-pods=%t", variant == informer))
	}
	r.processes[variant] = cluster.NewProcess(cluster.ProcessOptions{
		Name: variant, Path: r.webhookProgram(), Args: args, LogFile: filepath.Join(r.cluster.Dir(), "logs", variant+".log"),
		Health: func(ctx context.Context) error {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err == nil {
				err = conn.Close()
			}
			return err
		},
	})
	return address, nil
}

// expose adds a port for a variant to Prebind's Service. The variant therefore has the same certificate.
func (r *rivals) expose(ctx context.Context, variant string, port int32, address string) error {
	services := r.client.CoreV1().Services(install.Namespace)
	service, err := services.Get(ctx, install.Service, metav1.GetOptions{})
	if err != nil {
		return err
	}
	service.Spec.Ports = append(service.Spec.Ports, corev1.ServicePort{Name: variant, Port: port})
	if _, err := services.Update(ctx, service, metav1.UpdateOptions{}); err != nil {
		return err
	}
	r.cluster.Services().Route(install.Namespace, install.Service, port, cluster.Backend{Address: address})
	return nil
}

// turn runs do while only the process of the variant runs.
func (r *rivals) turn(ctx context.Context, variant string, do func(ctx context.Context) error) error {
	process := r.processes[variant]
	if process == nil {
		return do(ctx)
	}
	start, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := process.Run(start)
	if err == nil {
		err = do(ctx)
	}
	return errors.Join(err, process.Err(), process.Kill())
}

// calm waits until the control plane and the variant are idle.
func (r *rivals) calm(ctx context.Context, variant string) error {
	var pids []int
	if benchmarks() { // Tests run in parallel in this process.
		pids = append(pids, os.Getpid())
	}
	for _, p := range []*cluster.Process{
		r.cluster.Process(cluster.Etcd), r.cluster.Process(cluster.APIServer), r.cluster.Process(cluster.ControllerManager), r.processes[variant],
	} {
		if runs(p) {
			pids = append(pids, p.PID())
		}
	}
	return calm(ctx, pids...)
}

// benchmarks reports whether this process runs benchmarks.
func benchmarks() bool { return flag.Lookup("test.bench").Value.String() != "" }

// runs reports whether the process runs. It may be nil.
func runs(p *cluster.Process) bool {
	if p == nil {
		return false
	}
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// used is CPU time in seconds.
type used struct{ own, apiServer float64 }

// used returns the CPU time of the variant's process, if any, and of kube-apiserver.
func (r *rivals) used(variant string) (used, error) {
	var u used
	var err error
	if p := r.processes[variant]; p != nil {
		if u.own, err = processor(p.PID()); err != nil {
			return u, err
		}
	}
	u.apiServer, err = processor(r.cluster.Process(cluster.APIServer).PID())
	return u, err
}

// check checks that a bound pod has the annotations of the variant only.
func (r *rivals) check(ctx context.Context, variant, pod string) error {
	got, err := r.client.CoreV1().Pods(variant).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return err
	}
	own := map[string]string{
		constant: constantAnnotation, following: constantAnnotation, admissionPolicy: constantAnnotation,
		kyverno: copiedZone, kyvernoLive: copiedZone, prebind: zone, r.secondVariant: zone,
	}[variant]
	for _, key := range []string{constantAnnotation, copiedZone, zone} {
		if _, found := got.Annotations[key]; got.Spec.NodeName == "" || found != (key == own) {
			return fmt.Errorf("pod %s/%s on %q does not have the annotations of its webhook: %v", variant, pod, got.Spec.NodeName, got.Annotations)
		}
	}
	return nil
}

// create creates n pods in the variant's namespace that no scheduler binds.
func (r *rivals) create(ctx context.Context, variant, prefix string, n int, options ...gen.PodOption) ([]*corev1.Pod, error) {
	pods := make([]*corev1.Pod, n)
	err := inParallel(ctx, 16, n, func(ctx context.Context, i int) error {
		own := append([]gen.PodOption{gen.InNamespace(variant), gen.EndsAtOnce(), gen.Scheduler("unscheduled")}, options...)
		var err error
		pods[i], err = r.client.CoreV1().Pods(variant).Create(ctx, gen.Pod(fmt.Sprintf("%s-%d", prefix, i), own...), metav1.CreateOptions{})
		return err
	})
	return pods, err
}

// forgetLeases deletes the Leases of killed replicas, so that the next replica becomes the leader immediately.
func (r *rivals) forgetLeases(ctx context.Context) error {
	return r.client.CoordinationV1().Leases(install.Namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// clear deletes all pods of the variant.
func (r *rivals) clear(ctx context.Context, variant string) error {
	return r.client.CoreV1().Pods(variant).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}
