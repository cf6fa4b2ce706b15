// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"os/exec"
	"syscall"
)

// detach puts the child into a process group of its own, so that Ctrl-C in a
// terminal reaches this process only, which then stops its children in order.
// And it has the kernel kill the child when the thread that started it ends:
// that is why [startOnOneThread] starts them all.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// interruptOnCancel asks the command to end when its context does.
func interruptOnCancel(cmd *exec.Cmd) {
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopGrace
}

// resume continues a process that SIGSTOP has stopped.
func resume(p *os.Process) { _ = p.Signal(syscall.SIGCONT) }
