// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os/exec"
	"runtime"
	"sync"
)

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
