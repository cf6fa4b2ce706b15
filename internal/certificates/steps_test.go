// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// times has a CA validity of 24 hours. The last third begins after 16 hours.
var times = lives{ca: 24 * time.Hour, cert: time.Hour, overlap: time.Minute}

// begin is the time at which the first CA is created.
var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func at(after time.Duration) time.Time { return begin.Add(after) }

func ca(t *testing.T, made time.Duration) *authority {
	t.Helper()
	a, err := newAuthority(at(made), times.ca)
	require.NoError(t, err)
	return a
}

// TestCertificates_ClockAhead checks that other machines accept certificates of a replica whose clock is ahead.
func TestCertificates_ClockAhead(t *testing.T) {
	made := ca(t, 12*time.Hour)
	l, err := made.issue(at(12*time.Hour), times.cert, []string{"prebind.svc"})
	require.NoError(t, err)
	for _, c := range []*x509.Certificate{made.cert, l.tls.Leaf} {
		assert.False(t, at(0).Before(c.NotBefore), "%s is not valid before %s", c.Subject, c.NotBefore)
	}
}

func TestNext(t *testing.T) {
	a, b, old := ca(t, 0), ca(t, 16*time.Hour), ca(t, -20*time.Hour)
	certs := func(all ...*authority) []*x509.Certificate {
		var list []*x509.Certificate
		for _, x := range all {
			list = append(list, x.cert)
		}
		return list
	}
	fresh := &record{current: a, bundle: certs(a)}
	adding := &record{current: a, next: b, bundle: certs(a, b)}
	promoted := &record{current: b, bundle: certs(a, b), promoted: at(17 * time.Hour)}
	asked := &record{current: a, bundle: certs(a), rotate: true}
	since := func(x *authority, when time.Duration) trust { return trust{{ca: x.cert, since: at(when)}} }

	cases := map[string]struct {
		reason      string
		now         time.Duration
		held, known *record
		trusted     trust
		want        step
	}{
		"Nothing":           {reason: "the first replica creates the CA", want: stepCreate},
		"Deleted":           {reason: "replicas restore a deleted Secret", now: time.Hour, known: fresh, want: stepRestore},
		"DeletedTooLate":    {reason: "an expired CA is not restored", now: 24 * time.Hour, known: fresh, want: stepCreate},
		"Young":             {reason: "the CA is not due for renewal", now: 15 * time.Hour, held: fresh, want: stepNone},
		"TwoThirds":         {reason: "two thirds of the validity have passed", now: 16 * time.Hour, held: fresh, want: stepAdd},
		"Asked":             {reason: "an operator requested a rotation", now: time.Hour, held: asked, want: stepAdd},
		"Expired":           {reason: "the CA expired while the cluster was off", now: 24 * time.Hour, held: fresh, want: stepCreate},
		"NextUnknown":       {reason: "no API server trusts the next CA", now: 17 * time.Hour, held: adding, want: stepNone},
		"NextJustKnown":     {reason: "an API server may not have the next CA yet", now: 17 * time.Hour, held: adding, trusted: since(b, 17*time.Hour-59*time.Second), want: stepNone},
		"NextKnown":         {reason: "every API server has the next CA", now: 17 * time.Hour, held: adding, trusted: since(b, 17*time.Hour-time.Minute), want: stepPromote},
		"NextAtLast":        {reason: "the configuration was missing until the CA expired", now: 24 * time.Hour, held: adding, want: stepPromote},
		"JustPromoted":      {reason: "certificates of the old CA may be in use", now: 17 * time.Hour, held: promoted, want: stepNone},
		"OldAlmostOver":     {reason: "a replica without a connection serves until its certificate expires", now: 18*time.Hour + 59*time.Second, held: promoted, want: stepNone},
		"OldOver":           {reason: "all certificates of the old CA have expired", now: 18*time.Hour + time.Minute, held: promoted, want: stepDrop},
		"PromotedWhen":      {reason: "the annotation is missing, so the time is recorded again", now: 20 * time.Hour, held: &record{current: b, bundle: certs(a, b)}, want: stepDate},
		"PromotedInFuture":  {reason: "the time is in the future, so it is recorded again", now: 20 * time.Hour, held: &record{current: b, bundle: certs(a, b), promoted: at(1000 * time.Hour)}, want: stepDate},
		"OldWhileNext":      {reason: "the next rotation started before the old CA is dropped", now: 18*time.Hour + time.Minute, held: &record{current: a, next: b, bundle: certs(old, a, b), promoted: at(0)}, want: stepDrop},
		"PromotedAndOneDue": {reason: "an operator requests another rotation", now: 18 * time.Hour, held: &record{current: b, bundle: certs(a, b), promoted: at(17 * time.Hour), rotate: true}, want: stepAdd},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v := view{now: at(tc.now), held: tc.held, known: tc.known, trusted: tc.trusted}
			got, r, err := times.next(v)
			require.NoError(t, err)
			assert.Equal(t, tc.want, got, tc.reason)
			if got == stepNone {
				assert.Nil(t, r)
				return
			}
			// The record after each step can be written and read.
			var secret corev1.Secret
			require.NoError(t, r.write(&secret))
			back, err := parseRecord(&secret)
			require.NoError(t, err)
			again, _, err := times.next(view{now: v.now, held: back, known: v.known, trusted: v.trusted})
			require.NoError(t, err)
			assert.NotEqual(t, got, again, "the step is not repeated")
			for _, x := range tc.trusted {
				if got != stepDrop && v.now.Before(x.ca.NotAfter) {
					assert.True(t, holds(back.bundle, x.ca), "no CA is dropped too early")
				}
			}
		})
	}
}

