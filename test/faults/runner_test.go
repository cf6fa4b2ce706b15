// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
)

// runner injects the faults. Like a kubelet, it restarts processes that exit.
type runner struct {
	t         *testing.T
	w         *world
	processes map[string]*supervised
	replicas  map[string]*replica
	stop      context.CancelFunc
	over      chan struct{}
}

// supervised is a process that runs unless a fault has killed it.
type supervised struct {
	*cluster.Process
	mu   sync.Mutex
	down bool
}

func newRunner(t *testing.T, w *world) *runner {
	t.Helper()
	r := &runner{t: t, w: w, processes: map[string]*supervised{}, replicas: map[string]*replica{}, over: make(chan struct{})}
	for _, name := range []string{cluster.Etcd, cluster.APIServer, cluster.OtherAPIServer, cluster.ControllerManager, cluster.Scheduler, cluster.SecondScheduler, cluster.Provisioner} {
		if p := w.cluster.Process(name); p != nil {
			r.processes[name] = &supervised{Process: p}
		}
	}
	for i, one := range w.replicas {
		name := fmt.Sprintf("replica-%d", i)
		r.processes[name], r.replicas[name] = &supervised{Process: one.Process}, one
		r.replicas[clockOf(name)] = one
	}
	return r
}

// run injects the faults of the schedule. It returns after the last fault.
func (r *runner) run(ctx context.Context, schedule []fault) {
	supervised, stop := context.WithCancel(ctx)
	r.stop = stop
	go r.supervise(supervised)
	began := time.Now()
	var all sync.WaitGroup
	defer all.Wait()
	for _, f := range schedule {
		pause(ctx, f.at-time.Since(began))
		all.Go(func() { r.one(ctx, f) })
	}
}

func (r *runner) supervise(ctx context.Context) {
	defer close(r.over)
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, p := range r.processes {
			p.revive()
		}
	}
}

// revive starts the process if it has exited.
func (p *supervised) revive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return
	}
	select {
	case <-p.Exited():
		_ = p.Start()
	default:
	}
}

// kill kills the process. It stays down until the returned function is called.
func (p *supervised) kill() func() {
	p.mu.Lock()
	p.down = true
	_ = p.Kill()
	p.mu.Unlock()
	return func() {
		p.mu.Lock()
		p.down = false
		p.mu.Unlock()
		p.revive()
	}
}

// one injects one fault for its duration.
func (r *runner) one(ctx context.Context, f fault) {
	p, on := r.processes[f.target], r.replicas[f.target]
	defer r.w.disturbed.during(f)()
	switch f.kind {
	case "kill":
		defer p.kill()()
	case "freeze":
		_ = p.Signal(syscall.SIGSTOP)
		defer func() { _ = p.Signal(syscall.SIGCONT) }()
	case "full disk":
		defer p.logTo("/dev/full")()
	case "cut to replica":
		r.w.cluster.Services().Cut(on.WebhookAddress())
		defer r.w.cluster.Services().Heal(on.WebhookAddress())
	case "cut from replica":
		on.proxy.Cut(true)
		defer on.proxy.Cut(false)
	case "slow API":
		on.proxy.Slow(time.Second)
		defer on.proxy.Slow(0)
	case "writes without answer":
		on.proxy.Hold(func(q *http.Request) bool { return q.Method != http.MethodGet })
		defer on.proxy.Hold(nil)
	case "watches end":
		on.proxy.Disconnect()
	case "quota of etcd":
		r.alarm(ctx, "ACTIVATE")
		defer r.alarm(context.WithoutCancel(ctx), "DEACTIVATE")
	case "full disk of etcd":
		defer fill(ctx, r.t, r.w.disk)()
	case "history lost":
		r.loseHistory(ctx)
		defer p.kill()()
	case "conflict storm":
		r.storm(ctx, f.length)
		return
	case wrongClock:
		defer func() { assert.NoError(r.t, on.SetClock(on.wrong)) }()
		assert.NoError(r.t, on.SetClock(on.wrong+f.wrong))
	}
	pause(ctx, f.length)
}

// logTo makes the process log to the file until the returned function is called. Both changes restart the process.
func (p *supervised) logTo(name string) func() {
	swap := func(do func()) {
		revive := p.kill()
		do()
		revive()
	}
	kept := p.LogFile() + ".kept"
	swap(func() {
		_ = os.Rename(p.LogFile(), kept)
		_ = os.Symlink(name, p.LogFile())
	})
	return func() {
		swap(func() {
			_ = os.Remove(p.LogFile())
			_ = os.Rename(kept, p.LogFile())
		})
	}
}

// loseHistory compacts etcd. After a restart of the API server, whose cache is then empty, a resumed watch gets 410 Gone.
func (r *runner) loseHistory(ctx context.Context) {
	var found struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	_ = r.etcd(ctx, "/v3/maintenance/status", "{}", &found) // etcd may be down.
	_ = r.etcd(ctx, "/v3/kv/compaction", fmt.Sprintf(`{"revision":%q,"physical":true}`, found.Header.Revision), &struct{}{})
}

// alarm sets or resets the alarm that etcd raises at its space quota. It then rejects all requests that need space. The
// alarm outlives etcd, so alarm returns only after etcd has accepted the change.
func (r *runner) alarm(ctx context.Context, action string) {
	for r.etcd(ctx, "/v3/maintenance/alarm", fmt.Sprintf(`{"action":%q,"alarm":"NOSPACE"}`, action), &struct{}{}) != nil && ctx.Err() == nil {
		pause(ctx, 200*time.Millisecond)
	}
}

// etcd posts to the JSON API of etcd.
func (r *runner) etcd(ctx context.Context, path, body string, into any) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, r.w.cluster.URL(cluster.Etcd)+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("etcd answers %s: %s", response.Status, content)
	}
	return errors.Join(err, json.Unmarshal(content, into))
}

// storm continuously changes annotations of all objects that Prebind writes.
func (r *runner) storm(ctx context.Context, length time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, length)
	defer cancel()
	for n := 0; ctx.Err() == nil; n++ {
		for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &corev1.PodList{}, &corev1.NodeList{}, claims(), records()} {
			_ = r.w.watcher.List(ctx, list)
			each(list, func(o client.Object) {
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"faults.example.com/storm":"%d"}}}`, n)
				_ = r.w.watcher.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(patch)))
			})
		}
	}
}

// heal waits until all processes are ready, and opens the nodes.
func (r *runner) heal(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settled)
	defer cancel()
	for name, p := range r.processes {
		for p.WaitReady(ctx) != nil { // The process may have exited and restarted.
			require.NoError(t, ctx.Err(), "%s should be ready:\n%s", name, p.Tail(30))
			pause(ctx, time.Second)
		}
	}
	for r.w.setOpen(ctx, "yes") != nil {
		require.NoError(t, ctx.Err())
		pause(ctx, time.Second)
	}
	r.stop()
	<-r.over
}

// pause waits for the duration, or until the context ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
