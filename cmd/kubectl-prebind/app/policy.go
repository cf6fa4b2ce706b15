// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jstemmer/go-junit-report/v2/junit"
	"github.com/spf13/cobra"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/policy"
	"github.com/prebind/prebind/internal/policy/cases"
	"github.com/prebind/prebind/internal/policy/files"
	"github.com/prebind/prebind/policy/v1alpha1"
)

// Exit codes of policy check and policy test.
const (
	exitProblem    = 1
	exitUnreadable = 2
)

func newPolicyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check and test BindPolicies in files, without a cluster",
	}
	cmd.AddCommand(newPolicyCheckCommand(), newPolicyTestCommand())
	return cmd
}

func newPolicyCheckCommand() *cobra.Command {
	var o policy.Options
	var strict bool
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Validate, compile and type-check BindPolicies in files",
		Long: `Validate, compile and type-check BindPolicies in files.

The command finds the mistakes that need no cluster to find, and prints each policy
with its problems and warnings. A FILE can be a directory, which is read with its
subdirectories, or - for the standard input. Objects of other kinds and files
*_test.yaml are ignored. If CustomResourceDefinitions are among the files, expressions
are also checked against their schemas.

It does not find missing permissions (reason Forbidden), or kinds and versions that
your API server does not serve (reason UnknownKind).

Exit codes: 0 if all policies are ready, 1 if there is a problem, 2 if a file
cannot be read.`,
		Example: `  kubectl prebind policy check policy.yaml
  kubectl prebind policy check policies crds/raycluster.yaml --key-prefixes=ray.io
  kubectl get bindpolicies -o yaml | kubectl prebind policy check -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.WithCode(exitUnreadable, checkPolicies(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), args, o, strict))
		},
	}
	fs := cmd.Flags()
	fs.StringSliceVar(&o.KeyPrefixes, "key-prefixes", nil, "Prefixes of keys that policies may use in addition to their own. Use the value of --policy-key-prefixes of serve.")
	fs.DurationVar(&o.BindTimeout, "prebind-timeout", 10*time.Minute, "Value of --prebind-timeout of serve. A wait with a longer timeout gets a warning.")
	fs.BoolVar(&strict, "warnings-as-errors", false, "Exit with 1 if there are warnings.")
	return cmd
}

// checkPolicies prints the policies of the files with their problems and warnings.
func checkPolicies(ctx context.Context, in io.Reader, out io.Writer, paths []string, o policy.Options, strict bool) error {
	for _, prefix := range o.KeyPrefixes {
		if problem := policy.ValidateKeyPrefix(prefix); problem != "" {
			return cli.Usage(fmt.Errorf("--key-prefixes: %q: %s", prefix, problem))
		}
	}
	documents, problems, err := files.Read(in, paths...)
	if err != nil {
		return err
	}
	policies, err := files.Check(ctx, documents, o)
	problems = errors.Join(problems, err)
	if problems != nil {
		fmt.Fprintln(out, problems)
	}
	ready, warnings := 0, 0
	for _, p := range policies {
		if p.Ready() {
			ready++
			fmt.Fprintf(out, "%s: BindPolicy %s: ready\n", p.At(""), p.GetName())
		}
		for _, problem := range p.Problems {
			fmt.Fprintf(out, "%s: BindPolicy %s: %s: %s\n", p.At(problem.Field), p.GetName(), problem.Reason, block(problem.Error()+hint(problem.Reason)))
		}
		for _, w := range p.Warnings {
			warnings++
			fmt.Fprintf(out, "%s: BindPolicy %s: warning: %s: %s\n", p.At(w.FieldRef), p.GetName(), w.FieldRef, block(w.Warning))
		}
	}
	if len(policies) == 0 && problems == nil {
		return fmt.Errorf("no BindPolicy in %s", strings.Join(paths, ", "))
	}
	fmt.Fprintf(out, "%d of %d policies ready, %d warnings\n", ready, len(policies), warnings)
	if problems != nil || ready < len(policies) || strict && warnings > 0 {
		return cli.ExitError{Code: exitProblem}
	}
	return nil
}

// hint returns how to allow the key of a problem in this command.
func hint(reason string) string {
	if reason == v1alpha1.ReasonKeyNotAllowed {
		return "; for policy check: --key-prefixes"
	}
	return ""
}

// block indents all lines after the first.
func block(text string) string { return strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") }

// The formats of policy test.
const formatJUnit format = "junit"

func newPolicyTestCommand() *cobra.Command {
	var o testOptions
	cmd := &cobra.Command{
		Use:   "test DIR...",
		Short: "Run the test cases of BindPolicies",
		Long: `Run the test cases of BindPolicies.

The command finds files with the suffix _test.yaml or _test.yml in each DIR and
below. A case contains the objects of a cluster, a bind, and the expected results of the
BindPolicies in the directory of the file. ` + cli.Documentation("policies.md") + `
describes the format.

Exit codes: 0 if all cases pass, 1 if a case fails or a policy or test is invalid,
2 if a file cannot be read.`,
		Example: `  kubectl prebind policy test policies
  kubectl prebind policy test policies -v
  kubectl prebind policy test policies --output=junit --output-file=report.xml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.WithCode(exitUnreadable, testPolicies(cmd.Context(), cmd.OutOrStdout(), args, o))
		},
	}
	fs := cmd.Flags()
	fs.StringVarP((*string)(&o.output), "output", "o", string(formatText), "Output format: text or junit.")
	fs.StringVar(&o.file, "output-file", "", "File for the output. The standard output then contains text.")
	fs.BoolVarP(&o.verbose, "verbose", "v", false, "Print the results of all policies for each case in the format of expect, with their cost. Only for text.")
	return cmd
}

