// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"regexp"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version string

// Version returns the version that the linker has set, or that of the module, with which 'go install' builds the program.
func Version() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}

// released matches the versions of releases, which have a tag: v1.2.3 or v1.2.3-rc.1. Those of git describe and of pseudo-versions differ.
var released = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[a-z]+\.\d+)?$`)

// Documentation returns the address of a page, such as policies.md, of this version. That of a build between releases is the current page.
func Documentation(page string) string {
	ref := "main"
	if v := Version(); released.MatchString(v) {
		ref = v
	}
	return "https://github.com/prebind/prebind/blob/" + ref + "/docs/" + page
}

// UserAgent returns the user agent of all requests to the API server.
func UserAgent() string { return "prebind/" + Version() }

// NewVersionCommand returns the command version.
func NewVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), Version())
			return err
		},
	}
}
