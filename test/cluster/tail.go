// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// tailLines is how much of a log goes into an error or a dump.
const tailLines = 30

// tail returns the last n lines of a file, of at most 256 KiB, or why it cannot
// be read: it goes into messages that are about something else.
func tail(path string, n int) string {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	defer func() { _ = file.Close() }()
	const most = 256 << 10
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		return "(no log: not a file)"
	}
	if err == nil && info.Size() > most {
		if _, err := file.Seek(-most, io.SeekEnd); err != nil {
			return fmt.Sprintf("(no log: %v)", err)
		}
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return fmt.Sprintf("(no log: %v)", err)
	}
	lines := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}
