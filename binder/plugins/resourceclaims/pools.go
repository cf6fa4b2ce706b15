// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/binder/ledger"
)

const (
	// poolComponent is the value of ledger.Label on the records of pools.
	poolComponent = "prebind-pool-record"

	driverField  = "driver"
	poolField    = "pool"
	devicePrefix = "device."
)

// poolID names a pool of devices.
type poolID struct{ driver, pool string }

// key is unique: the name of a driver has no slash.
func (id poolID) key() string { return id.driver + "/" + id.pool }

// String implements fmt.Stringer.
func (id poolID) String() string { return id.key() }

func (id poolID) device(name string) deviceID {
	return structured.MakeDeviceID(id.driver, id.pool, name)
}

// recordName returns the name of the pool's record. It is a hash, because names of pools
// can contain slashes.
func (id poolID) recordName() string {
	sum := sha256.Sum256([]byte(id.driver + "\n" + id.pool))
	return "prebind-pool-" + hex.EncodeToString(sum[:16])
}

func poolOf(slice *resourcev1.ResourceSlice) poolID {
	return poolID{driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name}
}

// poolsOf returns the pools of the devices, each once, in order.
func poolsOf(devices sets.Set[deviceID]) []poolID { return inOrder(sets.KeySet(byPool(devices))) }

// byPool returns the names of the devices, by pool.
func byPool(devices sets.Set[deviceID]) map[poolID][]string {
	names := map[poolID][]string{}
	for d := range devices {
		id := poolID{driver: d.Driver.String(), pool: d.Pool.String()}
		names[id] = append(names[id], d.Device.String())
	}
	return names
}

// inOrder sorts pools. Records are written in this order.
func inOrder(pools sets.Set[poolID]) []poolID {
	return slices.SortedFunc(maps.Keys(pools), func(a, b poolID) int { return strings.Compare(a.key(), b.key()) })
}

func keysOf(pools []poolID) []string {
	keys := make([]string, 0, len(pools))
	for _, id := range pools {
		keys = append(keys, id.key())
	}
	return keys
}

// poolRecord contains the devices of one pool that Prebind has allocated.
type poolRecord struct {
	id poolID
	// entries by device.
	entries map[string]entry
}

// entry is the claim that a device was allocated to. It holds the device while the claim has
// the device, and while a write that requires Version may still allocate it. It is stale for
// good if the claim has a later resourceVersion and does not have the device. Annotations of
// the claim do not matter, because tenants can write them.
type entry struct {
	Claim   ledger.ObjectName `json:"claim"`
	UID     types.UID         `json:"uid"`
	Attempt string            `json:"attempt"`
	// Version is the resourceVersion of the claim that the write of the allocation
	// requires.
	Version string `json:"version"`
}

// Key implements ledger.Record.
func (r *poolRecord) Key() poolID { return r.id }

// Encode implements ledger.Record.
func (r *poolRecord) Encode() (map[string]string, error) {
	data := map[string]string{driverField: r.id.driver, poolField: r.id.pool}
	var errs []error
	for device, e := range r.entries {
		text, err := ledger.Marshal(e)
		data[devicePrefix+device] = text
		errs = append(errs, err)
	}
	return data, errors.Join(errs...)
}

func newPoolRecord(id poolID) *poolRecord { return &poolRecord{id: id, entries: map[string]entry{}} }

// decodePool is the reverse of Encode. It ignores keys that do not name a device.
func decodePool(data map[string]string) (*poolRecord, error) {
	r := newPoolRecord(poolID{driver: data[driverField], pool: data[poolField]})
	if r.id.driver == "" || r.id.pool == "" {
		return nil, fmt.Errorf("the keys %s and %s are required", driverField, poolField)
	}
	for key, text := range data {
		device, ok := strings.CutPrefix(key, devicePrefix)
		if !ok {
			continue
		}
		var e entry
		err := ledger.Unmarshal(text, &e)
		if err == nil && (e.UID == "" || e.Version == "" || e.Claim == ledger.ObjectName{}) {
			err = errors.New("claim, uid and version are required")
		}
		if err != nil {
			return nil, ledger.Unreadable(key, err, "fix it, or delete the key if no claim has the device")
		}
		r.entries[device] = e
	}
	return r, nil
}

// poolVersion is a record as it was read or written last.
type poolVersion = ledger.Version[*poolRecord]

