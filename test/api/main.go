// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command api writes docs/api.txt, the list of all names that docs/api-policy.md covers, from the code and the manifests.
// It fails if an item of the committed list is missing or different, and names the item. It adds new items.
//
//	go run ./test/api -out docs/api.txt
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// list is the committed list, relative to the root of the repository.
const list = "docs/api.txt"

func main() {
	out := flag.String("out", list, "File to write.")
	flag.Parse()
	if err := run(context.Background(), *out); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// run writes the list of the repository in the current directory.
func run(ctx context.Context, out string) error {
	committed, err := os.ReadFile(list)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	now, err := collect(ctx)
	if err != nil {
		return err
	}
	if problems := incompatible(parse(string(committed)), now); len(problems) > 0 {
		return fmt.Errorf("the API changed:\n  %s\n"+
			"Users depend on these items. Keep them, and deprecate them first, as docs/api-policy.md describes.\n"+
			"If the policy permits the change, delete the lines from %s, run 'make generate', and describe the change in CHANGELOG.md",
			strings.Join(problems, "\n  "), list)
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	return os.WriteFile(out, []byte(now.String()), 0o644)
}
