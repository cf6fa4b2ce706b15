// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

// attackByDefault is the default of -attack.
const attackByDefault = true

var attacked = flag.Bool("attack", attackByDefault, "Run an attacking tenant in addition to the ordinary load.")

const (
	// attacker is a user with the built-in role edit in the attack's namespaces, who may also create Bindings there.
	attacker = "mallory"
	// never is a class whose claims are never provisioned.
	never = "never"
	// attackAlone is the duration of the attack after the last fault.
	attackAlone = 75 * time.Second

	// targets is the number of running pods of the attacker. Each pod has a ResourceClaim.
	targets = 6
	// alone is the number of targets whose claims have one mark at a time. More marks would hide it.
	alone = 4
	// marksPerWrite and markWrites bound the forged marks.
	marksPerWrite, markWrites = 50, 120
	// fat is the number of objects of each kind with large annotations. fatText is the size of the annotations in bytes. The
	// API server accepts 262,144 bytes for all annotations of an object.
	fatPods, fatClaims = 60, 200
	fatText            = 250_000
	// waiters is the number of pods that wait for the maximum time.
	waiters = 400
)

// attackNamespaces lists the namespaces of the attacker.
func attackNamespaces() []string { return []string{"attack-0", "attack-1"} }

// attack is a tenant that uses its role against Prebind. All counts are bounded.
type attack struct {
	w      *world
	tenant client.Client
	// other is the client of rival.
	other client.Client
	stop  context.CancelFunc
	wg    sync.WaitGroup
	// running contains the attacker's bound pods. Their claims have the same names.
	running []*corev1.Pod

	mu sync.Mutex
	// did counts the requests that the API server or a replica accepted. failed counts the other requests.
	did, failed map[string]int
}

// newAttack creates the attacker's namespaces and permissions. It returns nil with -attack=false.
func newAttack(t *testing.T, w *world) *attack {
	t.Helper()
	if !*attacked {
		return nil
	}
	a := &attack{w: w, did: map[string]int{}, failed: map[string]int{}}
	for user, c := range map[string]*client.Client{attacker: &a.tenant, rival: &a.other} {
		config, err := w.cluster.UserConfig(user)
		require.NoError(t, err)
		config.WarningHandler = rest.NoWarnings{} // The API server warns about long names.
		*c, err = client.New(config, client.Options{})
		require.NoError(t, err)
	}
	require.NoError(t, w.watcher.Create(t.Context(), gen.StorageClass(never, "none.example.com")))
	for _, namespace := range attackNamespaces() {
		require.NoError(t, w.watcher.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))
		for _, create := range [][]string{
			{"rolebinding", attacker, "--clusterrole=edit", "--user=" + attacker}, {"role", "binds", "--verb=create", "--resource=pods/binding"},
			{"rolebinding", "binds", "--role=binds", "--user=" + attacker, "--user=" + rival},
		} {
			require.NoError(t, w.cluster.RunKubectl(t.Context(), "", append([]string{"create", "--namespace=" + namespace}, create...)...))
		}
	}
	require.NoError(t, cluster.WaitForPods(t.Context(), w.client, attackNamespaces()...))
	require.Eventually(t, func() bool {
		for _, namespace := range attackNamespaces() {
			if a.tenant.List(t.Context(), &corev1.PodList{}, client.InNamespace(namespace)) != nil {
				return false
			}
		}
		return true
	}, cluster.Patience, 50*time.Millisecond, "the attacker's namespaces should be ready")
	require.Error(t, a.tenant.List(t.Context(), &corev1.PodList{}, client.InNamespace(ns)), "the attacker should have no permissions in other namespaces")
	return a
}

