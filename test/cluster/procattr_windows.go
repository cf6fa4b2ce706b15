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
// Our own binaries end with their parent when their standard input does.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: syscall.CREATE_NEW_PROCESS_GROUP}
}

// interruptOnCancel leaves the default, which kills the command: Windows has no
// signal to ask with.
func interruptOnCancel(cmd *exec.Cmd) { cmd.WaitDelay = stopGrace }

// resume does nothing: there is no SIGSTOP to undo.
func resume(*os.Process) {}
