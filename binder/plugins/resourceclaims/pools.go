// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package resourceclaims

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
)

const (
	// poolLabel and its value tell the records of pools from other ConfigMaps.
	poolLabel = "app.kubernetes.io/component"
	poolValue = "prebind-pool-record"

	driverField  = "driver"
	poolField    = "pool"
	devicePrefix = "device."
)

// errOthersWrote: the records have changed since they were read.
var errOthersWrote = errors.New("the record of a pool was changed meanwhile")

// poolRecord is what Prebind has allocated of one pool, as a ConfigMap in its
// namespace.
type poolRecord struct {
	driver, pool string
	// entries by device.
	entries map[string]entry
	// object is what it was read from; nil for one that does not exist yet.
	object *corev1.ConfigMap
}

// entry is the claim that a device was given to. It holds the device while the claim has
// the device, and while a write that requires the Version may still give it to the claim.
// If the claim has a later resourceVersion and not the device, the entry is stale for
// good. Annotations of the claim, which a tenant can write, do not matter.
type entry struct {
	Claim   claimName `json:"claim"`
	UID     types.UID `json:"uid"`
	Attempt string    `json:"attempt"`
	// Version is the resourceVersion of the claim that the write of the allocation
	// requires. It is empty in entries of earlier versions of Prebind.
	Version string `json:"version,omitempty"`
}

// poolID names a pool of devices.
type poolID struct{ driver, pool string }

// key is unique: the name of a driver has no slash.
func (id poolID) key() string { return id.driver + "/" + id.pool }

func poolOf(slice *resourcev1.ResourceSlice) poolID {
	return poolID{driver: slice.Spec.Driver, pool: slice.Spec.Pool.Name}
}

// poolsOf returns the pools of the devices, each once, in order.
func poolsOf(devices sets.Set[deviceID]) []poolID {
	pools := sets.New[poolID]()
	for d := range devices {
		pools.Insert(poolID{driver: d.Driver.String(), pool: d.Pool.String()})
	}
	return inOrder(pools)
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

// claimName is written as namespace/name.
type claimName types.NamespacedName

// MarshalText implements encoding.TextMarshaler.
func (n claimName) MarshalText() ([]byte, error) { return []byte(n.Namespace + "/" + n.Name), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *claimName) UnmarshalText(text []byte) error {
	namespace, name, ok := strings.Cut(string(text), "/")
	if !ok || namespace == "" || name == "" {
		return errors.New("not a namespace/name of a claim")
	}
	*n = claimName{Namespace: namespace, Name: name}
	return nil
}

func (r *poolRecord) id(device string) deviceID {
	return structured.MakeDeviceID(r.driver, r.pool, device)
}

// poolRecordName returns the name of a pool's record. It is a hash, because drivers and
// pools have slashes in their names; the record names both.
func poolRecordName(driver, pool string) string {
	sum := sha256.Sum256([]byte(driver + "\n" + pool))
	return "prebind-pool-" + hex.EncodeToString(sum[:16])
}

func decodePool(object *corev1.ConfigMap) (*poolRecord, error) {
	r := &poolRecord{driver: object.Data[driverField], pool: object.Data[poolField], entries: map[string]entry{}, object: object}
	about := framework.Object{Kind: "ConfigMap", Namespace: object.Namespace, Name: object.Name}
	if r.driver == "" || r.pool == "" {
		return nil, framework.Internal(about, fmt.Errorf("its keys %s and %s are missing", driverField, poolField)).Advise("delete it when no claim holds devices of the pool")
	}
	for key, text := range object.Data {
		device, ok := strings.CutPrefix(key, devicePrefix)
		if !ok {
			continue
		}
		var e entry
		if err := json.Unmarshal([]byte(text), &e); err != nil || e.UID == "" || e.Claim == (claimName{}) {
			return nil, framework.Internal(about, fmt.Errorf("its key %q, which says who holds the device, cannot be read", key)).
				Advise("correct it, or delete the key when you know that nobody holds the device")
		}
		r.entries[device] = e
	}
	return r, nil
}

func (r *poolRecord) encode() (map[string]string, error) {
	data := map[string]string{driverField: r.driver, poolField: r.pool}
	for device, e := range r.entries {
		text, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		data[devicePrefix+device] = string(text)
	}
	return data, nil
}

// pools reads and writes the records. Every write requires that the record has not changed
// since it was read.
type pools struct {
	live      client.Reader
	writer    client.Writer
	namespace string
}

// list returns all records that can be decoded, as the API server has them, together with
// an error if there are others.
func (s *pools) list(ctx context.Context) ([]*poolRecord, error) {
	var objects corev1.ConfigMapList
	if err := s.live.List(ctx, &objects, client.InNamespace(s.namespace), client.MatchingLabels{poolLabel: poolValue}); err != nil {
		return nil, framework.FromAPI(framework.Object{Kind: "ConfigMap", Namespace: s.namespace, Name: "prebind-pool-*"}, "reading the records of the pools", err)
	}
	records := make([]*poolRecord, 0, len(objects.Items))
	var broken error
	for i := range objects.Items {
		r, err := decodePool(&objects.Items[i])
		if err != nil {
			broken = err
			continue
		}
		records = append(records, r)
	}
	return records, broken
}

// read returns the records of the pools that exist and can be decoded, as the API server
// has them, together with an error if there are others. The records are nil if the API
// server did not answer.
func (s *pools) read(ctx context.Context, ids []poolID) ([]*poolRecord, error) {
	records := make([]*poolRecord, 0, len(ids))
	var broken error
	for _, id := range ids {
		object := &corev1.ConfigMap{}
		name := poolRecordName(id.driver, id.pool)
		err := s.live.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: name}, object)
		if apierrors.IsNotFound(err) {
			continue
		}
		about := framework.Object{Kind: "ConfigMap", Namespace: s.namespace, Name: name}
		if err != nil {
			return nil, framework.FromAPI(about, "reading the record of a pool", err)
		}
		r, err := decodePool(object)
		switch {
		case err != nil:
			broken = err
		case r.driver != id.driver || r.pool != id.pool:
			broken = framework.Internal(about, fmt.Errorf("it is the record of the pool %s of %s, and stands under the name of the pool %s of %s", r.pool, r.driver, id.pool, id.driver)).
				Advise("correct it, or delete it when no claim holds devices of the pool")
		default:
			records = append(records, r)
		}
	}
	return records, broken
}

