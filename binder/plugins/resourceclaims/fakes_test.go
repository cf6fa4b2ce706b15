// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/claimed"
	"github.com/prebind/prebind/test/fakeapi"
	"github.com/prebind/prebind/test/gen"
)

const (
	timeout = 10 * time.Minute
	driver  = "gpu.example.com"
	class   = "gpu"
)

// claimOption changes a claim.
type claimOption func(*resourcev1.ResourceClaim)

// theClaim returns a claim in the default namespace that requests one device.
func theClaim(name string, options ...claimOption) *resourcev1.ResourceClaim {
	claim := gen.ResourceClaim(name, gen.UID(types.UID("claim-"+name)), gen.RequestsDevices(class, 1))
	for _, o := range options {
		o(claim)
	}
	return claim
}

// allocated allocates devices from the pool of the node.
func allocated(node string, devices ...string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
		claim.Status.Allocation = &resourcev1.AllocationResult{NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
		for _, device := range devices {
			claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourcev1.DeviceRequestAllocationResult{
				Request: claim.Spec.Devices.Requests[0].Name, Driver: driver, Pool: node, Device: device,
			})
		}
	}
}

// needs sets the binding conditions of all devices.
func needs(conditions, failures []string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		for i := range claim.Status.Allocation.Devices.Results {
			claim.Status.Allocation.Devices.Results[i].BindingConditions = conditions
			claim.Status.Allocation.Devices.Results[i].BindingFailureConditions = failures
		}
	}
}

// says sets the conditions that the driver reports for a device.
func says(device string, conditions map[string]metav1.ConditionStatus) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		status := resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: claim.Status.Allocation.Devices.Results[0].Pool, Device: device}
		for name, is := range conditions {
			status.Conditions = append(status.Conditions, metav1.Condition{Type: name, Status: is, Reason: "Why", Message: "because"})
		}
		claim.Status.Devices = append(claim.Status.Devices, status)
	}
}

// reservedTo reserves the claim for the named pods.
func reservedTo(pods ...string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		for _, pod := range pods {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID("pod-" + pod)})
		}
	}
}

func meta1(m gen.Meta) claimOption {
	return func(claim *resourcev1.ResourceClaim) { m(&claim.ObjectMeta) }
}

// made makes the pod the owner, like a claim from a template.
func made(pod string) claimOption {
	return meta1(gen.OwnedBy("Pod", pod, types.UID("pod-"+pod)))
}

type podChange func(*corev1.Pod)

// thePod returns a pod without a node.
func thePod(changes ...podChange) *corev1.Pod {
	pod := gen.Pod("web", gen.UID("pod-web"))
	for _, change := range changes {
		change(pod)
	}
	return pod
}

// uses makes the pod refer to the named claims.
func uses(claims ...string) podChange {
	return func(pod *corev1.Pod) {
		for _, claim := range claims {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: "of-" + claim, ResourceClaimName: new(claim)})
		}
	}
}

// template makes the pod refer to a template. claim is the name of the claim, or empty if the
// claim does not exist yet.
func template(claim string) podChange {
	const of = "gpu"
	return func(pod *corev1.Pod) {
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, corev1.PodResourceClaim{Name: of, ResourceClaimTemplateName: new("a-template")})
		if claim != "" {
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: of, ResourceClaimName: new(claim)})
		}
	}
}

// extended names the claim for the extended resources of the pod.
func extended(claim string) podChange {
	return func(pod *corev1.Pod) {
		pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
	}
}

// grouped adds the pod to the PodGroup team.
func grouped(pod *corev1.Pod) {
	pod.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: new("team")}
}

// apiServer is the API server of these tests.
type apiServer struct{ *fakeapi.Server }

func newAPI(objects ...client.Object) *apiServer { return &apiServer{Server: fakeapi.New(objects...)} }

// claim returns the claim c, or nil.
func (s *apiServer) claim() *resourcev1.ResourceClaim {
	if claim, ok := fakeapi.Get(s.Server, theClaim("c")); ok {
		return claim
	}
	return nil
}

// change changes the status or another part of the claim c, as another client.
func (s *apiServer) change(manager string, f func(*resourcev1.ResourceClaim)) {
	fakeapi.Change(s.Server, theClaim("c"), manager, f)
}

