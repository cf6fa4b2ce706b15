// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package announce

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// writeTimeout limits one announcement, retries included.
	writeTimeout = 5 * time.Second
	// maxTries is how often an announcement is tried if the pod changes at the same time.
	maxTries = 3
	// forget is how long after its last wait a bind ends that is not called any more. It is longer than
	// any Retry-After.
	forget = 2 * time.Minute
	// maxLogged is the maximum number of causes in the log.
	maxLogged = 32
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
	logged map[metav1.StatusReason]bool
}

var (
	_ framework.PreBinder = (*Plugin)(nil)
	_ framework.Observer  = (*Plugin)(nil)
)

// announcement is the announcement of one bind.
type announcement struct {
	// bc is the context of the first call that waited.
	bc *framework.BindContext
	// begin and expire are the timers for the write, and for the end of a bind that is not called any more.
	begin, expire clock.Timer
	// done is closed when the function of begin ends. Only then tried may be read.
	done chan struct{}
	// tried is set if the API server may have got the write.
	tried bool
}

func newPlugin(h framework.Handle, a *Arguments) *Plugin {
	return &Plugin{h: h, after: a.After.Duration, running: map[types.UID]*announcement{}, logged: map[metav1.StatusReason]bool{}}
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
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.running[bc.Pod.UID]; a != nil {
		if a.bc.Node.Name == bc.Node.Name {
			a.expire.Reset(forget)
			return
		}
		p.end(ctx, a)
	}
	a := &announcement{bc: bc, done: make(chan struct{})}
	ctx = context.WithoutCancel(ctx)
	a.begin = p.h.Clock.AfterFunc(p.after, func() {
		defer close(a.done)
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		var err error
		if a.tried, err = p.announce(ctx, bc); err != nil {
			p.log(ctx, err, "Could not announce the node of a bind that waits, the bind continues", bc)
		}
	})
	a.expire = p.h.Clock.AfterFunc(forget, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.running[bc.Pod.UID] == a {
			p.end(ctx, a)
		}
	})
	p.running[bc.Pod.UID] = a
}

// BindDecided implements framework.Observer. The API server clears the field with the bind, except
// without the feature gate ClearingNominatedNodeNameAfterBinding, such as before Kubernetes 1.35.
func (p *Plugin) BindDecided(ctx context.Context, bc *framework.BindContext) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.running[bc.Pod.UID]; a != nil && a.bc.Node.Name == bc.Node.Name {
		p.end(ctx, a)
	}
}

// end ends the announcement in the background. If that fails, the mark remains, and the sweeper withdraws it. It must be called with mu
// held.
func (p *Plugin) end(ctx context.Context, a *announcement) {
	delete(p.running, a.bc.Pod.UID)
	a.expire.Stop()
	if a.begin.Stop() {
		return
	}
	ctx = context.WithoutCancel(ctx)
	go func() {
		<-a.done
		if !a.tried {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		if err := p.withdraw(ctx, a.bc); err != nil {
			p.log(ctx, err, "Could not clear the announced node of a bind, will retry", a.bc)
		}
	}()
}

// PreBind implements framework.PreBinder. It is never called, because the verdict has no writes.
func (*Plugin) PreBind(context.Context, *framework.BindContext) error { return nil }

// PreBindRollBack implements framework.PreBinder, for marks.
func (p *Plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	return p.withdraw(ctx, bc)
}

// PostBind implements framework.PreBinder, for marks.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) error {
	return p.withdraw(ctx, bc)
}

// announce sets the field if it may. tried is set if the API server may have got the write.
func (p *Plugin) announce(ctx context.Context, bc *framework.BindContext) (tried bool, err error) {
	for range maxTries {
		pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name)
		if err != nil || !mayAnnounce(pod, bc.Pod.UID, bc.Node.Name) || isForged(pod, bc.Attempt) {
			return tried, err
		}
		tried = true
		status := corev1ac.PodStatus().WithNominatedNodeName(bc.Node.Name)
		// Force takes the field over from an earlier attempt. The resourceVersion ensures that
		// no other client has set it since the read.
		err = p.apply(ctx, bc, podOf(bc).WithResourceVersion(pod.ResourceVersion).WithStatus(status), client.ForceOwnership)
		if !apierrors.IsConflict(err) {
			return true, err
		}
	}
	return tried, nil
}

// podOf returns an apply configuration for the pod of the bind, and for no other pod with its name.
func podOf(bc *framework.BindContext) *corev1ac.PodApplyConfiguration {
	return corev1ac.Pod(bc.Pod.Name, bc.Pod.Namespace).WithUID(bc.Pod.UID)
}

// apply applies the configuration as the field manager of the attempt.
func (p *Plugin) apply(ctx context.Context, bc *framework.BindContext, pod *corev1ac.PodApplyConfiguration, options ...client.SubResourceApplyOption) error {
	return p.h.Status.Status().Apply(ctx, pod, append(options, client.FieldOwner(managerOf(bc.Attempt)))...)
}

// withdraw gives up the attempt's ownership of the field, and clears the field if the attempt is its
// only owner. The resourceVersion ensures that no user has forged the attempt's entry since the read.
func (p *Plugin) withdraw(ctx context.Context, bc *framework.BindContext) error {
	var conflict error
	for range maxTries {
		pod, err := framework.Get(ctx, p.h.Live, &corev1.Pod{}, bc.Pod.Namespace, bc.Pod.Name)
		if err != nil {
			return err
		}
		owns, last := owns(pod, bc.Pod.UID, bc.Attempt)
		if !owns {
			return nil
		}
		if last {
			conflict = p.clear(ctx, bc, pod.ResourceVersion)
		} else {
			conflict = p.apply(ctx, bc, podOf(bc).WithResourceVersion(pod.ResourceVersion))
		}
		switch {
		case apierrors.IsNotFound(conflict):
			return nil // The pod is gone.
		case apierrors.IsConflict(conflict):
			continue // The pod has changed, or another pod has its name.
		}
		return conflict
	}
	return conflict
}

// clear removes the field together with all entries of its owners. An apply without the field would
// also do this, but of a status in which no client owns another field it would remove everything, such
// as the phase, which the API server sets itself and records for no owner.
func (p *Plugin) clear(ctx context.Context, bc *framework.BindContext, resourceVersion string) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": bc.Pod.UID, "resourceVersion": resourceVersion},
		"status":   map[string]any{"nominatedNodeName": nil},
	})
	if err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: bc.Pod.Namespace, Name: bc.Pod.Name}}
	return p.h.Status.Status().Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(managerOf(bc.Attempt)))
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
			if running == nil || running.bc.Attempt != m.Attempt {
				marks = append(marks, m)
			}
		}
	}
	return marks, nil
}

// log logs an error, once for each cause.
func (p *Plugin) log(ctx context.Context, err error, message string, bc *framework.BindContext) {
	cause := apierrors.ReasonForError(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.logged[cause] || len(p.logged) >= maxLogged {
		return
	}
	p.logged[cause] = true
	klog.FromContext(ctx).Error(err, message, "pod", klog.KObj(bc.Pod), "node", bc.Node.Name, "plugin", Name)
}
