// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command test-provisioner is the test provisioner alone, for those who bring
// the control plane's other binaries themselves and should not have to wait for
// them to be built.
package main

import (
	"os"

	"k8s.io/component-base/cli"

	"github.com/prebind/prebind/test/controlplane/internal/parent"
	"github.com/prebind/prebind/test/controlplane/provisioner"
)

func main() {
	parent.ExitWith()
	os.Exit(cli.Run(provisioner.NewCommand()))
}
