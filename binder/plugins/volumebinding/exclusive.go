// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/internal/ledger"
	"github.com/prebind/prebind/internal/podstate"
	"github.com/prebind/prebind/internal/volumes"
)

// A ReadWriteOncePod claim is reserved in a record of the ledger while a pod is being bound with it, so
// that only one bind of all replicas can have it. The record is made before the pods that use the claim
// are listed, and deleted after the pod is seen bound. So each bind is in a record or in the list.

const (
	// component is the ledger.Kind.Component of the records.
	component    = "prebind-claim-record"
	recordPrefix = "prebind-claim-"

	// maxExclusive is the maximum number of these claims of a pod, because Prebind writes a record for each.
	maxExclusive = 128

	claimField  = "claim"
	holderField = "holder"
)

// record is the reservation of one claim.
type record struct {
	claim types.UID
	holder
}

// holder is the pod that is being bound with the claim.
type holder struct {
	Pod ledger.ObjectName `json:"pod"`
	UID types.UID         `json:"uid"`
	// Attempts contains the node of each attempt at the pod's bind. Two replicas can work on one bind, and
	// a bind to another node can begin before the rollback of the earlier one ends.
	Attempts map[string]string `json:"attempts"`
}

// recordVersion is a record as it was last read or written.
type recordVersion = ledger.Version[*record]

func openRecords(h framework.Handle) *ledger.Store[types.UID, *record] {
	return ledger.Open(h, ledger.Kind[types.UID, *record]{
		Component: component, Value: podOf, Name: func(claim types.UID) string { return recordPrefix + string(claim) }, Decode: decodeRecord,
		Missing: func(_ context.Context, claim types.UID) (*record, error) { return &record{claim: claim}, nil },
	})
}

// podOf is the ledger.Kind.Value of the records: the UID of the holder, or empty if the record cannot be decoded.
func podOf(o client.Object) string {
	if object, ok := o.(*corev1.ConfigMap); ok {
		if r, err := decodeRecord(object.Data); err == nil {
			return string(r.UID)
		}
	}
	return ""
}

// Key implements ledger.Record.
func (r *record) Key() types.UID { return r.claim }

// Encode implements ledger.Record.
func (r *record) Encode() (map[string]string, error) {
	text, err := ledger.Marshal(r.holder)
	return map[string]string{claimField: string(r.claim), holderField: text}, err
}

// decodeRecord is the reverse of Encode.
func decodeRecord(data map[string]string) (*record, error) {
	r := &record{claim: types.UID(data[claimField])}
	err := ledger.Unmarshal(data[holderField], &r.holder)
	if err == nil && (len(data) != 2 || r.claim == "" || r.UID == "" || len(r.Attempts) == 0) {
		err = errors.New("claim, uid and attempts are required, and other keys are not allowed")
	}
	if err != nil {
		return nil, ledger.Unreadable(holderField, err, "delete the ConfigMap if no pod is being bound with the claim")
	}
	return r, nil
}

// reservation is a ReadWriteOncePod claim of the pod, and its record. The record is nil if no bind has
// reserved the claim.
type reservation struct {
	claim  *corev1.PersistentVolumeClaim
	record *recordVersion
}

// other returns the pod of another bind that has reserved the claim.
func (r reservation) other(bc *framework.BindContext) (ledger.ObjectName, bool) {
	if r.record == nil || r.record.Record.UID == bc.Pod.UID {
		return ledger.ObjectName{}, false
	}
	return r.record.Record.Pod, true
}

// by returns whether the attempt has reserved the claim. Attempts are unique.
func (r reservation) by(bc *framework.BindContext) bool {
	return r.record != nil && r.record.Record.Attempts[bc.Attempt] != ""
}

// reserve reserves the claims for the attempt, and then checks that no other pod uses them.
func (p *Plugin) reserve(ctx context.Context, bc *framework.BindContext, claims []reservation) error {
	for _, r := range claims {
		if r.by(bc) {
			continue
		}
		if bc.Written {
			return p.reserved(ctx, bc, r)
		}
		v := &recordVersion{Record: &record{claim: r.claim.UID, holder: holder{
			Pod: ledger.ObjectName{Namespace: bc.Pod.Namespace, Name: bc.Pod.Name}, UID: bc.Pod.UID, Attempts: map[string]string{},
		}}}
		if r.record != nil {
			v = r.record
		}
		v.Record.Attempts[bc.Attempt] = bc.Node.Name
		switch err := p.records.Write(ctx, v); {
		case errors.Is(err, ledger.ErrChanged):
			return behind(r.claim, err)
		case err != nil:
			return err
		}
	}
	return p.checkUnused(ctx, bc.Pod, claims)
}

