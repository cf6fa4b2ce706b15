// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command prebind is an admission webhook for Bindings with mutators and PreBind plugins.
package main

import (
	"os"

	"github.com/prebind/prebind/cmd/prebind/app"
)

func main() { os.Exit(app.Run()) }
