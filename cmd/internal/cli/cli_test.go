// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// interruptedVariable is set in the process that TestRun_SecondInterrupt starts.
const interruptedVariable = "PREBIND_TEST_INTERRUPTED"

// TestRun_SecondInterrupt checks that a command can clean up after an interrupt, and that another interrupt kills the process. An exit
// code would be that of a result.
func TestRun_SecondInterrupt(t *testing.T) {
	if os.Getenv(interruptedVariable) != "" {
		root := &cobra.Command{RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Println("running")
			<-cmd.Context().Done()
			fmt.Println("cleaning up")
			select {}
		}}
		root.SetArgs([]string{})
		os.Exit(Run(root)) //nolint:forbidigo // The process is a program.
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	command.Env = append(os.Environ(), interruptedVariable+"=1")
	stdout, err := command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, command.Start())
	lines := bufio.NewScanner(stdout)
	require.True(t, lines.Scan())
	assert.Equal(t, "running", lines.Text())
	require.NoError(t, command.Process.Signal(os.Interrupt))
	require.True(t, lines.Scan())
	assert.Equal(t, "cleaning up", lines.Text())

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // The state contains the result.
	}()
	require.Eventually(t, func() bool {
		_ = command.Process.Signal(os.Interrupt) // It fails after the end.
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}, 30*time.Second, 10*time.Millisecond)
	status, ok := command.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	assert.Equal(t, syscall.SIGINT, status.Signal(), "%s", command.ProcessState)
}
