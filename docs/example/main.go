// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command example is Prebind with two more plugins.
package main

import (
	"os"

	"github.com/prebind/prebind/cmd/prebind/app"
	"github.com/prebind/prebind/docs/example/after"
	"github.com/prebind/prebind/docs/example/nodelock"
)

func main() {
	os.Exit(app.Run(app.WithPlugin(nodelock.Registration()), app.WithPlugin(after.Registration())))
}
