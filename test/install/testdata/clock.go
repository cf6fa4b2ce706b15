// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// This file becomes part of package time of a Prebind that is built with
// BuildOptions.Clock. Package time can import little: no os, no strconv.

package time

import (
	"sync/atomic"
	"syscall"
)

// wrong is by how many nanoseconds the wall clock is.
var wrong atomic.Int64

// init reads the offset before anybody can ask for the time, and then follows the
// file: a clock is stepped in a running process.
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

// readWrong reads a number of nanoseconds. Without a file the clock is right; what
// cannot be read leaves it as it is.
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

// wrongWall is what a wrong clock shows for that time.
func wrongWall(sec int64, nsec int32) (int64, int32) {
	sum := int64(nsec) + wrong.Load()
	sec += sum / 1e9
	if sum %= 1e9; sum < 0 {
		sec, sum = sec-1, sum+1e9
	}
	return sec, int32(sum)
}
