// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gen"
)

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