// run creates a pod of the attacker with a claim, allocates the claim, and binds the pod like a scheduler.
func (a *attack) run(t *testing.T, i int) {
	t.Helper()
	namespace, name := a.namespace(i), fmt.Sprintf("target-%d", i)
	claim := gen.ResourceClaim(name, gen.InNamespace(namespace), gen.RequestsDevices(unreserved, 1), gen.AllocatedFor("", unreserved, gen.Device(name)))
	allocated := claim.Status
	pod := gen.Pod(name, gen.InNamespace(namespace), gen.Scheduler(byHand), gen.EndsAtOnce(), gen.UsesResourceClaim(name))
	require.NoError(t, a.tenant.Create(t.Context(), claim))
	claim.Status = allocated
	require.NoError(t, a.w.watcher.Status().Update(t.Context(), claim))
	require.NoError(t, a.tenant.Create(t.Context(), pod))
	require.Eventually(t, func() bool {
		return a.w.client.CoreV1().Pods(namespace).Bind(t.Context(), gen.Binding(pod, nodeName(i%nodes)), metav1.CreateOptions{}) == nil
	}, cluster.Patience, 200*time.Millisecond, "the attacker's pod should be bound")
	require.NoError(t, a.tenant.Get(t.Context(), client.ObjectKeyFromObject(pod), pod))
	a.running = append(a.running, pod)
}

func (a *attack) namespace(i int) string { return attackNamespaces()[i%len(attackNamespaces())] }

// begin creates the attacker's running pods and starts the attack of the seed. Call end before you call it again.
func (a *attack) begin(t *testing.T, seed uint64) {
	t.Helper()
	a.running = nil
	for i := range targets {
		a.run(t, i)
	}
	var ctx context.Context
	ctx, a.stop = context.WithCancel(t.Context())
	for n, do := range []func(context.Context, *rand.Rand){a.forge, a.fatten, a.wait, a.trap} {
		rng := rand.New(rand.NewPCG(seed, 1000+uint64(n)))
		a.wg.Go(func() { do(ctx, rng) })
	}
}