// take writes into the records that the claim has the devices. It goes through the pools
// in order. If it returns errOthersWrote, it may have written some of them: the next
// choice for the same claim finds them free, and giveBack or tidy removes the rest.
func (s *pools) take(ctx context.Context, records []*poolRecord, e entry, devices sets.Set[deviceID]) error {
	byPool := map[poolID][]string{}
	for d := range devices {
		id := poolID{driver: d.Driver.String(), pool: d.Pool.String()}
		byPool[id] = append(byPool[id], d.Device.String())
	}
	changed := sets.KeySet(byPool)
	all := map[poolID]*poolRecord{}
	for _, r := range records {
		id := poolID{driver: r.driver, pool: r.pool}
		all[id] = r
		// What an earlier choice for this claim took, and this one does not.
		for device, had := range r.entries {
			if had.UID == e.UID && had.Attempt == e.Attempt && !slices.Contains(byPool[id], device) {
				delete(r.entries, device)
				changed.Insert(id)
			}
		}
	}
	for _, id := range inOrder(changed) {
		r := all[id]
		if r == nil {
			r = &poolRecord{driver: id.driver, pool: id.pool, entries: map[string]entry{}}
		}
		for _, device := range byPool[id] {
			r.entries[device] = e
		}
		if err := s.write(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func (s *pools) write(ctx context.Context, r *poolRecord) error {
	data, err := r.encode()
	if err != nil {
		return err
	}
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: s.namespace, Name: poolRecordName(r.driver, r.pool),
		Labels: map[string]string{poolLabel: poolValue, "app.kubernetes.io/managed-by": "prebind"},
	}}
	if r.object == nil {
		object.Data = data
		err = s.writer.Create(ctx, object)
	} else {
		object = r.object.DeepCopy()
		object.Data = data
		err = s.writer.Update(ctx, object)
	}
	switch {
	case err == nil:
		r.object = object
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && r.object != nil:
		return errOthersWrote
	default:
		return framework.FromAPI(framework.Object{Kind: "ConfigMap", Namespace: s.namespace, Name: object.Name}, "recording who holds the devices of the pool", err)
	}
}

// giveBack removes what the attempt took of the pools for the claim, except for keep.
func (s *pools) giveBack(ctx context.Context, ids []poolID, claim types.UID, attempt string, keep sets.Set[deviceID]) error {
	for {
		records, err := s.read(ctx, ids)
		if records == nil && err != nil {
			return err
		}
		wrote := error(nil)
		for _, r := range records {
			before := len(r.entries)
			maps.DeleteFunc(r.entries, func(device string, e entry) bool {
				return e.UID == claim && e.Attempt == attempt && !keep.Has(r.id(device))
			})
			if len(r.entries) < before && wrote == nil {
				wrote = s.write(ctx, r)
			}
		}
		if !errors.Is(wrote, errOthersWrote) {
			return wrote
		}
	}
}

// drop removes devices from a record, and deletes the record if it is empty then. It
// leaves a record that has changed since it was read.
func (s *pools) drop(ctx context.Context, r *poolRecord, devices []string) error {
	for _, device := range devices {
		delete(r.entries, device)
	}
	var err error
	if len(r.entries) == 0 {
		err = s.writer.Delete(ctx, r.object.DeepCopy(), client.Preconditions{UID: &r.object.UID, ResourceVersion: &r.object.ResourceVersion})
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			err = errOthersWrote
		}
	} else {
		err = s.write(ctx, r)
	}
	if errors.Is(err, errOthersWrote) {
		return nil
	}
	return err
}

// gave says whether the attempt, or any attempt for "", allocated the claim according to
// the records. It ignores records that cannot be decoded.
func (s *pools) gave(ctx context.Context, claim *resourcev1.ResourceClaim, attempt string) (bool, error) {
	records, err := s.read(ctx, poolsOf(devicesOf(claim.Status.Allocation)))
	if records == nil {
		return false, err
	}
	return recorded(records, claim, attempt), nil
}

// recorded says whether the records have all devices of the claim as given to it by the
// attempt, or any attempt for "". Then Prebind has allocated the claim.
func recorded(records []*poolRecord, claim *resourcev1.ResourceClaim, attempt string) bool {
	ours := sets.New[deviceID]()
	for _, r := range records {
		for device, e := range r.entries {
			if e.UID == claim.UID && (attempt == "" || e.Attempt == attempt) {
				ours.Insert(r.id(device))
			}
		}
	}
	devices := devicesOf(claim.Status.Allocation)
	return len(devices) > 0 && ours.IsSuperset(devices)
}
