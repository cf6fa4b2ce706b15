// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// The build adds this file to package time if BuildOptions.Clock is set. Package time cannot import packages such as os and
// strconv.

package time

import (
	"sync/atomic"
	"syscall"
)

// wrong is the offset of the wall clock in nanoseconds.
var wrong atomic.Int64

// init reads the offset before any other package can read the time. It then polls the file, so that the clock of a running
// process can change.
func init() {
	name, found := syscall.Getenv("PREBIND_TEST_CLOCK")
	if !found {
		return
	}
	readWrong(name)
	go func() {
		for {
			Sleep(100 * Millisecond)
			readWrong(name)
		}
	}()
}

// readWrong reads the offset in nanoseconds. Without a file the offset is 0. An invalid file does not change the offset.
func readWrong(name string) {
	file, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err == syscall.ENOENT {
		wrong.Store(0)
	}
	if err != nil {
		return
	}
	var text [32]byte
	n, err := syscall.Read(file, text[:])
	_ = syscall.Close(file)
	if err != nil {
		return
	}
	sign, sum := int64(1), int64(0)
	for i, c := range text[:n] {
		switch {
		case i == 0 && c == '-':
			sign = -1
		case c >= '0' && c <= '9':
			sum = 10*sum + int64(c-'0')
		default:
			return
		}
	}
	wrong.Store(sign * sum)
}

// wrongWall adds the offset to a time.
func wrongWall(sec int64, nsec int32) (int64, int32) {
	sum := int64(nsec) + wrong.Load()
	sec += sum / 1e9
	if sum %= 1e9; sum < 0 {
		sec, sum = sec-1, sum+1e9
	}
	return sec, int32(sum)
}
