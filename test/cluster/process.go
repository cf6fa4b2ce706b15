// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is the time for a process to exit after a signal.
const stopGrace = 10 * time.Second

// ProcessOptions say what a [Process] runs.
type ProcessOptions struct {
	// Name is for messages. Required.
	Name string
	// Path is the binary. Required.
	Path string
	// Args are its arguments, without its own name.
	Args []string
	// Env is added to this process's environment, as KEY=value.
	Env []string
	// LogFile gets standard output and error, appended over restarts. Required.
	LogFile string
	// Health reports whether the process is ready to serve; nil means always.
	Health func(ctx context.Context) error
	// Grace is how long Stop waits before it kills; 0 is 10 seconds.
	Grace time.Duration
}

// Process is a child process that can be stopped, killed and started again. On Linux the kernel kills it when this process exits. Its methods may be
// called from many goroutines.
type Process struct {
	o ProcessOptions

	mu  sync.Mutex
	run *run // the latest; nil before the first Start
}

// run is one life of a process.
type run struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when it has ended
	err    error         // why, once exited is closed
	asked  bool          // guarded by Process.mu: somebody meant it to end
}

// NewProcess returns a process that has not started.
func NewProcess(o ProcessOptions) *Process {
	if o.Grace == 0 {
		o.Grace = stopGrace
	}
	if o.Health == nil {
		o.Health = func(context.Context) error { return nil }
	}
	return &Process{o: o}
}

// Name returns the name that the process was given.
func (p *Process) Name() string { return p.o.Name }

// LogFile returns the path of its log.
func (p *Process) LogFile() string { return p.o.LogFile }

// Setenv sets an environment variable for later starts.
func (p *Process) Setenv(name, value string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.o.Env = append(p.o.Env, name+"="+value)
}

// Start starts the process and returns without waiting for it to be ready. It is
// an error if it runs already.
func (p *Process) Start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running() {
		return fmt.Errorf("start %s: it runs already", p.o.Name)
	}
	if err := os.MkdirAll(filepath.Dir(p.o.LogFile), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", p.o.Name, err)
	}
	log, err := os.OpenFile(p.o.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("start %s: open its log: %w", p.o.Name, err)
	}
	defer func() { _ = log.Close() }()         // the child has its own
	cmd := exec.Command(p.o.Path, p.o.Args...) //nolint:noctx // it outlives the call: Stop and Kill end it
	cmd.Env = append(os.Environ(), p.o.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	detach(cmd)
	if err := startOnOneThread(cmd); err != nil {
		return fmt.Errorf("start %s: %w", p.o.Name, err)
	}
	r := &run{cmd: cmd, exited: make(chan struct{})}
	p.run = r
	go func() {
		r.err = cmd.Wait()
		close(r.exited)
	}()
	return nil
}

// Run starts the process and waits until it is ready.
func (p *Process) Run(ctx context.Context) error {
	if err := p.Start(); err != nil {
		return err
	}
	return p.WaitReady(ctx)
}

// WaitReady returns when the process is ready, or with an error that holds the
// end of its log as soon as it has ended or ctx has.
func (p *Process) WaitReady(ctx context.Context) error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("wait for %s: start it first", p.o.Name)
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		err := p.o.Health(attempt)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-r.exited:
			return fmt.Errorf("wait for %s: it ended: %w; the end of its log:\n%s", p.o.Name, exitError(r.err), p.Tail(tailLines))
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w; last answer: %w; the end of its log:\n%s", p.o.Name, context.Cause(ctx), err, p.Tail(tailLines))
		case <-tick.C:
		}
	}
}

// Stop signals the process, kills it after stopGrace, and returns after its exit. It returns nil if the process does not run.
func (p *Process) Stop() error {
	return p.end(syscall.SIGTERM)
}

// Kill kills the process, like a crash, and returns after its exit. It returns nil if the process does not run.
func (p *Process) Kill() error {
	return p.end(os.Kill)
}

// Restart stops the process, starts it with the same arguments, and waits until
// it is ready.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Stop(); err != nil {
		return err
	}
	return p.Run(ctx)
}

// Signal sends a signal, such as SIGSTOP or SIGCONT. A signal that ends the
// process makes [Process.Err] report that; Stop and Kill do not.
func (p *Process) Signal(sig os.Signal) error {
	r := p.current()
	if r == nil {
		return fmt.Errorf("signal %s: it was not started", p.o.Name)
	}
	if err := r.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s: %w", p.o.Name, err)
	}
	return nil
}

// PID returns the process id of the latest start, and 0 before the first.
func (p *Process) PID() int {
	if r := p.current(); r != nil {
		return r.cmd.Process.Pid
	}
	return 0
}

// Exited returns a channel that is closed when the latest start has ended; before
// the first start it is closed already.
func (p *Process) Exited() <-chan struct{} {
	if r := p.current(); r != nil {
		return r.exited
	}
	closed := make(chan struct{})
	close(closed)
	return closed
}

// Err returns an error with the end of the log if the process has ended though
// neither Stop nor Kill was called, and nil otherwise.
func (p *Process) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.run == nil || p.running() || p.run.asked {
		return nil
	}
	return fmt.Errorf("%s ended by itself: %w; the end of its log:\n%s", p.o.Name, exitError(p.run.err), p.Tail(tailLines))
}

// tailLines is how much of a log goes into an error or a dump.
const tailLines = 30

// Tail returns the last n lines of the log, of at most 256 KiB, or why it cannot be read.
func (p *Process) Tail(n int) string {
	const most = 256 << 10
	info, err := os.Stat(p.o.LogFile)
	if err == nil && !info.Mode().IsRegular() {
		return "(no log: not a file)"
	}
	content, err := os.ReadFile(p.o.LogFile)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	lines := strings.Split(strings.TrimRight(string(content[max(0, len(content)-most):]), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (p *Process) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.run
}

// running must be called with mu held.
func (p *Process) running() bool {
	if p.run == nil {
		return false
	}
	select {
	case <-p.run.exited:
		return false
	default:
		return true
	}
}

// end sends sig, waits for the grace, and then kills.
func (p *Process) end(sig os.Signal) error {
	p.mu.Lock()
	r := p.run
	if !p.running() {
		p.mu.Unlock()
		return nil
	}
	r.asked = true
	p.mu.Unlock()
	// A stopped process (SIGSTOP) would not see anything but a kill.
	_ = r.cmd.Process.Signal(syscall.SIGCONT)
	if err := r.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.o.Name, err)
	}
	select {
	case <-r.exited:
		return nil
	case <-time.After(p.o.Grace):
	}
	if err := r.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.o.Name, err)
	}
	<-r.exited
	return nil
}

// exitError gives an exit with code 0 an error, too.
func exitError(err error) error {
	if err == nil {
		return errors.New("exit code 0")
	}
	return err
}

// forker makes startOnOneThread's thread on first use.
var forker = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		// Never unlocked: the thread has to live as long as the process does,
		// because Linux kills the children when the thread that started them
		// ends, and Go ends threads as it likes.
		runtime.LockOSThread()
		for do := range work {
			do()
		}
	}()
	return work
})

// startOnOneThread starts the command from the one thread that lives as long as
// this process.
func startOnOneThread(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	forker() <- func() { result <- cmd.Start() }
	return <-result
}
