// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
	"github.com/prebind/prebind/test/install"
)

const (
	markPrefix = "resource-claims.prebind.dev/"
	component  = "app.kubernetes.io/component"
)

func claims() client.ObjectList { return &resourcev1.ResourceClaimList{} }

// records returns a list for ConfigMaps.
func records() client.ObjectList { return &corev1.ConfigMapList{} }

// attempts returns the number of attempts in progress from the replica's metrics.
func (r *replica) attempts(ctx context.Context) (float64, error) {
	text, err := r.Metrics(ctx)
	if err != nil {
		return 0, err
	}
	sum, found := install.Sum(text, "prebind_attempts", "")
	if !found {
		return 0, fmt.Errorf("%s does not report its number of attempts", r.Name())
	}
	return sum, nil
}

// state contains all objects at one time.
type state struct {
	*world
	pods    map[types.UID]*corev1.Pod
	claims  map[string]*corev1.PersistentVolumeClaim
	volumes map[string]*corev1.PersistentVolume
	devices []*resourcev1.ResourceClaim
	events  map[types.UID]bool
	records []corev1.ConfigMap
	found   []string
}

func (s *state) odd(format string, args ...any) {
	s.found = append(s.found, fmt.Sprintf(format, args...))
}

// untilClean checks the state until there is no problem or the timeout expires. It returns and logs the remaining problems.
func (w *world) untilClean(t *testing.T, l *load, most time.Duration) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	var left []string
	began, logged := time.Now(), time.Time{}
	for {
		found, err := w.left(ctx, l)
		if ctx.Err() != nil {
			return left
		}
		if left = found; err != nil {
			left = []string{err.Error()}
		}
		if len(left) == 0 {
			return nil
		}
		if time.Since(logged) > 20*time.Second {
			logged = time.Now()
			t.Logf("after %s, %d problems remain, such as: %s", time.Since(began).Round(time.Second), len(left), strings.Join(left[:min(3, len(left))], "; "))
		}
		pause(ctx, 3*time.Second)
	}
}

// left returns the problems of a cluster at rest. It uses only the API and the metrics.
func (w *world) left(ctx context.Context, l *load) ([]string, error) {
	s, err := w.look(ctx)
	if err != nil {
		return nil, err
	}
	s.checkPods(l)
	s.checkVolumes()
	s.checkRecords()
	s.checkClaims()
	err = s.checkReplicas(ctx)
	return s.found, err
}

// look reads all objects.
func (w *world) look(ctx context.Context) (*state, error) {
	s := &state{
		world: w, pods: map[types.UID]*corev1.Pod{}, claims: map[string]*corev1.PersistentVolumeClaim{},
		volumes: map[string]*corev1.PersistentVolume{}, events: map[types.UID]bool{},
	}
	in := func(namespace string, list client.ObjectList, see func(client.Object)) error {
		if err := w.watcher.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
		each(list, see)
		return nil
	}
	see := func(o client.Object) {
		switch o := o.(type) {
		case *corev1.Pod:
			s.pods[o.UID] = o
		case *corev1.PersistentVolumeClaim:
			s.claims[o.Name] = o
		case *corev1.PersistentVolume:
			s.volumes[o.Name] = o
		case *resourcev1.ResourceClaim:
			s.devices = append(s.devices, o)
		case *eventsv1.Event:
			s.events[o.Regarding.UID] = true
		case *corev1.ConfigMap:
			s.records = append(s.records, *o)
		}
	}
	for _, list := range []client.ObjectList{&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, claims(), &eventsv1.EventList{}} {
		if err := in(ns, list, see); err != nil {
			return nil, err
		}
	}
	return s, in(install.Namespace, records(), see)
}

// checkPods checks that each pod is bound, or that its events or its client's last response contain the reason.
func (s *state) checkPods(l *load) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for uid, node := range l.allowed {
		if was := s.ledger.boundTo(uid); was != node && (was != "" || s.pods[uid] != nil) {
			s.odd("a client got success for the bind of pod %s to %s, but the pod is bound to %q", uid, node, was)
		}
	}
	for uid, pod := range s.pods {
		explained := s.events[uid] || pod.Spec.SchedulerName == byHand && l.answers[pod.Name] != ""
		if pod.Spec.NodeName == "" && !explained {
			s.odd("the pod %s is pending, and no event or response contains a reason", pod.Name)
		}
	}
}

