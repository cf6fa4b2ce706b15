// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package binder

import (
	"testing"

	"github.com/stretchr/testify/assert"
	authenticationv1 "k8s.io/api/authentication/v1"
)

// TestSeats tests that users with and without exemption have seats of their own, and that all of them together leave connections free.
func TestSeats(t *testing.T) {
	s := seats{isExempt: func(u authenticationv1.UserInfo) bool { return u.Username == "exempt" }}
	count := func(user string) (taken int, leave func()) {
		for {
			next := s.take(authenticationv1.UserInfo{Username: user}, 3)
			if next == nil {
				return taken, leave
			}
			taken, leave = taken+1, next
		}
	}
	exempt, leaveExempt := count("exempt")
	others, leave := count("other")
	assert.Equal(t, maxExempt, exempt)
	assert.Equal(t, 3, others)
	held, most := s.count(3)
	assert.Equal(t, maxExempt+3, held)
	assert.Equal(t, maxExempt+3, most)

	leave()
	again, _ := count("exempt")
	assert.Zero(t, again, "the seat of another user is not theirs")
	leaveExempt()
	again, _ = count("exempt")
	assert.Equal(t, 1, again)
}

// TestSeats_MemoryOfANamespace: large pods and Bindings of one tenant take no memory from another one.
func TestSeats_MemoryOfANamespace(t *testing.T) {
	var s seats
	assert.True(t, s.grow("a", maxHeld-1))
	assert.False(t, s.grow("a", 2), "the limit of the namespace")
	assert.True(t, s.grow("b", 2), "another namespace has its own limit")
	s.grow("a", 1-maxHeld)
	s.grow("b", -2)
	assert.True(t, s.grow("a", maxHeld), "a call that ends gives its memory back")
	s.grow("a", -maxHeld)
	assert.Empty(t, s.size)
}