// replica is one instance of the plugin, with its cache and its connections.
type replica struct {
	*Plugin
	conn *fakeapi.Connection
}

// newReplica returns a replica with its own cache, which has the claims after their transform.
func newReplica(t testing.TB, s *apiServer) *replica {
	t.Helper()
	cached := fakeapi.New()
	follow := func(o client.Object, deleted bool) {
		if claim, ok := o.(*resourcev1.ResourceClaim); ok && deleted {
			cached.Remove(o)
		} else if ok {
			cached.Put(claimed.Trim(claim))
		}
	}
	for _, claim := range fakeapi.All(s.Server, &resourcev1.ResourceClaim{}) {
		follow(claim, false)
	}
	s.OnChange(follow)
	r := &replica{conn: s.Connect()}
	h := framework.Handle{Cached: cached.Cache(), Live: r.conn, Writer: r.conn, Status: r.conn, Wake: func(client.Object) {}, Clock: clock.RealClock{}}
	r.Plugin = New(h, &Arguments{BindingTimeout: metav1.Duration{Duration: timeout}})
	return r
}

// bind returns the context of an attempt to bind the pod to the node.
func bind(pod *corev1.Pod, node, attempt string) *framework.BindContext {
	return &framework.BindContext{Pod: pod, Node: gen.Node(node), Binding: gen.Binding(pod, node), Attempt: attempt}
}

// preFlight runs Setup and PreFlight like the engine.
func (r *replica) preFlight(ctx context.Context, bc *framework.BindContext) (framework.Verdict, error) {
	bc.Now = r.h.Clock.Now()
	bc.Since = bc.Now
	if err := r.SetupBindContextExtension(ctx, r.h.Cached, bc); err != nil {
		return framework.Verdict{}, err
	}
	return r.PreFlight(bc)
}

// PreBind runs PreFlight and PreBind like the engine.
func (r *replica) PreBind(ctx context.Context, bc *framework.BindContext) error {
	v, err := r.preFlight(ctx, bc)
	if err != nil || len(v.Writes) == 0 {
		return err
	}
	return r.Plugin.PreBind(ctx, bc)
}

// confirm returns an error unless the bind may proceed.
func (r *replica) confirm(ctx context.Context, bc *framework.BindContext) error {
	v, err := r.preFlight(ctx, bc)
	if err == nil && (len(v.Writes) > 0 || v.Wait.For != "") {
		err = framework.NotYet(framework.ObjectOf(bc.Pod), "not prepared")
	}
	return err
}

// users returns the names of the consumers that the claim is reserved for.
func users(claim *resourcev1.ResourceClaim) []string {
	names := []string{}
	for _, r := range claim.Status.ReservedFor {
		names = append(names, r.Name)
	}
	return names
}

// ofGroup makes the PodGroup the owner, like a claim from a template.
func ofGroup(group string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		claim.OwnerReferences = append(claim.OwnerReferences, metav1.OwnerReference{
			APIVersion: "scheduling.k8s.io/v1alpha2", Kind: "PodGroup", Name: group, UID: types.UID("group-" + group), Controller: new(true),
		})
	}
}

// reservedToGroup reserves the claim for a PodGroup.
func reservedToGroup(group string) claimOption {
	return func(claim *resourcev1.ResourceClaim) {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{
			APIGroup: "scheduling.k8s.io", Resource: "podgroups", Name: group, UID: types.UID("group-" + group),
		})
	}
}

func bound(pod *corev1.Pod, node string) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

var errDown = errors.New("the API server is down")

// firstRequest answers the first request with the verb.
func firstRequest(verb string, answer func() error) func(fakeapi.Call) error {
	done := false
	return func(w fakeapi.Call) error {
		if w.Verb == verb && !done {
			done = true
			return answer()
		}
		return nil
	}
}

// firstWrite makes the first request with the verb fail.
func firstWrite(verb string, err error) func(fakeapi.Call) error {
	return firstRequest(verb, func() error { return err })
}

// devices returns the names of the devices of the claim.
func devices(claim *resourcev1.ResourceClaim) []string {
	var names []string
	if claim.Status.Allocation != nil {
		for _, r := range claim.Status.Allocation.Devices.Results {
			names = append(names, r.Device)
		}
	}
	return names
}
