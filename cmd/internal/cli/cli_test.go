// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"bytes"
	"errors"
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
// code would be that of a result. The signal is SIGTERM, because a process whose parent ignores SIGINT also ignores the second one.
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
	require.NoError(t, command.Process.Signal(syscall.SIGTERM))
	require.True(t, lines.Scan())
	assert.Equal(t, "cleaning up", lines.Text())

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = command.Wait() // The state contains the result.
	}()
	require.Eventually(t, func() bool {
		_ = command.Process.Signal(syscall.SIGTERM) // It fails after the end.
		select {
		case <-ended:
			return true
		default:
			return false
		}
	}, 30*time.Second, 10*time.Millisecond)
	status, ok := command.ProcessState.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	assert.Equal(t, syscall.SIGTERM, status.Signal(), "%s", command.ProcessState)
}

// An error can contain the message of a webhook.
func TestRun_ControlCharacters(t *testing.T) {
	var out bytes.Buffer
	root := &cobra.Command{RunE: func(*cobra.Command, []string) error { return errors.New("rejected: \x1b[2J") }, SilenceErrors: true, SilenceUsage: true}
	root.SetArgs([]string{})
	root.SetErr(&out)
	assert.Equal(t, 1, Run(root))
	assert.Equal(t, "error: rejected: ?[2J\n", out.String())
}

func TestDocumentation(t *testing.T) {
	cases := map[string]struct{ reason, ref string }{
		"v1.2.3":                             {reason: "a release", ref: "v1.2.3"},
		"v1.2.3-rc.1":                        {reason: "a release candidate has a tag too", ref: "v1.2.3-rc.1"},
		"v1.2.3-4-g35425f0":                  {reason: "git describe after a tag", ref: "main"},
		"v1.2.3-dirty":                       {reason: "git describe with changes", ref: "main"},
		"35425f0":                            {reason: "git describe without a tag", ref: "main"},
		"v1.2.4-0.20260101000000-35425f0aaa": {reason: "a pseudo-version of go install", ref: "main"},
		"":                                   {reason: "go build without flags", ref: "main"},
	}
	for text, tc := range cases {
		t.Run(text, func(t *testing.T) {
			before := version
			t.Cleanup(func() { version = before })
			version = text
			assert.Equal(t, "https://github.com/prebind/prebind/blob/"+tc.ref+"/docs/policies.md", Documentation("policies.md"), tc.reason)
		})
	}
}