// end stops the attack and removes all of its objects.
func (a *attack) end(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	// The provisioner may have been down until a short time ago.
	for began := time.Now(); len(a.wrongTraps(ctx, t)) > 0 && time.Since(began) < cluster.Patience; {
		pause(ctx, time.Second)
	}
	a.stop()
	a.wg.Wait()
	assert.Empty(t, a.wrongTraps(ctx, t), "each policy decides every Binding of the attacker's pods, or follows its failurePolicy")
	kinds := []client.Object{&corev1.Pod{}, &resourcev1.ResourceClaim{}, &corev1.PersistentVolumeClaim{}}
	for _, namespace := range attackNamespaces() {
		for _, kind := range kinds {
			for a.w.watcher.DeleteAllOf(ctx, kind, client.InNamespace(namespace)) != nil {
				require.NoError(t, ctx.Err(), "the attacker's objects should be deleted")
				pause(ctx, time.Second)
			}
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t.Logf("accepted requests of the attacker: %v; failed requests: %v", a.did, a.failed)
}

// note counts a request.
func (a *attack) note(what string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.failed[what]++
		return
	}
	a.did[what]++
}

// try repeats a request until it succeeds or is rejected, because the API server may be down.
func (a *attack) try(ctx context.Context, what string, do func() error) {
	for ctx.Err() == nil {
		err := do()
		a.note(what, err)
		if err == nil || apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsAlreadyExists(err) ||
			apierrors.IsRequestEntityTooLargeError(err) || apierrors.IsNotFound(err) {
			return
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// forge writes marks to the claims that the attacker's running pods use. The marks contain existing and invented pods,
// running and invented replicas, and attempts of real binds. The claims of the first targets have one mark at a time. The
// other claims have hundreds of marks.
func (a *attack) forge(ctx context.Context, rng *rand.Rand) {
	for n := 0; n < markWrites && ctx.Err() == nil; n++ {
		at := rng.IntN(len(a.running))
		pod, marks := a.running[at], marksPerWrite
		if at < alone {
			a.annotate(ctx, "marks removed", pod, "null")
			marks = 1
		}
		parts := make([]string, marks)
		for i := range parts {
			parts[i] = a.mark(rng, pod, n*marksPerWrite+i)
		}
		a.annotate(ctx, "marks", pod, "{"+strings.Join(parts, ",")+"}")
		if rng.IntN(12) == 0 {
			a.annotate(ctx, "marks removed", pod, "null") // More marks exceed the size limit of annotations.
		}
		pause(ctx, time.Second)
	}
}

// annotate patches the annotations of the claim of the pod.
func (a *attack) annotate(ctx context.Context, what string, pod *corev1.Pod, annotations string) {
	a.try(ctx, what, func() error {
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		return a.tenant.Patch(ctx, claim, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":`+annotations+`}}`)))
	})
}

// mark returns one forged mark as a member of a JSON object.
func (a *attack) mark(rng *rand.Rand, pod *corev1.Pod, n int) string {
	bound := pod.Annotations["binder.prebind.dev/attempt"]
	replica, _, _ := strings.Cut(bound, "-")
	if replica == "" {
		replica = "forged00"
	}
	uid := pod.UID
	if living := a.w.ledger.living(); rng.IntN(6) == 0 && len(living) > 0 {
		uid = living[rng.IntN(len(living))].UID
	}
	attempt := []string{fmt.Sprintf("forged00-%010d", n), fmt.Sprintf("%s-%010d", replica, n), bound}[rng.IntN(3)]
	if attempt == "" {
		attempt = fmt.Sprintf("forged01-%010d", n)
	}
	name := []string{"no-such-pod", pod.Name, a.running[rng.IntN(len(a.running))].Name}[rng.IntN(3)]
	node := []string{"no-such-node", pod.Spec.NodeName, nodeName(rng.IntN(nodes))}[rng.IntN(3)]
	return fmt.Sprintf("%q:%q", markPrefix+string(uid)+"."+attempt, fmt.Sprintf(`{"pod":%q,"node":%q}`, name, node))
}

// fatten creates objects with annotations near the size limit of the API server.
func (a *attack) fatten(ctx context.Context, rng *rand.Rand) {
	text := strings.Repeat("x", fatText)
	for i := range fatClaims {
		meta := []gen.Meta{gen.InNamespace(a.namespace(i)), gen.Annotation("example.com/note", fmt.Sprintf("%d%s", rng.IntN(1000), text))}
		name := fmt.Sprintf("fat-%d", i)
		objects := []client.Object{
			gen.Claim(name, meta[0], meta[1], gen.OfClass(never)),
			gen.ResourceClaim(name, meta[0], meta[1], gen.RequestsDevices(unreserved, 1)),
		}
		if i < fatPods {
			objects = append(objects, gen.Pod(name, meta[0], meta[1], gen.Scheduler("none"), gen.EndsAtOnce()))
		}
		for _, o := range objects {
			a.try(ctx, fmt.Sprintf("fat %T", o), func() error { return a.tenant.Create(ctx, o) })
		}
		if ctx.Err() != nil {
			return
		}
		pause(ctx, 20*time.Millisecond)
	}
}

// wait creates pods for kube-scheduler that wait for claims that are never provisioned, or for a state that their node never
// has. The description of the state has the maximum length.
func (a *attack) wait(ctx context.Context, rng *rand.Rand) {
	for i := range waiters {
		if ctx.Err() != nil {
			return
		}
		namespace, name := a.namespace(i), fmt.Sprintf("waits-%d-%s", i, strings.Repeat("x", 230))
		options := []gen.PodOption{gen.InNamespace(namespace), gen.Scheduler(cluster.NoPreBindScheduler), gen.EndsAtOnce()}
		if rng.IntN(6) == 0 {
			claim := gen.Claim(fmt.Sprintf("waits-%d", i), gen.InNamespace(namespace), gen.OfClass(never))
			a.try(ctx, "waiting claim", func() error { return a.tenant.Create(ctx, claim) })
			options = append(options, gen.UsesClaim(claim.Name))
		} else {
			options = append(options, gen.Annotation("node-state.prebind.dev/expect", longExpectation(rng)), gen.Annotation("node-state.prebind.dev/wait", "10m"))
		}
		a.try(ctx, "waiting pod", func() error { return a.tenant.Create(ctx, gen.Pod(name, options...)) })
		pause(ctx, 50*time.Millisecond)
	}
}

// longExpectation returns a selector of about the maximum length of node-state that matches no node.
func longExpectation(rng *rand.Rand) string {
	const most = 4096
	domain := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 59)+".", 4), ".")
	var out strings.Builder
	for i := 0; ; i++ {
		next := fmt.Sprintf("%s.example.com/%s-%d-%d=%s", domain, strings.Repeat("k", 50), rng.IntN(1000), i, strings.Repeat("v", 60))
		if out.Len()+len(next)+1 > most {
			return out.String()
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteString(next)
	}
}

const (
	// rival is a user that may only create Bindings in the attacker's namespaces.
	rival = "rival"
	// The annotations that the policies set. Their value is that of decidedFor.
	byLoad, byFail, byIgnore = "load.policy.prebind.dev/by", "attack-fail.policy.prebind.dev/by", "attack-ignore.policy.prebind.dev/by"
	// posterKey is an annotation of Bindings with their user, which the API server copies to the pod.
	posterKey = "example.com/poster"
	trapKey   = "example.com/trap"
	// A pod or claim with small or large bytes of annotations is just below or above the limit of 32 KiB.
	small, large = 28 << 10, 32 << 10
)

// binders contains the users that bind the pods of the schedulers of the load.
var binders = map[string]string{
	byHand: "prebind-test-admin", cluster.DefaultScheduler: "system:kube-scheduler", cluster.NoPreBindScheduler: "system:kube-scheduler",
	cluster.SecondScheduler: "system:kube-scheduler",
}

// decidedFor returns the value that the policies give to a pod on its node, if the user posted the Binding.
func decidedFor(pod *corev1.Pod, user string) string {
	return pod.Name + " " + user + " " + pod.Spec.NodeName
}

// policies creates the policies, and waits until the only replica applies them.
func (w *world) policies(t *testing.T) {
	t.Helper()
	content, err := os.ReadFile("testdata/policy.yaml")
	require.NoError(t, err)
	for _, p := range [][3]string{{"load", ns, "Fail"}, {"attack-fail", "attack-0", "Fail"}, {"attack-ignore", "attack-1", "Ignore"}} {
		text := strings.NewReplacer("attack-fail", p[0], "attack-0", p[1], "failurePolicy: Fail", "failurePolicy: "+p[2]).Replace(string(content))
		require.Eventually(t, func() bool { // The leader copies the CA bundle of the webhook for policies.
			return w.cluster.RunKubectl(t.Context(), text, "apply", "-f", "-") == nil
		}, cluster.Patience, 500*time.Millisecond, "the policy %s should be applied", p[0])
	}
	require.NoError(t, w.cluster.RunKubectl(t.Context(), "", "wait", "--for=condition=Ready", "--timeout=1m", "bindpolicies", "--all"))
}

// trap is a kind of pods whose data is expensive for the policies.
type trap struct {
	name string
	// fails is set if no policy can be evaluated for the pod.
	fails bool
	// annotations are those of the pod, below example.com.
	annotations map[string]string
	// claims is the number of claims of the class. Each has 20 labels, and text in an annotation.
	claims, text int
	class        string
}

var traps = []trap{
	{name: "none"},
	{name: "quantity", fails: true, annotations: map[string]string{"quantity": "1e20000000"}},
	{name: "few-words", annotations: map[string]string{"words": words(200), "more": words(200)}},
	{name: "words", fails: true, annotations: map[string]string{"words": words(5_500)}},
	{name: "most-words", fails: true, annotations: map[string]string{"words": words(40_000)}},
	{name: "pattern", annotations: map[string]string{"words": strings.Repeat("x", 20_000), "pattern": "(x+x+)+y"}},
	{name: "long-pattern", fails: true, annotations: map[string]string{"words": strings.Repeat("x", 14_000), "pattern": strings.Repeat("x?", 7_000)}},
	{name: "small-pod", annotations: map[string]string{"text": strings.Repeat("x", small)}},
	{name: "large-pod", fails: true, annotations: map[string]string{"text": strings.Repeat("x", large)}},
	{name: "small-claims", class: "dynamic", claims: 2, text: small},
	{name: "large-claim", fails: true, class: "dynamic", claims: 1, text: large},
	{name: "many-claims", fails: true, class: never, claims: 90, text: small},
	{name: "most-claims", fails: true, class: never, claims: 101},
}

// words returns a list of n different words.
func words(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("%04x", i)
	}
	return strings.Join(list, ",")
}

// trap creates the pods of the traps. The attacker, with large Bindings, and another user bind each of them at the same time.
func (a *attack) trap(ctx context.Context, rng *rand.Rand) {
	for i := range 3 * len(attackNamespaces()) {
		for _, one := range traps {
			namespace, name := a.namespace(i), fmt.Sprintf("trap-%s-%d", one.name, i)
			pod := gen.Pod(name, one.options(ctx, a, namespace, name)...)
			a.try(ctx, "trap", func() error { return a.tenant.Create(ctx, pod) })
			own := gen.Binding(pod, nodeName(rng.IntN(nodes)), gen.Annotation(posterKey, attacker), gen.Annotation(byFail, "forged"),
				gen.Annotation("example.com/text", strings.Repeat("x", []int{small / 2, large, 4 * large}[i/2%3])))
			for n := range 100 {
				metav1.SetMetaDataLabel(&own.ObjectMeta, fmt.Sprintf("example.com/label-%d", n), strings.Repeat("x", 63))
			}
			node := []string{own.Target.Name, nodeName(rng.IntN(nodes))}[rng.IntN(2)]
			a.wg.Go(func() { a.bind(ctx, a.tenant, pod, own) })
			a.wg.Go(func() { a.bind(ctx, a.other, pod, gen.Binding(pod, node, gen.Annotation(posterKey, rival))) })
			pause(ctx, 200*time.Millisecond)
		}
	}
}

// options returns the options of the pod, and creates its claims. All pods share the claims that are never provisioned.
func (one trap) options(ctx context.Context, a *attack, namespace, pod string) []gen.PodOption {
	options := []gen.PodOption{gen.InNamespace(namespace), gen.Scheduler(byHand), gen.EndsAtOnce(), gen.Label(trapKey, one.name)}
	for key, value := range one.annotations {
		options = append(options, gen.Annotation("example.com/"+key, value))
	}
	for c := range one.claims {
		claim := gen.Claim(fmt.Sprintf("%s-%d", pod, c), gen.InNamespace(namespace), gen.OfClass(one.class), gen.Annotation("example.com/text", strings.Repeat("x", one.text)))
		if one.class == never {
			claim.Name = fmt.Sprintf("trap-%s-%d", one.name, c)
		}
		for l := range 20 {
			metav1.SetMetaDataLabel(&claim.ObjectMeta, fmt.Sprintf("example.com/label-%d", l), "x")
		}
		a.try(ctx, "claim of a trap", func() error { return a.tenant.Create(ctx, claim) })
		options = append(options, gen.UsesClaim(claim.Name))
	}
	return options
}

// bind posts the Binding until the pod is bound.
func (a *attack) bind(ctx context.Context, user client.Client, pod *corev1.Pod, binding *corev1.Binding) {
	for ; ctx.Err() == nil; pause(ctx, 4*time.Second) {
		posting, cancel := context.WithTimeout(ctx, 40*time.Second)
		err := user.SubResource("binding").Create(posting, pod.DeepCopy(), binding.DeepCopy())
		cancel()
		a.note("Binding by "+binding.Annotations[posterKey], err)
		now := &corev1.Pod{}
		if get := a.w.watcher.Get(ctx, client.ObjectKeyFromObject(pod), now); apierrors.IsNotFound(get) || now.Spec.NodeName != "" {
			return
		}
	}
}

// wrongTraps returns the pods of traps that were bound against a policy, or not bound within quietWithin.
func (a *attack) wrongTraps(ctx context.Context, t *testing.T) (found []string) {
	t.Helper()
	for n, key := range []string{byFail, byIgnore} {
		for _, one := range traps {
			list := &corev1.PodList{}
			require.NoError(t, a.w.watcher.List(ctx, list, client.InNamespace(a.namespace(n)), client.MatchingLabels{trapKey: one.name}))
			for i := range list.Items {
				found = append(found, one.wrong(&list.Items[i], key)...)
			}
		}
	}
	return found
}

// wrong returns what is wrong with the pod, whose policy sets the annotation. A policy with failurePolicy Ignore may set none. After an outage
// of the API server, the cache of policies may lack claims that volumebinding has found. Such a policy can be evaluated.
func (one trap) wrong(pod *corev1.Pod, key string) []string {
	by, want := pod.Annotations[key], decidedFor(pod, pod.Annotations[posterKey])
	switch {
	case pod.Spec.NodeName == "":
		if one.class == never || one.fails && key == byFail || time.Since(pod.CreationTimestamp.Time) < quietWithin {
			return nil
		}
		return []string{pod.Name + " is not bound"}
	case (!one.fails || one.claims > 0) && by == want, key == byIgnore && by == "":
		return nil
	}
	return []string{fmt.Sprintf("%s is bound with the value %q of its policy, but should have %q; the policy can be evaluated: %t", pod.Name, by, want, !one.fails)}
}