// testOptions are the flags of policy test.
type testOptions struct {
	output  format
	file    string
	verbose bool
}

// testPolicies runs the tests of the directories, and prints the results.
func testPolicies(ctx context.Context, out io.Writer, args []string, o testOptions) error {
	if o.output != formatText && o.output != formatJUnit {
		return cli.Usage(fmt.Errorf("--output: must be %s or %s, got %q", formatText, formatJUnit, o.output))
	}
	var dirs []string
	for _, arg := range args {
		found, err := files.TestDirs(arg)
		if err != nil {
			return err
		}
		if len(found) == 0 {
			return fmt.Errorf("%s: no files with the suffix %s", arg, files.TestSuffix)
		}
		dirs = append(dirs, found...)
	}
	var results []*cases.Result
	for _, dir := range dirs {
		r, err := cases.Run(ctx, dir)
		if err != nil {
			return err
		}
		results = append(results, r)
	}
	if err := writeFile("--output-file", o.file, func(to io.Writer) error { return writeResults(to, results, o) }); err != nil {
		return err
	}
	if o.file != "" {
		o.output = formatText
	}
	if err := writeResults(out, results, o); err != nil {
		return err
	}
	if slices.ContainsFunc(results, (*cases.Result).Failed) {
		return cli.ExitError{Code: exitProblem}
	}
	return nil
}

func writeResults(out io.Writer, results []*cases.Result, o testOptions) error {
	if o.output == formatJUnit {
		return writeJUnit(out, results)
	}
	for _, r := range results {
		if err := r.WriteText(out, o.verbose); err != nil {
			return err
		}
	}
	return nil
}

// writeJUnit writes a suite for each directory. The class of a case is its file.
func writeJUnit(out io.Writer, results []*cases.Result) error {
	var report junit.Testsuites
	for _, r := range results {
		s := junit.Testsuite{Name: r.Dir, Time: "0"}
		for _, c := range r.Cases {
			reported := junit.Testcase{Name: c.Name, Classname: c.File}
			if len(c.Failures) > 0 {
				reported.Failure = junitResult(strings.Join(c.Failures, "\n"))
			}
			s.AddTestcase(reported)
		}
		if r.Err != nil {
			s.AddTestcase(junit.Testcase{Name: "files are valid", Classname: r.Dir, Error: junitResult(r.Err.Error())})
		}
		report.AddSuite(s)
	}
	return report.WriteXML(out)
}

// junitResult returns a text with its first line as the summary.
func junitResult(text string) *junit.Result {
	first, _, _ := strings.Cut(text, "\n")
	return &junit.Result{Message: first, Data: text}
}
