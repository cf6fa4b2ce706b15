// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package cluster

import (
	"os/exec"
	"syscall"
)

// detach puts the child into a process group of its own, so that Ctrl-C in a
// terminal reaches this process only, which then stops its children in order.
// Only Linux can be asked to kill a child with its parent.
func detach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
}
