// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// writeTimeout limits one announcement, retries included.
	writeTimeout = 5 * time.Second
	// forget is how long after its last wait a bind ends that is not called any more. It is longer than
	// any Retry-After.
	forget = 2 * time.Minute
)

// Plugin publishes the nodes of binds that wait. It never delays or rejects a bind.
//
// The plugin writes with server-side apply, and each announcement is a field manager of its own. So the
// API server guards what the plugin promises: it never changes or removes a value that another
// client has set, and a value goes with the last announcement that wants it.
type Plugin struct {
	h     framework.Handle
	after time.Duration

	mu sync.Mutex
	// running contains the announcements by pod.
	running map[types.UID]*announcement

	// logged contains the causes of errors that are already in the log.
	logged sync.Map
}

var (
	_ framework.PreBinder = (*Plugin)(nil)
	_ framework.Observer  = (*Plugin)(nil)
)

// announcement is the announcement of one bind.
type announcement struct {
	// mark is that of the first call that waited. The context of the call would keep the pod in memory.
	mark framework.Mark
	// end ends the announcement, and expire is the timer that ends it if the bind is not called any more.
	end    context.CancelFunc
	expire clock.Timer
}

func newPlugin(h framework.Handle, a *Arguments) *Plugin {
	return &Plugin{h: h, after: a.After.Duration, running: map[types.UID]*announcement{}}
}

// Name implements framework.Plugin.
func (*Plugin) Name() string { return Name }

// PreFlight implements framework.Plugin. The plugin has no part in the decision.
func (*Plugin) PreFlight(*framework.BindContext) (framework.Verdict, error) {
	return framework.Verdict{}, nil
}

// BindWaits implements framework.Observer. A Binding with a resourceVersion is not announced, because the API server would reject it
// after a write to the pod.
func (p *Plugin) BindWaits(ctx context.Context, bc *framework.BindContext, _ []framework.Wait) {
	if bc.Binding.ResourceVersion != "" {
		return
	}
	m := bc.Mark()
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.running[m.PodUID]; a != nil {
		if a.mark.Node == m.Node {
			a.expire.Reset(forget)
			return
		}
		p.end(a)
	}
	ctx = context.WithoutCancel(ctx)
	waits, end := context.WithCancel(ctx)
	p.running[m.PodUID] = &announcement{mark: m, end: end, expire: p.h.Clock.AfterFunc(forget, func() { p.decided(m) })}
	p.h.Clock.AfterFunc(p.after, func() {
		if waits.Err() != nil {
			return
		}
		p.try(ctx, m, p.announce, "Could not announce the node of a bind that waits, the bind continues")
		// If this fails, the mark remains, and the sweeper withdraws it.
		context.AfterFunc(waits, func() { p.try(ctx, m, p.withdraw, "Could not clear the announced node of a bind, will retry") })
	})
}

// BindDecided implements framework.Observer. The API server clears the field with the bind, except
// without the feature gate ClearingNominatedNodeNameAfterBinding, such as before Kubernetes 1.35.
func (p *Plugin) BindDecided(_ context.Context, bc *framework.BindContext) { p.decided(bc.Mark()) }

// decided ends the announcement of the pod on the node.
func (p *Plugin) decided(m framework.Mark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.running[m.PodUID]; a != nil && a.mark.Node == m.Node {
		p.end(a)
	}
}

// end ends the announcement in the background. It must be called with mu held.
func (p *Plugin) end(a *announcement) {
	delete(p.running, a.mark.PodUID)
	a.expire.Stop()
	a.end()
}

// try writes, and logs an error once for each cause.
func (p *Plugin) try(ctx context.Context, m framework.Mark, write func(context.Context, framework.Mark) error, failed string) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	err := write(ctx, m)
	if err == nil {
		return
	}
	if _, known := p.logged.LoadOrStore(apierrors.ReasonForError(err), true); !known {
		klog.FromContext(ctx).Error(err, failed, "pod", m.Pod, "node", m.Node, "plugin", Name)
	}
}

// PreBind implements framework.PreBinder. It is never called, because the verdict has no writes.
func (*Plugin) PreBind(context.Context, *framework.BindContext) error { return nil }

// PreBindRollBack implements framework.PreBinder, for marks.
func (p *Plugin) PreBindRollBack(ctx context.Context, m framework.Mark) error {
	return p.withdraw(ctx, m)
}

// PostBind implements framework.PreBinder, for marks.
func (p *Plugin) PostBind(ctx context.Context, m framework.Mark, _ *corev1.Pod) error {
	return p.withdraw(ctx, m)
}

// announce sets the field if it may.
func (p *Plugin) announce(ctx context.Context, m framework.Mark) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, m.Pod.Namespace, m.Pod.Name)
		if err != nil || !mayAnnounce(pod, m.PodUID, m.Node) || isForged(pod, m.Attempt) {
			return err
		}
		return p.apply(ctx, m, pod, corev1ac.PodStatus().WithNominatedNodeName(m.Node))
	})
}

// apply applies the status as the field manager of the attempt. Force takes the field over from an earlier attempt. The
// resourceVersion ensures that no other client has changed the pod since the read.
func (p *Plugin) apply(ctx context.Context, m framework.Mark, pod *corev1.Pod, status *corev1ac.PodStatusApplyConfiguration) error {
	change := corev1ac.Pod(pod.Name, pod.Namespace).WithUID(pod.UID).WithResourceVersion(pod.ResourceVersion).WithStatus(status)
	return p.h.Status.Status().Apply(ctx, change, client.FieldOwner(managerOf(m.Attempt)), client.ForceOwnership)
}

// withdraw gives up the attempt's ownership of the field, and clears the field if the attempt is its
// only owner.
func (p *Plugin) withdraw(ctx context.Context, m framework.Mark) error {
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, m.Pod.Namespace, m.Pod.Name)
		owns, last := owns(pod, m.PodUID, m.Attempt)
		switch {
		case err != nil || !owns:
			return err
		case last:
			return p.clear(ctx, m, pod)
		default:
			return p.apply(ctx, m, pod, nil)
		}
	})
	return client.IgnoreNotFound(err)
}

// clear removes the field together with all entries of its owners. An apply without the field would
// also do this, but of a status in which no client owns another field it would remove everything, such
// as the phase, which the API server sets itself and records for no owner.
func (p *Plugin) clear(ctx context.Context, m framework.Mark, pod *corev1.Pod) error {
	patch := client.MergeFromWithOptions(pod.DeepCopy(), client.MergeFromWithOptimisticLock{})
	pod.Status.NominatedNodeName = ""
	return p.h.Status.Status().Patch(ctx, pod, patch, client.FieldOwner(managerOf(m.Attempt)))
}

// Marks implements framework.PreBinder. It omits announcements of this process that have not ended.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var pods corev1.PodList
	if err := p.h.Cached.List(ctx, &pods, nominated.Where("")); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var marks []framework.Mark
	for i := range pods.Items {
		running := p.running[pods.Items[i].UID]
		for _, m := range marksOf(&pods.Items[i]) {
			if running == nil || running.mark.Attempt != m.Attempt {
				marks = append(marks, m)
			}
		}
	}
	return marks, nil
}
