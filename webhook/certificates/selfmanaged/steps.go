// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package selfmanaged

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// lives are the times that the steps keep.
type lives struct {
	// ca and cert are how long a CA and a serving certificate are valid.
	ca, cert time.Duration
	// overlap is how long a CA is trusted before anything is signed by it: until
	// every API server has heard of it.
	overlap time.Duration
}

// CheckLives returns an error unless certificates and CAs that are valid for so long
// can be changed well before they end.
func CheckLives(ca, cert, overlap time.Duration) error {
	return lives{ca: ca, cert: cert, overlap: overlap}.validate()
}

// validate returns an error unless a CA can be changed well before it ends.
func (l lives) validate() error {
	switch {
	case l.overlap < time.Second:
		return fmt.Errorf("the overlap of CAs, %s, is less than a second", l.overlap)
	case l.cert < 4*l.overlap:
		return fmt.Errorf("the validity of certificates, %s, is less than four times the overlap of CAs, %s", l.cert, l.overlap)
	case l.ca < 4*l.cert:
		return fmt.Errorf("the validity of CAs, %s, is less than four times that of certificates, %s", l.ca, l.cert)
	default:
		return nil
	}
}

// renewal is when two thirds of a validity are over.
func renewal(c *x509.Certificate, validity time.Duration) time.Time {
	return c.NotAfter.Add(-validity / 3)
}

// view is all that a step is decided by.
type view struct {
	now time.Time
	// held is what the Secret holds; nil without a Secret, or with one that makes
	// no sense.
	held *record
	// known is the last good record that this replica saw, nil if none.
	known *record
	// trusted are the CAs that the webhook configuration trusts, each since when
	// this replica has seen that.
	trusted trust
}

// trust are CAs that are trusted, with the time since when this is known.
type trust []trusted

type trusted struct {
	ca    *x509.Certificate
	since time.Time
}

// has tells whether the CA has been trusted for so long.
func (t trust) has(ca *x509.Certificate, now time.Time, long time.Duration) bool {
	return slices.ContainsFunc(t, func(x trusted) bool { return x.ca.Equal(ca) && now.Sub(x.since) >= long })
}

// seen returns what is trusted now, with what is known from before.
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
	stepCreate  step = "made a CA"
	stepRestore step = "restored the CA"
	stepAdd     step = "made the next CA"
	stepPromote step = "promoted the next CA"
	stepDate    step = "noted the time"
	stepDrop    step = "dropped earlier CAs"
)

// next decides what to do to the Secret now.
func (l lives) next(v view) step {
	r := v.held
	switch {
	case r == nil && v.known != nil && v.now.Before(v.known.current.cert.NotAfter):
		return stepRestore
	case r == nil:
		return stepCreate
	case !v.now.Before(r.current.cert.NotAfter) && (r.next == nil || !v.now.Before(r.next.cert.NotAfter)):
		return stepCreate
	case r.next != nil && (v.trusted.has(r.next.cert, v.now, l.overlap) || !v.now.Before(r.current.cert.NotAfter)):
		return stepPromote
	case r.next == nil && (r.rotate || !v.now.Before(renewal(r.current.cert, l.ca))):
		return stepAdd
	case len(r.earlier()) == 0:
		return stepNone
	case r.promoted.IsZero(), r.promoted.After(v.now.Add(l.overlap)): // Or in a future that is no clock's.
		return stepDate
	// A replica that has heard of nothing since the CA was promoted serves a
	// certificate of the one before, until that ends.
	case !v.now.Before(r.promoted.Add(l.cert + l.overlap)):
		return stepDrop
	default:
		return stepNone
	}
}

// take makes the record that the step leads to.
func (l lives) take(s step, v view) (*record, error) {
	switch s {
	case stepCreate:
		return l.create(v)
	case stepRestore:
		return v.known, nil
	case stepAdd:
		next, err := newAuthority(v.now, l.ca)
		if err != nil {
			return nil, err
		}
		r := *v.held
		r.next, r.bundle, r.rotate = next, append(slices.Clone(r.bundle), next.cert), false
		return &r, nil
	case stepPromote:
		r := *v.held
		r.current, r.next, r.promoted = r.next, nil, v.now
		return &r, nil
	case stepDate:
		r := *v.held
		r.promoted = v.now
		return &r, nil
	case stepDrop:
		r := *v.held
		r.bundle = without(r.bundle, func(c *x509.Certificate) bool { return holds(v.held.earlier(), c) })
		return &r, nil
	case stepNone:
	}
	return nil, errors.New("there is nothing to do")
}

// create makes a record with a new CA. Whatever the webhook configuration trusts
// stays trusted as after any change of the CA: replicas may be serving it.
func (l lives) create(v view) (*record, error) {
	ca, err := newAuthority(v.now, l.ca)
	if err != nil {
		return nil, err
	}
	r := &record{current: ca, bundle: []*x509.Certificate{ca.cert}}
	for _, t := range v.trusted {
		if t.ca.IsCA && v.now.Before(t.ca.NotAfter) && !holds(r.bundle, t.ca) {
			r.bundle, r.promoted = append(r.bundle, t.ca), v.now
		}
	}
	return r, nil
}

// renews tells whether a replica that serves this leaf, or none, makes itself
// another one now. It never serves what the webhook configuration does not trust.
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
		// A CA that came to others, without having been made known before, is not
		// known everywhere at once. Since when it signs is noted soon, where it is not.
		since := v.now.Sub(v.held.promoted)
		return len(v.held.earlier()) == 0 || !v.held.promoted.IsZero() && (since < 0 || since >= l.overlap)
	case !v.now.Before(served.tls.Leaf.NotAfter), !v.trusted.has(served.ca, v.now, 0):
		return true // Nobody trusts what is served.
	case !served.ca.Equal(current.cert):
		return v.trusted.has(current.cert, v.now, l.overlap)
	default:
		due := !v.now.Before(renewal(served.tls.Leaf, l.cert))
		return due && current.ends(v.now, l.cert).After(served.tls.Leaf.NotAfter)
	}
}
