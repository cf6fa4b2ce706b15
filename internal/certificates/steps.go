// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"slices"
	"time"
)

// renewal returns the time at which two thirds of the validity have passed.
func renewal(c *x509.Certificate, validity time.Duration) time.Time {
	return c.NotAfter.Add(-validity / 3)
}

// view is the input of a decision about the next step.
type view struct {
	now time.Time
	// held is the content of the Secret, or nil if the Secret is missing, not valid or not readable.
	held *record
	// trusted contains the CAs in the webhook configuration, or those that were last in it, if it is deleted.
	trusted trust
}

// trust contains trusted CAs with the time since when they are trusted, as far as this replica knows. Nil means that it has not looked.
type trust []trusted

type trusted struct {
	ca    *x509.Certificate
	since time.Time
}

// has reports whether the CA has been trusted for at least the given duration. API servers trust a CA of a clock that was ahead when it is valid.
func (t trust) has(ca *x509.Certificate, now time.Time, long time.Duration) bool {
	return slices.ContainsFunc(t, func(x trusted) bool {
		return x.ca.Equal(ca) && now.Sub(x.since) >= long && now.Sub(ca.NotBefore) >= long
	})
}

// seen returns the CAs that are trusted now. It keeps the times of CAs that are already known. Prebind writes a CA to the configuration as soon
// as it has created it, so one that is there at the first look counts since its creation.
func (t trust) seen(now time.Time, cas []*x509.Certificate) trust {
	next := trust{}
	for _, ca := range cas {
		since := now
		if created := ca.NotBefore.Add(early); t == nil && created.Before(now) {
			since = created
		}
		if i := slices.IndexFunc(t, func(x trusted) bool { return x.ca.Equal(ca) }); i >= 0 {
			since = t[i].since
		}
		next = append(next, trusted{ca: ca, since: since})
	}
	return next
}

// next returns the record to write to the Secret now, or nil if it does not change.
func (o *Options) next(v view) (*record, error) {
	r := v.held
	switch {
	case r == nil, r.rotate, !v.now.Before(renewal(r.current.Leaf, o.CAValidity)):
		return o.create(v)
	// A replica without a connection serves a certificate of an earlier CA until that expires.
	case len(r.bundle) > 1 && v.trusted.has(r.current.Leaf, v.now, o.CertValidity+2*o.Overlap):
		return &record{current: r.current, bundle: []*x509.Certificate{r.current.Leaf}}, nil
	}
	return nil, nil
}

// create returns a record with a new CA. Earlier CAs stay trusted for a while, because replicas serve their certificates.
func (o *Options) create(v view) (*record, error) {
	ca, err := newAuthority(v.now, o.CAValidity)
	if err != nil {
		return nil, err
	}
	var earlier []*x509.Certificate
	if v.held != nil {
		earlier = v.held.bundle
	} else {
		for _, t := range v.trusted {
			if t.ca.Subject.CommonName == caName { // CAs of another source stay in the configuration until somebody removes them.
				earlier = append(earlier, t.ca)
			}
		}
	}
	r := &record{current: ca, bundle: []*x509.Certificate{ca.Leaf}}
	for _, c := range earlier {
		// Also a CA that has expired by this clock, which may be ahead. next removes it later.
		if c.IsCA && !holds(r.bundle, c) {
			r.bundle = append(r.bundle, c)
		}
	}
	return r, nil
}

// renews returns the CA that signs a new certificate of a replica now, or nil if the replica keeps the certificate that it serves, if any.
// A replica never serves a certificate of a CA that is not in the webhook configuration. Until every API server trusts a new CA, it uses
// its previous one.
func (o *Options) renews(v view, served *leaf) *authority {
	usable := func(a *authority) bool { return v.now.Before(a.Leaf.NotAfter) && v.trusted.has(a.Leaf, v.now, 0) }
	var own, current *authority
	if served != nil && usable(served.by) {
		own = served.by
	}
	if v.held != nil && usable(v.held.current) {
		current = v.held.current
	}
	switch {
	case own != nil && (current == nil || own.Leaf.Equal(current.Leaf) || !v.trusted.has(current.Leaf, v.now, o.Overlap)):
		due := !v.now.Before(renewal(served.tls.Leaf, o.CertValidity))
		if due && own.ends(v.now, o.CertValidity).After(served.tls.Leaf.NotAfter) {
			return own
		}
		return nil
	case current != nil && served == nil && len(v.trusted) > 1 && !v.trusted.has(current.Leaf, v.now, o.Overlap):
		return nil // Other replicas serve certificates of other CAs.
	default:
		return current
	}
}
