// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

var lockFileEx = syscall.NewLazyDLL("kernel32.dll").NewProc("LockFileEx")

func lockFile(file *os.File, shared bool) error {
	const (
		failImmediately = 1
		exclusive       = 2
		lockViolation   = syscall.Errno(33)
	)
	flags := uintptr(failImmediately)
	if !shared {
		flags |= exclusive
	}
	locked, _, err := lockFileEx.Call(file.Fd(), flags, 0, 1, 0, uintptr(unsafe.Pointer(&syscall.Overlapped{})))
	switch {
	case locked != 0:
		return nil
	case errors.Is(err, lockViolation):
		return errLocked
	default:
		return fmt.Errorf("lock %s: %w", file.Name(), err)
	}
}