func TestRenews(t *testing.T) {
	a, b := ca(t, 0), ca(t, 16*time.Hour)
	issue := func(by *authority, when time.Duration) *leaf {
		l, err := by.issue(at(when), times.cert, []string{"prebind.svc"})
		require.NoError(t, err)
		return l
	}
	only := &record{current: a, bundle: []*x509.Certificate{a.cert}}
	promoted := &record{current: b, bundle: []*x509.Certificate{a.cert, b.cert}}
	aTrusted := trust{{ca: a.cert, since: at(0)}}
	bothTrusted := func(since time.Duration) trust {
		return trust{{ca: a.cert, since: at(0)}, {ca: b.cert, since: at(since)}}
	}
	cases := map[string]struct {
		reason  string
		now     time.Duration
		held    *record
		trusted trust
		served  *leaf
		want    bool
	}{
		"First":           {reason: "the API server trusts its CA", held: only, trusted: aTrusted, want: true},
		"Untrusted":       {reason: "the CA is not in the configuration", held: only},
		"NoSecret":        {reason: "there is no CA", trusted: aTrusted},
		"FirstOfMany":     {reason: "other CAs are in use, and an API server may not have this one yet", now: 17 * time.Hour, held: &record{current: a, bundle: []*x509.Certificate{b.cert, a.cert}, promoted: at(17*time.Hour - 59*time.Second)}, trusted: aTrusted},
		"FirstOfManyNow":  {reason: "every API server has the CA", now: 17 * time.Hour, held: &record{current: a, bundle: []*x509.Certificate{b.cert, a.cert}, promoted: at(17*time.Hour - time.Minute)}, trusted: aTrusted, want: true},
		"FirstOfManyWhen": {reason: "the promotion time is unknown", now: 17 * time.Hour, held: &record{current: a, bundle: []*x509.Certificate{b.cert, a.cert}}, trusted: aTrusted},
		"Young":           {reason: "the certificate is not due for renewal", now: 39 * time.Minute, held: only, trusted: aTrusted, served: issue(a, 0)},
		"TwoThirds":       {reason: "two thirds of the validity have passed", now: 40 * time.Minute, held: only, trusted: aTrusted, served: issue(a, 0), want: true},
		"ExpiredNoTrust":  {reason: "a new certificate would not be trusted either", now: 2 * time.Hour, held: only, served: issue(a, 0)},
		"EndOfCA":         {reason: "a new certificate would not be valid longer", now: 23*time.Hour + 50*time.Minute, held: only, trusted: aTrusted, served: issue(a, 23*time.Hour+45*time.Minute)},
		"Promoted":        {reason: "every API server has the new CA", now: 17 * time.Hour, held: promoted, trusted: bothTrusted(16 * time.Hour), served: issue(a, 16*time.Hour+50*time.Minute), want: true},
		"PromotedEarly":   {reason: "an API server may not have the new CA yet", now: 17 * time.Hour, held: promoted, trusted: bothTrusted(17*time.Hour - time.Second), served: issue(a, 16*time.Hour+50*time.Minute)},
		"PromotedUnknown": {reason: "the new CA is not in the configuration", now: 17 * time.Hour, held: promoted, trusted: aTrusted, served: issue(a, 16*time.Hour+50*time.Minute)},
		"OldGone":         {reason: "the CA of the certificate was dropped", now: 17 * time.Hour, held: promoted, trusted: trust{{ca: b.cert, since: at(17 * time.Hour)}}, served: issue(a, 16*time.Hour+50*time.Minute), want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := times.renews(view{now: at(tc.now), held: tc.held, trusted: tc.trusted}, tc.served)
			assert.Equal(t, tc.want, got, tc.reason)
		})
	}
}

