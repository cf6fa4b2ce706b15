// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
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
