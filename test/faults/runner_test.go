// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
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
		on.proxy.HoldWrites(true)
		defer on.proxy.HoldWrites(false)
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
func pause(ctx context.Context, d time.Duration) { _ = cluster.Pause(ctx, d) }

// fault is a temporary failure of one target.
type fault struct {
	kind string
	// target is the affected component. Faults of the same target do not overlap.
	target     string
	at, length time.Duration
	// wrong is the offset of a clock.
	wrong time.Duration
}

// String implements fmt.Stringer.
func (f fault) String() string {
	text := fmt.Sprintf("at %5.1fs for %4.1fs: %s (%s)", f.at.Seconds(), f.length.Seconds(), f.kind, f.target)
	if f.wrong != 0 {
		text += fmt.Sprintf(" by %+.1fs", f.wrong.Seconds())
	}
	return text
}

// kinds lists the kinds of faults with their targets, in a fixed order.
var kinds = []struct {
	name    string
	targets []string
}{
	{"kill", []string{"replica-0", "replica-1"}},
	{"kill", []string{"replica-0", "replica-1"}},
	{"kill", []string{cluster.APIServer}},
	{"kill", []string{cluster.Etcd}},
	{"kill", []string{cluster.ControllerManager}},
	{"kill", []string{cluster.Provisioner}},
	{"kill", []string{cluster.Scheduler}},
	{"freeze", []string{"replica-0", "replica-1"}},
	{"full disk", []string{"replica-0", "replica-1"}},
	{"cut to replica", []string{"replica-0", "replica-1"}},
	{"cut from replica", []string{"replica-0", "replica-1"}},
	{"slow API", []string{"replica-0", "replica-1"}},
	{"writes without answer", []string{"replica-0", "replica-1"}},
	{"watches end", []string{"replica-0", "replica-1"}},
	{"history lost", []string{cluster.APIServer}},
	{"quota of etcd", []string{cluster.Etcd}},
	{"conflict storm", []string{"objects"}},
	// A clock is a separate target, so that its fault can overlap with other faults of the replica.
	{wrongClock, []string{clockOf("replica-0"), clockOf("replica-1")}},
	{wrongClock, []string{clockOf("replica-0"), clockOf("replica-1")}},
}

const (
	wrongClock = "wrong clock"
	// A fault lasts from shortest to longest. A wrong clock lasts up to longestClock.
	shortest     = 500 * time.Millisecond
	longest      = 8 * time.Second
	longestClock = 20 * time.Second
	// beforeAll is the offset to a time before all certificates are valid. See cluster.Backdated.
	beforeAll = -3 * time.Hour
)

// clockOf returns the target for the clock of a replica.
func clockOf(replica string) string { return "clock of " + replica }

// drawWrong draws the offset of a clock, from one second up to most, on a logarithmic scale and in both directions.
func drawWrong(rng *rand.Rand, most time.Duration) time.Duration {
	size := time.Duration(math.Pow(most.Seconds(), rng.Float64()) * float64(time.Second)).Round(time.Millisecond)
	if rng.IntN(2) == 0 {
		return -size
	}
	return size
}

// drawConstant draws a replica and the constant offset of its clock. The offset is 0 for two seeds in three.
func drawConstant(seed uint64) (replica int, wrong time.Duration) {
	rng := rand.New(rand.NewPCG(seed, math.MaxUint64))
	if replica = rng.IntN(replicas); seed%3 == 0 {
		wrong = drawWrong(rng, 10*time.Minute)
	}
	return replica, wrong
}

// slack is the minimum time between two faults of the same target.
const slack = 3 * time.Second

// draw draws a schedule. It repeats all kinds of faults in random order. A fault starts every 0.5 to 3 s, multiplied by pace.
func draw(seed uint64, length time.Duration, pace int) []fault {
	rng := rand.New(rand.NewPCG(seed, 0))
	var faults []fault
	busy := map[string]time.Duration{}
	var order []int
	at := time.Second
	for {
		if len(order) == 0 {
			order = rng.Perm(len(kinds))
		}
		kind := kinds[order[0]]
		order = order[1:]
		f := fault{kind: kind.name, target: kind.targets[rng.IntN(len(kind.targets))], at: at, length: lasts(rng, longest)}
		if f.kind == wrongClock {
			f.length = max(min(lasts(rng, longestClock), length-at), shortest)
			if f.wrong = drawWrong(rng, time.Hour); rng.IntN(6) == 0 {
				f.wrong = beforeAll
			}
		}
		if at+f.length > length {
			return faults
		}
		at += time.Duration((500+rng.IntN(2500))*pace) * time.Millisecond
		if f.at < busy[f.target] {
			continue
		}
		busy[f.target] = f.at + f.length + slack
		faults = append(faults, f)
	}
}

// lasts draws the duration of a fault.
func lasts(rng *rand.Rand, most time.Duration) time.Duration {
	return shortest + time.Duration(rng.Int64N(int64((most-shortest)/time.Millisecond)))*time.Millisecond
}

// TestDraw checks that a seed determines the schedule, and that 20 schedules of one minute contain every kind of fault for every target.
func TestDraw(t *testing.T) {
	first, again := draw(7, time.Minute, 1), draw(7, time.Minute, 1)
	assert.Equal(t, first, again)
	seen := map[string]bool{}
	for s := range uint64(20) {
		busy := map[string]time.Duration{}
		for _, f := range draw(s, time.Minute, 1) {
			assert.GreaterOrEqual(t, f.at, busy[f.target], "one at a time: %s", f)
			assert.LessOrEqual(t, f.at+f.length, time.Minute)
			busy[f.target], seen[f.kind+f.target] = f.at+f.length, true
		}
	}
	for _, kind := range kinds {
		for _, target := range kind.targets {
			assert.True(t, seen[kind.name+target], "%s of %s", kind.name, target)
		}
	}
}
