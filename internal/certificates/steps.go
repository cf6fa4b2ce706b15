// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"slices"
	"time"
)

// lives contains the durations that determine the steps.
type lives struct {
	// ca and cert are the validity of a CA and of a serving certificate.
	ca, cert time.Duration
	// overlap is the time for which a CA is trusted before it signs. In this time every API server receives it.
	overlap time.Duration
}

// renewal returns the time at which two thirds of the validity have passed.
func renewal(c *x509.Certificate, validity time.Duration) time.Time {
	return c.NotAfter.Add(-validity / 3)
}

// view is the input of a decision about the next step.
type view struct {
	now time.Time
	// held is the content of the Secret, or nil if the Secret is missing or not valid.
	held *record
	// known is the last valid record that this replica read, or nil.
	known *record
	// trusted contains the CAs in the webhook configuration.
	trusted trust
}

// trust contains trusted CAs with the time at which this replica first observed them.
type trust []trusted

type trusted struct {
	ca    *x509.Certificate
	since time.Time
}

// has reports whether the CA has been trusted for at least the given duration.
func (t trust) has(ca *x509.Certificate, now time.Time, long time.Duration) bool {
	return slices.ContainsFunc(t, func(x trusted) bool { return x.ca.Equal(ca) && now.Sub(x.since) >= long })
}

// seen returns the CAs that are trusted now. It keeps the times of CAs that are already known.
func (t trust) seen(now time.Time, cas []*x509.Certificate) trust {
	var next trust
	for _, ca := range cas {
		since := now
		if i := slices.IndexFunc(t, func(x trusted) bool { return x.ca.Equal(ca) }); i >= 0 {
			since = t[i].since
		}
		next = append(next, trusted{ca: ca, since: since})
	}
	return next
}

// step is one change of the Secret.
type step string

const (
	stepNone    step = ""
	stepCreate  step = "create CA"
	stepRestore step = "restore CA"
	stepAdd     step = "add next CA"
	stepPromote step = "promote next CA"
	stepDate    step = "record promotion time"
	stepDrop    step = "drop earlier CAs"
)

// next returns the step to take now, and the record that results from it. Without a step, the record is nil.
func (l lives) next(v view) (step, *record, error) {
	r := v.held
	if r == nil {
		if v.known != nil && v.now.Before(v.known.current.cert.NotAfter) {
			return stepRestore, v.known, nil
		}
		return l.create(v)
	}
	expired := !v.now.Before(r.current.cert.NotAfter)
	changed := *r
	switch earlier := r.earlier(); {
	case expired && (r.next == nil || !v.now.Before(r.next.cert.NotAfter)):
		return l.create(v)
	case r.next != nil && (expired || v.trusted.has(r.next.cert, v.now, l.overlap)):
		changed.current, changed.next, changed.promoted = r.next, nil, v.now
		return stepPromote, &changed, nil
	case r.next == nil && (r.rotate || !v.now.Before(renewal(r.current.cert, l.ca))):
		next, err := newAuthority(v.now, l.ca)
		if err != nil {
			return stepAdd, nil, err
		}
		changed.next, changed.bundle, changed.rotate = next, append(slices.Clone(r.bundle), next.cert), false
		return stepAdd, &changed, nil
	case len(earlier) == 0:
		return stepNone, nil, nil
	case r.promoted.IsZero(), r.promoted.After(v.now.Add(l.overlap)): // Unknown, or in the future.
		changed.promoted = v.now
		return stepDate, &changed, nil
	// A replica without a connection since the promotion serves a certificate of the earlier CA until that expires.
	case !v.now.Before(r.promoted.Add(l.cert + l.overlap)):
		changed.bundle = without(r.bundle, func(c *x509.Certificate) bool { return holds(earlier, c) })
		return stepDrop, &changed, nil
	default:
		return stepNone, nil, nil
	}
}

// create returns a record with a new CA. The CAs in the webhook configuration stay trusted for a while, because replicas may
// serve their certificates.
func (l lives) create(v view) (step, *record, error) {
	ca, err := newAuthority(v.now, l.ca)
	if err != nil {
		return stepCreate, nil, err
	}
	r := &record{current: ca, bundle: []*x509.Certificate{ca.cert}}
	for _, t := range v.trusted {
		if t.ca.IsCA && v.now.Before(t.ca.NotAfter) && !holds(r.bundle, t.ca) {
			r.bundle, r.promoted = append(r.bundle, t.ca), v.now
		}
	}
	return stepCreate, r, nil
}

// renews reports whether a replica must create a new serving certificate now. served may be nil. A replica never serves a
// certificate of a CA that is not in the webhook configuration.
func (l lives) renews(v view, served *leaf) bool {
	if v.held == nil {
		return false
	}
	current := v.held.current
	if !v.trusted.has(current.cert, v.now, 0) || !v.now.Before(current.cert.NotAfter) {
		return false
	}
	switch {
	case served == nil:
		// A CA that was created while others are trusted does not reach all API servers at the same moment. If the promotion
		// time is unknown, a later step records it.
		since := v.now.Sub(v.held.promoted)
		return len(v.held.earlier()) == 0 || !v.held.promoted.IsZero() && (since < 0 || since >= l.overlap)
	case !v.now.Before(served.tls.Leaf.NotAfter), !v.trusted.has(served.ca, v.now, 0):
		return true // The API server does not trust the current certificate.
	case !served.ca.Equal(current.cert):
		return v.trusted.has(current.cert, v.now, l.overlap)
	default:
		due := !v.now.Before(renewal(served.tls.Leaf, l.cert))
		return due && current.ends(v.now, l.cert).After(served.tls.Leaf.NotAfter)
	}
}
