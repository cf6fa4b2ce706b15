// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command example is Prebind with two more plugins and one more mutator.
package main

import (
	"os"

	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/docs/example/after"
	"github.com/prebind/prebind/docs/example/license"
	"github.com/prebind/prebind/docs/example/rack"
)

func main() {
	os.Exit(app.Run(app.WithPlugin(license.Registration()), app.WithPlugin(after.Registration()), app.WithMutator(rack.Registration())))
}
