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

	"github.com/prebind/prebind/binder/ledger"
)

const (
	recordPrefix = "prebind-devices-"
	// recordValue is the component of the records.
	recordValue = "prebind-device-record"
)

// recordName returns the name of the node's record. A node's name can be as long as that
// of a ConfigMap. A long one is cut, and made unique by a hash.
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

// decode is the reverse of Encode. Whatever cannot be read is an error: a grant that is
// lost is a device given twice.
func decode(data map[string]string) (*record, error) {
	r := newRecord(data[nodeField])
	for key, text := range data {
		if err := r.decodeKey(key, text); err != nil {
			return nil, ledger.Unreadable(key, err, "correct it, or delete the key when you know that the pod holds no devices of the node")
		}
	}
	return r, nil
}

func (r *record) decodeKey(key, text string) error {
	switch key {
	case nodeField:
		return nil
	case lockField:
		r.Lock = &lock{}
		if err := ledger.Unmarshal(text, r.Lock); err != nil {
			return err
		}
		return r.Lock.check()
	default:
		e := &entry{}
		r.Entries[types.UID(key)] = e
		if err := ledger.Unmarshal(text, e); err != nil {
			return err
		}
		return e.check()
	}
}

func (l *lock) check() error {
	if l.Pod == (ledger.ObjectName{}) || l.UID == "" || len(l.Attempts) == 0 || slices.Contains(l.Attempts, "") || l.Expires.IsZero() {
		return errors.New("pod, uid, attempts or expires is missing")
	}
	return nil
}

func (e *entry) check() error {
	if e.Pod == (ledger.ObjectName{}) || len(e.Grants) == 0 {
		return errors.New("pod or grants is missing")
	}
	for _, g := range e.Grants {
		if len(g.Devices) == 0 || g.Attempt == "" && !e.Bound {
			return errors.New("attempt or devices is missing in a grant")
		}
		for key, ids := range g.Devices {
			if len(ids) == 0 || key == "" {
				return fmt.Errorf("the resource %q has no devices or no name", short(key))
			}
			for id, s := range ids {
				if id == "" || s <= 0 {
					return fmt.Errorf("the device %q has no share or no name", short(id))
				}
			}
		}
	}
	return nil
}
