// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// errLocked is what tryLock returns while somebody else holds the lock.
var errLocked = errors.New("locked by another process")

// fileLock is a lock between processes. The operating system frees it when its
// holder ends, however that happens, so there are no stale locks.
type fileLock struct{ file *os.File }

// tryLock takes the lock on the file at path, which it makes if need be, without
// waiting.
func tryLock(path string) (*fileLock, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("make a folder for locks: %w", err)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &fileLock{file: file}, nil
}

// release frees the lock. The file stays: removing it would let two processes
// hold locks on two files of the same name.
func (l *fileLock) release() { _ = l.file.Close() }