func TestParseRecord(t *testing.T) {
	a, b, other := ca(t, 0), ca(t, 1), ca(t, 2)
	good := func() *corev1.Secret {
		var s corev1.Secret
		r := &record{current: a, next: b, bundle: []*x509.Certificate{a.cert, b.cert}, promoted: at(0), rotate: true}
		require.NoError(t, r.write(&s))
		return &s
	}
	r, err := parseRecord(good())
	require.NoError(t, err)
	assert.True(t, r.rotate)
	assert.Equal(t, at(0), r.promoted)

	leaf, err := a.issue(at(0), times.cert, []string{"prebind.svc"})
	require.NoError(t, err)
	broken := map[string]func(s *corev1.Secret){
		"no data":        func(s *corev1.Secret) { s.Data = nil },
		"no key":         func(s *corev1.Secret) { delete(s.Data, "tls.key") },
		"another's key":  func(s *corev1.Secret) { s.Data["tls.key"] = other.keyPEM },
		"no PEM":         func(s *corev1.Secret) { s.Data["tls.crt"] = []byte("x") },
		"no CA":          func(s *corev1.Secret) { s.Data["tls.crt"] = leaf.tls.Certificate[0] },
		"half a next CA": func(s *corev1.Secret) { delete(s.Data, "next.key") },
		"no bundle":      func(s *corev1.Secret) { delete(s.Data, "ca.crt") },
		"other bundle":   func(s *corev1.Secret) { s.Data["ca.crt"] = other.certPEM },
		"next not in it": func(s *corev1.Secret) { s.Data["ca.crt"] = a.certPEM },
	}
	for name, spoil := range broken {
		s := good()
		spoil(s)
		_, err := parseRecord(s)
		assert.Error(t, err, name)
	}
}

func TestOptions_Validate(t *testing.T) {
	defaults := DefaultOptions()
	cases := map[string]struct {
		reason string
		lives  lives
		says   string
	}{
		"Default":      {reason: "the defaults are valid", lives: defaults.lives()},
		"NoOverlap":    {reason: "API servers need time to receive a CA", lives: lives{ca: 365 * day, cert: 7 * day}, says: "--self-managed-ca-overlap"},
		"ShortCert":    {reason: "certificates would expire before the next CA signs", lives: lives{ca: time.Hour, cert: time.Minute, overlap: 20 * time.Second}, says: "--self-managed-cert-validity"},
		"ShortCA":      {reason: "the CA would rotate too often", lives: lives{ca: time.Hour, cert: 30 * time.Minute, overlap: time.Second}, says: "--self-managed-ca-validity"},
		"JustEnough":   {reason: "the minimum is allowed", lives: lives{ca: 16 * time.Second, cert: 4 * time.Second, overlap: time.Second}},
		"NegativeCert": {reason: "a negative validity is not valid", lives: lives{ca: time.Hour, cert: -time.Hour, overlap: time.Second}, says: "--self-managed-cert-validity"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := DefaultOptions()
			o.SelfManaged, o.CAValidity, o.CertValidity, o.Overlap = true, tc.lives.ca, tc.lives.cert, tc.lives.overlap
			problems := o.Validate()
			if tc.says == "" {
				require.Empty(t, problems, tc.reason)
				return
			}
			require.Len(t, problems, 1, tc.reason)
			require.ErrorContains(t, problems[0], tc.says+":", tc.reason)
		})
	}
}

// FuzzParseRecord checks that parsing a Secret returns an error or a record that can be written and parsed again.
func FuzzParseRecord(f *testing.F) {
	a, err := newAuthority(begin, times.ca)
	require.NoError(f, err)
	b, err := newAuthority(begin, times.ca)
	require.NoError(f, err)
	f.Add(a.certPEM, a.keyPEM, a.certPEM, []byte{}, []byte{}, "")
	f.Add(a.certPEM, a.keyPEM, append(append([]byte{}, a.certPEM...), b.certPEM...), b.certPEM, b.keyPEM, "2030-01-01T00:00:00Z")
	f.Add(a.certPEM, b.keyPEM, a.certPEM, []byte("x"), []byte{}, "soon")
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{}, []byte{}, []byte{}, []byte{}, "")
	f.Fuzz(func(t *testing.T, cert, key, bundle, nextCert, nextKey []byte, promoted string) {
		secret := &corev1.Secret{Data: map[string][]byte{
			corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, bundleKey: bundle, nextCertKey: nextCert, nextKeyKey: nextKey,
		}}
		secret.Annotations = map[string]string{promotedAnnotation: promoted}
		r, err := parseRecord(secret)
		if err != nil {
			assert.Nil(t, r)
			return
		}
		var written corev1.Secret
		require.NoError(t, r.write(&written))
		again, err := parseRecord(&written)
		require.NoError(t, err)
		assert.Len(t, again.bundle, len(r.bundle))
	})
}
