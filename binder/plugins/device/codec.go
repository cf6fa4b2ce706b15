// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/prebind/prebind/internal/ledger"
)

const recordPrefix = "prebind-devices-"

// recordName returns the name of the ConfigMap for a node. If the name would be too long, it
// is truncated and ends with a hash of the node name.
func recordName(node string) string {
	name := recordPrefix + node
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	sum := sha256.Sum256([]byte(node))
	end := "-" + hex.EncodeToString(sum[:8])
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-len(end)], "-.") + end
}

// Key implements ledger.Record.
func (r *record) Key() string { return r.Node }

// Encode implements ledger.Record.
func (r *record) Encode() (map[string]string, error) {
	data := map[string]string{nodeField: r.Node}
	var errs []error
	put := func(key string, value any) {
		var err error
		data[key], err = ledger.Marshal(value)
		errs = append(errs, err)
	}
	for uid, e := range r.Entries {
		put(string(uid), e)
	}
	if r.Lock != nil {
		put(lockField, r.Lock)
	}
	return data, errors.Join(errs...)
}

// decode is the reverse of Encode. It is strict, because a grant that is lost is a device
// granted twice.
func decode(data map[string]string) (*record, error) {
	r := newRecord(data[nodeField])
	for key, text := range data {
		var value interface{ check() error }
		switch key {
		case nodeField:
			continue
		case lockField:
			r.Lock = &lock{}
			value = r.Lock
		default:
			e := &entry{}
			r.Entries[types.UID(key)] = e
			value = e
		}
		err := ledger.Unmarshal(text, value)
		if err == nil {
			err = value.check()
		}
		if err != nil {
			return nil, ledger.Unreadable(key, err, "fix it, or delete the key if the pod holds no devices of the node")
		}
	}
	return r, nil
}

func (l *lock) check() error {
	if l.Pod == (ledger.ObjectName{}) || l.UID == "" || len(l.Attempts) == 0 || slices.Contains(l.Attempts, "") || l.Expires.IsZero() {
		return errors.New("pod, uid, attempts and expires are required")
	}
	return nil
}

func (e *entry) check() error {
	if e.Pod == (ledger.ObjectName{}) || len(e.Grants) == 0 {
		return errors.New("pod and grants are required")
	}
	for _, g := range e.Grants {
		if len(g.Devices) == 0 || g.Attempt == "" && !e.Bound {
			return errors.New("attempt and devices are required in a grant")
		}
		for key, ids := range g.Devices {
			if len(ids) == 0 || key == "" {
				return fmt.Errorf("resource %q: requires a name and devices", clip(key))
			}
			for id, s := range ids {
				if id == "" || s <= 0 {
					return fmt.Errorf("device %q: requires a name and a share", clip(id))
				}
			}
		}
	}
	return nil
}