// reserved returns why the cache contains no reservation for an attempt that has made one for each claim. It makes none for a claim that was
// replaced: the bind could be allowed before the check of the pods that use it.
func (p *Plugin) reserved(ctx context.Context, bc *framework.BindContext, r reservation) (err error) {
	r.record, err = p.records.Get(ctx, p.h.Live, r.claim.UID)
	switch {
	case err != nil:
		return err
	case r.by(bc):
		return behind(r.claim, errors.New("the cache is behind"))
	default:
		return framework.Refuse(framework.ObjectOf(r.claim), "the claim was replaced during the bind, or its reservation was deleted").Advise("schedule the pod again")
	}
}

// errReplaced means that the cache contains a claim that does not exist any more.
var errReplaced = errors.New("the claim was deleted")

// checkUnused checks that the claims still exist, and that no other pod uses one of them. It makes no request if there are no
// claims. The cache holds only pods without a node, so it lists the pods of the namespace from the API server.
func (p *Plugin) checkUnused(ctx context.Context, pod *corev1.Pod, claims []reservation) error {
	if len(claims) == 0 {
		return nil
	}
	own := map[string]*corev1.PersistentVolumeClaim{}
	for _, r := range claims {
		// A claim can be deleted and created again while the process is suspended.
		now, err := framework.Get(ctx, p.h.Live, &corev1.PersistentVolumeClaim{}, pod.Namespace, r.claim.Name)
		if err != nil {
			return err
		}
		if now == nil || now.UID != r.claim.UID {
			return behind(r.claim, errReplaced)
		}
		own[r.claim.Name] = r.claim
	}
	// As in kube-scheduler, these are the pods that can use a volume.
	using := client.MatchingFieldsSelector{Selector: fields.AndSelectors(
		fields.OneTermNotEqualSelector("spec.nodeName", ""),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
		fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
	)}
	for next := ""; ; {
		var page corev1.PodList
		err := p.h.Live.List(ctx, &page, client.InNamespace(pod.Namespace), using, client.Limit(podstate.PageSize), client.Continue(next))
		if err != nil {
			return framework.FromAPI(framework.ObjectOf(claims[0].claim), "listing the pods that can use the claim", err)
		}
		for i := range page.Items {
			other := &page.Items[i]
			for _, r := range volumes.ClaimsOf(other) {
				if claim := own[r.Name]; claim != nil && other.UID != pod.UID {
					return framework.Refuse(framework.ObjectOf(claim), "pod %s on node %s uses the ReadWriteOncePod claim", other.Name, other.Spec.NodeName).
						Advise("bind this pod after the other pod has ended")
				}
			}
		}
		if next = page.Continue; next == "" {
			return nil
		}
	}
}

// release removes those attempts from the reservations of the pod.
func (p *Plugin) release(ctx context.Context, reader framework.Reader, pod types.UID, which func(attempt string) bool) error {
	records, err := p.records.List(ctx, reader, string(pod))
	if records == nil {
		return err
	}
	// Another error is about a record that cannot be decoded. The binds with its claim report it.
	var errs []error
	for _, v := range records {
		r := v.Record
		before := len(r.Attempts)
		maps.DeleteFunc(r.Attempts, func(attempt, _ string) bool { return r.UID == pod && which(attempt) })
		switch len(r.Attempts) {
		case before:
		case 0:
			errs = append(errs, p.records.Delete(ctx, v))
		default:
			errs = append(errs, p.records.Write(ctx, v))
		}
	}
	return errors.Join(errs...)
}

// Marks lists the reservations. They belong to attempts until the pod is bound.
func (p *Plugin) Marks(ctx context.Context) ([]framework.Mark, error) {
	records, err := p.records.List(ctx, p.h.Cached, "")
	var marks []framework.Mark
	for _, v := range records {
		r := v.Record
		for _, attempt := range slices.Sorted(maps.Keys(r.Attempts)) {
			marks = append(marks, framework.Mark{Pod: types.NamespacedName(r.Pod), PodUID: r.UID, Node: r.Attempts[attempt], Attempt: attempt})
		}
	}
	return marks, err
}