// checkVolumes checks that the claims of bound pods have volumes, and that the nodes can reach them.
func (s *state) checkVolumes() {
	for _, pod := range s.pods {
		for _, v := range pod.Spec.Volumes {
			if v.PersistentVolumeClaim == nil {
				continue
			}
			claim := s.claims[v.PersistentVolumeClaim.ClaimName]
			if claim == nil {
				continue // The load deleted the claim, but failed to delete the pod.
			}
			if claim.Status.Phase == corev1.ClaimLost {
				s.odd("the claim %s is lost", claim.Name)
			}
			if pod.Spec.NodeName == "" {
				continue
			}
			pv := s.volumes[claim.Spec.VolumeName]
			switch {
			case pv == nil || claim.Annotations[volume.AnnBindCompleted] == "":
				s.odd("the pod %s is bound to %s, but its claim %s is bound to %q", pod.Name, pod.Spec.NodeName, claim.Name, claim.Spec.VolumeName)
			case pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID:
				s.odd("the volume %s of the claim %s belongs to another claim", pv.Name, claim.Name)
			case volume.CheckNodeAffinity(pv, nodeLabels(pod.Spec.NodeName)) != nil:
				s.odd("the volume %s of the pod %s cannot be reached from %s", pv.Name, pod.Name, pod.Spec.NodeName)
			}
		}
	}
}

// nodeLabels returns the labels that node affinity of volumes selects.
func nodeLabels(name string) map[string]string {
	for _, node := range cluster.Nodes("node", nodes) {
		if node.Name == name {
			return node.Labels
		}
	}
	return nil
}

// checkRecords checks that the records of devices contain the devices of exactly the bound pods.
func (s *state) checkRecords() {
	recorded := map[types.UID]bool{}
	for _, record := range s.records {
		if record.Labels[component] != "prebind-device-record" {
			continue
		}
		for key, text := range record.Data {
			var entry struct {
				Bound bool `json:"bound"`
			}
			pod := s.pods[types.UID(key)]
			switch {
			case key == "node":
			case key == "node-lock":
				s.odd("the record %s is locked: %s", record.Name, text)
			case json.Unmarshal([]byte(text), &entry) != nil:
				s.odd("the record %s has %s", record.Name, text)
			case pod == nil:
				s.odd("the record %s has devices for a deleted pod: %s", record.Name, text)
			case !entry.Bound || pod.Spec.NodeName != record.Data["node"]:
				s.odd("the record %s has devices for the pod %s, which is bound to %q: %s", record.Name, pod.Name, pod.Spec.NodeName, text)
			default:
				recorded[pod.UID] = true
			}
		}
	}
	for uid, pod := range s.pods {
		if pod.Spec.NodeName != "" && len(devicesOf(pod)) > 0 && !recorded[uid] {
			s.odd("the pod %s is bound to %s with the devices %v, but no record contains them", pod.Name, pod.Spec.NodeName, devicesOf(pod))
		}
	}
}

// checkClaims checks that ResourceClaims are reserved only for existing pods and have no marks, and that each device is
// allocated to one claim. A pod without a scheduler must also be bound.
func (s *state) checkClaims() {
	holders := map[string]string{}
	for _, claim := range s.devices {
		for _, r := range claim.Status.ReservedFor {
			if pod := s.pods[r.UID]; pod == nil || pod.Spec.NodeName == "" && pod.Spec.SchedulerName == byHand {
				s.odd("the claim %s is reserved for the pod %s, which is deleted or not bound", claim.Name, r.Name)
			}
		}
		for key := range claim.Annotations {
			if strings.HasPrefix(key, markPrefix) {
				s.odd("the claim %s is marked: %s", claim.Name, key)
			}
		}
		for _, device := range given(claim) {
			if holders[device] != "" {
				s.odd("the device %s is allocated to the claims %s and %s", device, holders[device], claim.Name)
			}
			holders[device] = claim.Name
		}
		s.checkUsers(claim)
	}
}

