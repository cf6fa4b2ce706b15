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
	// writeTimeout limits one announcement, retries included. A rollback waits for it.
	writeTimeout = 5 * time.Second
	// maxTries is how often an announcement is tried if the pod changes at the same time.
	maxTries = 3
	// maxLogged is the maximum number of causes in the log.
	maxLogged = 32
)

// Plugin publishes the nodes of binds that wait. It never delays or rejects a bind.
//
// The plugin writes with server-side apply, and each attempt is a field manager of its own. So the
// API server guards what the plugin promises: it never changes or removes a value that another
// client has set, and a value goes with the last attempt that wants it.
type Plugin struct {
	h     framework.Handle
	after time.Duration

	mu sync.Mutex
	// running contains the announcements by attempt. PostBind or PreBindRollBack removes them.
	running map[string]*announcement
	// logged contains the causes of errors that are already in the log.
	logged map[metav1.StatusReason]bool
}

var (
	_ framework.PreFlighter = (*Plugin)(nil)
	_ framework.RollBacker  = (*Plugin)(nil)
	_ framework.PostBinder  = (*Plugin)(nil)
	_ framework.Recoverer   = (*Plugin)(nil)
)

// announcement is the announcement of one attempt.
type announcement struct {
	timer clock.Timer
	// done is closed when the function of the timer ends. Only then tried may be read.
	done chan struct{}
	// tried is set if the API server may have got the write.
	tried bool
}

func newPlugin(h framework.Handle, a *Arguments) *Plugin {
	return &Plugin{h: h, after: a.After, running: map[string]*announcement{}, logged: map[metav1.StatusReason]bool{}}
}

// Name implements framework.PreBinder.
func (*Plugin) Name() string { return Name }

// PreFlight implements framework.PreFlighter.
func (p *Plugin) PreFlight(bc *framework.BindContext) (framework.Next, error) {
	if bc.Binding.ResourceVersion != "" {
		// The API server would reject this Binding after a write to the pod.
		return framework.Skip, nil
	}
	if bc.DryRun && bc.Pod.Status.NominatedNodeName == "" {
		bc.Intend("announce would set status.nominatedNodeName of the pod if the bind waits longer than %s", p.after)
	}
	return framework.Accompany, nil
}

// PreBind implements framework.PreBinder. It starts the timer of the announcement and does not wait.
func (p *Plugin) PreBind(ctx context.Context, bc *framework.BindContext) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running[bc.Attempt] != nil {
		return nil // The attempt repeats its PreBinds.
	}
	a := &announcement{done: make(chan struct{})}
	ctx = context.WithoutCancel(ctx)
	a.timer = p.h.Clock.AfterFunc(p.after, func() {
		defer close(a.done)
		ctx, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		var err error
		if a.tried, err = p.announce(ctx, bc); err != nil {
			p.log(ctx, err, "Could not announce the node of a bind that waits, the bind continues", bc)
		}
	})
	p.running[bc.Attempt] = a
	return nil
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

// PreBindRollBack implements framework.RollBacker. If it fails, the mark remains, and the sweeper
// calls it again. So a failure does not delay the next attempt.
func (p *Plugin) PreBindRollBack(ctx context.Context, bc *framework.BindContext) error {
	if !p.end(bc.Attempt) {
		return nil
	}
	err := p.withdraw(ctx, bc)
	if err == nil || bc.Recovered {
		return err
	}
	p.log(ctx, err, "Could not clear the announced node of a bind, will retry", bc)
	return nil
}

// PostBind implements framework.PostBinder. The API server clears the field with the bind, except
// without the feature gate ClearingNominatedNodeNameAfterBinding, such as before Kubernetes 1.35.
func (p *Plugin) PostBind(ctx context.Context, bc *framework.BindContext) {
	if !p.end(bc.Attempt) {
		return
	}
	if err := p.withdraw(ctx, bc); err != nil {
		p.log(ctx, err, "Could not clear the announced node of a bound pod", bc)
	}
}

// end ends the announcement of the attempt, and returns whether it may be in the API server. It waits
// for a write in progress.
func (p *Plugin) end(attempt string) bool {
	p.mu.Lock()
	a := p.running[attempt]
	delete(p.running, attempt)
	p.mu.Unlock()
	if a == nil {
		return true // The attempt is from an earlier process, or this call is a repetition.
	}
	if a.timer.Stop() {
		return false
	}
	<-a.done
	return a.tried
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
		case conflict == nil && last:
			bc.Undid("cleared status.nominatedNodeName")
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

// Marks implements framework.Recoverer.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	var pods corev1.PodList
	if err := p.h.Cached.List(ctx, &pods, nominated.Where("")); err != nil {
		return nil, err
	}
	var marks []framework.Mark
	for i := range pods.Items {
		marks = append(marks, marksOf(&pods.Items[i])...)
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
