// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli contains what the programs of Prebind share: how they report errors, and their version.
package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/prebind/prebind/internal/text"
)

// usageCode is the exit code for a wrong command line: EX_USAGE of sysexits.h. No result of a command has this code.
const usageCode = 64

// ExitError ends the program with an exit code other than 1.
type ExitError struct {
	Code int
	// Err is the cause. It may be nil: then the program prints nothing.
	Err error
}

// Error implements error.
func (e ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

// Unwrap returns the cause, if any.
func (e ExitError) Unwrap() error { return e.Err }

// WithCode returns an ExitError for an error that is none.
func WithCode(code int, err error) error {
	var exit ExitError
	if err == nil || errors.As(err, &exit) {
		return err
	}
	return ExitError{Code: code, Err: err}
}

// Usage returns an error for a wrong command line with all problems in one line, or nil if there are none.
func Usage(problems ...error) error {
	err := errors.Join(problems...)
	if err == nil {
		return nil
	}
	return WithCode(usageCode, errors.New(strings.ReplaceAll(err.Error(), "\n", "; ")))
}

// ExitCode returns the exit code for an error of a command.
func ExitCode(err error) int {
	var exit ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.Code
	default:
		return 1
	}
}

// Run runs the command until the process is interrupted, prints its error, and returns the exit code. A second signal kills the
// process, so that its exit status is not that of a result.
func Run(root *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // The root of all contexts.
	defer stop()
	context.AfterFunc(ctx, stop)
	err := root.ExecuteContext(ctx)
	if err != nil && err.Error() != "" {
		fmt.Fprintln(root.ErrOrStderr(), "error:", text.Lines(err.Error()))
	}
	return ExitCode(err)
}

// Configure makes all commands below root report each error of usage in one line, as an error of Usage. Call it after the last
// command was added.
func Configure(root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetGlobalNormalizationFunc(cliflag.WordSepNormalizeFunc)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	configure(root)
}

func configure(cmd *cobra.Command) {
	for _, below := range cmd.Commands() {
		configure(below)
	}
	args := cmd.Args
	if cmd.HasSubCommands() {
		args = unknownCommand
		cmd.RunE = missingCommand
	}
	if args != nil {
		cmd.Args = func(cmd *cobra.Command, given []string) error { return Usage(args(cmd, given)) }
	}
}

// unknownCommand is cobra.NoArgs with suggestions, for a command that has commands.
func unknownCommand(cmd *cobra.Command, args []string) error {
	err := cobra.NoArgs(cmd, args)
	if err == nil {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // The default of cobra.
	if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		return fmt.Errorf("%w; did you mean %q?", err, strings.Join(like, `" or "`))
	}
	return err
}

// missingCommand prints the help, and is an error of all commands but the root, so that a script with an empty variable fails.
func missingCommand(cmd *cobra.Command, _ []string) error {
	if err := cmd.Help(); err != nil || !cmd.HasParent() {
		return err
	}
	return Usage(fmt.Errorf("missing subcommand of '%s'", cmd.CommandPath()))
}