// checkUsers checks that the claims of each bound pod are reserved for it. kube-controller-manager creates a second claim from a template
// if it misses the answer to its first request. The status of the pod then has the second one.
func (s *state) checkUsers(claim *resourcev1.ResourceClaim) {
	for _, owner := range claim.OwnerReferences {
		pod := s.pods[owner.UID]
		if pod == nil || pod.Spec.NodeName == "" || !slices.ContainsFunc(pod.Status.ResourceClaimStatuses,
			func(of corev1.PodResourceClaimStatus) bool { return ptr.Deref(of.ResourceClaimName, "") == claim.Name }) {
			continue
		}
		reserved := false
		for _, r := range claim.Status.ReservedFor {
			reserved = reserved || r.UID == pod.UID
		}
		if !reserved || len(given(claim)) == 0 {
			s.odd("the pod %s is bound to %s, but its claim %s is not reserved for it", pod.Name, pod.Spec.NodeName, claim.Name)
		}
	}
}

// checkReplicas checks that the replicas are idle and hold no more goroutines or memory than permitted.
func (s *state) checkReplicas(ctx context.Context) error {
	for _, r := range s.replicas {
		now, err := r.attempts(ctx)
		if err != nil {
			return err
		}
		if now != 0 {
			s.odd("%s has %v attempts", r.Name(), now)
		}
	}
	leases, err := s.client.CoordinationV1().Leases(install.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, lease := range leases.Items {
		for key, value := range lease.Annotations {
			if strings.HasSuffix(key, "/status") && strings.Contains(value, `"inFlight"`) {
				s.odd("the lease %s contains binds in progress: %s", lease.Name, value)
			}
		}
	}
	if len(s.found) > 0 {
		return nil // A busy replica needs memory for its work.
	}
	heap, ours := int64(moreHeap), int64(moreOurs)
	if *attacked {
		heap, ours = moreHeapAttacked, moreOursAttacked
	}
	if *soak > 0 {
		heap, ours = math.MaxInt32, math.MaxInt32 // steady judges: client-go keeps the events of attacks for up to 12 minutes.
	}
	for _, r := range s.replicas {
		now, err := r.held(ctx)
		if err != nil {
			return err
		}
		for _, problem := range now.grown(r.atFirst, heap, ours) {
			s.odd("%s %s", r.Name(), problem)
		}
	}
	return nil
}

// TestLedger checks that the ledger reports every violation and no permitted state.
func TestLedger(t *testing.T) {
	pod := func(name, node, gpu string) *corev1.Pod {
		return gen.Pod(name, gen.UID(types.UID(name)), gen.BoundTo(node), gen.Annotation("device.prebind.dev/gpu", gpu))
	}
	claim := func(name, device string) *resourcev1.ResourceClaim {
		return gen.ResourceClaim(name, gen.UID(types.UID(name)), gen.RequestsDevices("d", 1), gen.AllocatedFor("node-1", "d", gen.Device(device)))
	}
	cases := map[string]struct {
		reason string
		see    func(l *ledger)
		wrong  int
	}{
		"Moved":      {reason: "a pod must not move to another node", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "")); l.pod(nil, pod("a", "node-2", "")) }},
		"Unbound":    {reason: "a bound pod must not become pending again", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "")); l.pod(nil, pod("a", "", "")) }},
		"TwoHolders": {reason: "two pods must not hold the same device", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1")); l.pod(nil, pod("b", "node-1", "1")) }},
		"TooMuch":    {reason: "the shares of a device must not exceed 1", wrong: 1, see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1:0.5")); l.pod(nil, pod("b", "node-1", "2,1")) }},
		"Undecided":  {reason: "the policy decides every bind for its own user", wrong: 1, see: func(l *ledger) { l.pod(nil, gen.Pod("a", gen.BoundTo("node-1"), gen.Scheduler(byHand))) }},
		"Halves":     {reason: "two pods may share a device", see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1:0.5")); l.pod(nil, pod("b", "node-1", "1:0.5")) }},
		"OtherNode":  {reason: "each node has separate devices", see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1")); l.pod(nil, pod("b", "node-2", "1")) }},
		"InTurn": {reason: "a deleted pod holds no device", see: func(l *ledger) {
			l.pod(nil, pod("a", "node-1", "1"))
			l.pod(pod("a", "node-1", "1"), nil)
			l.pod(nil, pod("b", "node-1", "1"))
		}},
		"Deselected": {reason: "a selected node must not be removed", wrong: 1, see: func(l *ledger) { l.claim(gen.Claim("c", gen.SelectedNode("node-1")), gen.Claim("c")) }},
		"Selected":   {reason: "a selected node may be set once", see: func(l *ledger) { l.claim(gen.Claim("c"), gen.Claim("c", gen.SelectedNode("node-1"))) }},
		"TwoClaims":  {reason: "a device must not be allocated to two claims", wrong: 1, see: func(l *ledger) { l.resourceClaim(nil, claim("a", "x")); l.resourceClaim(nil, claim("b", "x")) }},
		"ClaimsInTurn": {reason: "a released device may be allocated again", see: func(l *ledger) {
			l.resourceClaim(nil, claim("a", "x"))
			l.resourceClaim(claim("a", "x"), nil)
			l.resourceClaim(nil, claim("b", "x"))
		}},
		"ClaimsOfTwo":   {reason: "two claims may have two devices", see: func(l *ledger) { l.resourceClaim(nil, claim("a", "x")); l.resourceClaim(nil, claim("b", "y")) }},
		"SeenOnceAgain": {reason: "a list repeats events of a watch", see: func(l *ledger) { l.pod(nil, pod("a", "node-1", "1")); l.pod(nil, pod("a", "node-1", "1")) }},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			l := emptyLedger()
			tc.see(l)
			assert.Len(t, l.wrongs(), tc.wrong, tc.reason)
		})
	}
}

