// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"syscall/js"
)

// main sets the function prebindCheck(policies, test), which returns the report as JSON, and never ends.
func main() {
	js.Global().Set("prebindCheck", js.FuncOf(func(_ js.Value, args []js.Value) any {
		content, err := json.Marshal(check(context.Background(), args[0].String(), args[1].String()))
		if err != nil {
			panic(err) // The page shows that the program ended.
		}
		return string(content)
	}))
	select {}
}