// pools stores the records. It always reads them from the API server, because a decision
// about several records must not mix versions of different age.
type pools struct {
	*ledger.Store[poolID, *poolRecord]
	live framework.Reader
}

func openPools(h framework.Handle) pools {
	return pools{live: h.Live, Store: ledger.Open(h, ledger.Kind[poolID, *poolRecord]{
		Component: poolComponent, Name: poolID.recordName, Decode: decodePool,
		Missing: func(_ context.Context, id poolID) (*poolRecord, error) { return newPoolRecord(id), nil },
	})}
}

// read returns the existing records of the pools, and an error if some of them cannot be
// decoded. The result is nil if the API server did not respond.
func (s pools) read(ctx context.Context, ids []poolID) ([]*poolVersion, error) {
	records := make([]*poolVersion, 0, len(ids))
	var unreadable error
	for _, id := range ids {
		v, err := s.Get(ctx, s.live, id)
		switch {
		case errors.Is(err, ledger.ErrUnreadable):
			unreadable = err
		case err != nil:
			return nil, err
		case v != nil:
			records = append(records, v)
		}
	}
	return records, unreadable
}

// take records that the claim has the devices, pool by pool in order. If it returns
// ledger.ErrChanged, it may have written some records: the next choice for the same claim
// ignores these entries, and giveBack or tidy removes them.
func (s pools) take(ctx context.Context, records []*poolVersion, e entry, devices sets.Set[deviceID]) error {
	chosen := byPool(devices)
	changed := sets.KeySet(chosen)
	all := map[poolID]*poolVersion{}
	for _, v := range records {
		all[v.Record.id] = v
		// An earlier choice for this claim took the device, and this one does not.
		for device, had := range v.Record.entries {
			if had.UID == e.UID && had.Attempt == e.Attempt && !devices.Has(v.Record.id.device(device)) {
				delete(v.Record.entries, device)
				changed.Insert(v.Record.id)
			}
		}
	}
	for _, id := range inOrder(changed) {
		v := all[id]
		if v == nil {
			v = &poolVersion{Record: newPoolRecord(id)}
		}
		for _, device := range chosen[id] {
			v.Record.entries[device] = e
		}
		if err := s.Write(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// giveBack removes the entries of the attempt for the claim, except for the devices in keep.
// It ignores records that cannot be decoded.
func (s pools) giveBack(ctx context.Context, ids []poolID, claim types.UID, attempt string, keep sets.Set[deviceID]) error {
	for _, id := range ids {
		err := s.Update(ctx, id, func(r *poolRecord, _ bool) (bool, error) {
			before := len(r.entries)
			maps.DeleteFunc(r.entries, func(device string, e entry) bool {
				return e.UID == claim && e.Attempt == attempt && !keep.Has(id.device(device))
			})
			return len(r.entries) < before, nil
		})
		if err != nil && !errors.Is(err, ledger.ErrUnreadable) {
			return err
		}
	}
	return nil
}

// drop removes devices from a record, and deletes the record if it is then empty. It does
// nothing if the record has changed.
func (s pools) drop(ctx context.Context, v *poolVersion, devices []string) error {
	for _, device := range devices {
		delete(v.Record.entries, device)
	}
	write := s.Write
	if len(v.Record.entries) == 0 {
		write = s.Delete
	}
	if err := write(ctx, v); !errors.Is(err, ledger.ErrChanged) {
		return err
	}
	return nil
}

// gave reports whether the attempt, or any attempt for "", allocated the claim according to
// the records. It ignores records that cannot be decoded.
func (s pools) gave(ctx context.Context, claim *resourcev1.ResourceClaim, attempt string) (bool, error) {
	records, err := s.read(ctx, poolsOf(devicesOf(claim.Status.Allocation)))
	if records == nil {
		return false, err
	}
	return recorded(records, claim, attempt), nil
}

// recorded reports whether the records contain all devices of the claim for the attempt, or
// any attempt for "". Then Prebind has allocated the claim.
func recorded(records []*poolVersion, claim *resourcev1.ResourceClaim, attempt string) bool {
	missing := devicesOf(claim.Status.Allocation)
	some := len(missing) > 0
	for _, v := range records {
		for device, e := range v.Record.entries {
			if e.UID == claim.UID && (attempt == "" || e.Attempt == attempt) {
				missing.Delete(v.Record.id.device(device))
			}
		}
	}
	return some && len(missing) == 0
}