// TestLeft checks that the checker reports every remaining grant, mark and reservation of a cluster at rest.
func TestLeft(t *testing.T) {
	running := gen.Pod("a", gen.UID("a"), gen.BoundTo("node-1"), gen.Scheduler(byHand))
	running.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "x", ResourceClaimName: new("x")}}
	waiting := gen.Pod("b", gen.UID("b"), gen.Scheduler(byHand))
	record := func(key, text string) corev1.ConfigMap {
		c := corev1.ConfigMap{Data: map[string]string{"node": "node-1", key: text}}
		c.Labels = map[string]string{component: "prebind-device-record"}
		return c
	}
	cases := map[string]struct {
		reason string
		state  state
		wrong  int
	}{
		"Nothing":        {reason: "the record belongs to a bound pod", state: state{records: []corev1.ConfigMap{record("a", `{"bound":true}`)}}},
		"NotBound":       {reason: "the grant belongs to a pod that is not bound", state: state{records: []corev1.ConfigMap{record("b", `{}`)}}, wrong: 1},
		"NotConfirmed":   {reason: "no replica has confirmed the grant", state: state{records: []corev1.ConfigMap{record("a", `{}`)}}, wrong: 1},
		"PodGone":        {reason: "the pod of the grant does not exist", state: state{records: []corev1.ConfigMap{record("c", `{"bound":true}`)}}, wrong: 1},
		"Locked":         {reason: "the node is locked", state: state{records: []corev1.ConfigMap{record("node-lock", `{}`)}}, wrong: 1},
		"Marked":         {reason: "the claim has a mark", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.Annotation(markPrefix+"a.1", ""))}}, wrong: 1},
		"ReservedGone":   {reason: "the claim is reserved for a deleted pod", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.ReservedForPod("c", "c"))}}, wrong: 1},
		"ReservedNot":    {reason: "the claim is reserved for a pod that is not bound", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.ReservedForPod("b", "b"))}}, wrong: 1},
		"ReservedRight":  {reason: "the claim is reserved for a bound pod", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.ReservedForPod("a", "a"))}}},
		"NotReservedFor": {reason: "the claim of a bound pod is not reserved", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("x", gen.OwnedBy("Pod", "a", "a"))}}, wrong: 1},
		"NotUsed":        {reason: "the pod uses another claim", state: state{devices: []*resourcev1.ResourceClaim{gen.ResourceClaim("y", gen.OwnedBy("Pod", "a", "a"))}}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := &tc.state
			s.pods = map[types.UID]*corev1.Pod{"a": running, "b": waiting}
			s.checkRecords()
			s.checkClaims()
			assert.Len(t, s.found, tc.wrong, tc.reason)
		})
	}
}
