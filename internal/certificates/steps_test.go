// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"crypto/x509"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// times has a CA validity of 24 hours. The last third begins after 16 hours.
var times = Options{CAValidity: 24 * time.Hour, CertValidity: time.Hour, Overlap: time.Minute}

// begin is the time at which the first CA is created.
var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func at(after time.Duration) time.Time { return begin.Add(after) }

func ca(t *testing.T, made time.Duration) *authority {
	t.Helper()
	a, err := newAuthority(at(made), times.CAValidity)
	require.NoError(t, err)
	return a
}

// TestCertificates_ClockAhead checks that other machines accept certificates of a replica whose clock is ahead.
func TestCertificates_ClockAhead(t *testing.T) {
	made := ca(t, 12*time.Hour)
	l, err := made.issue(at(12*time.Hour), times.CertValidity, []string{"prebind.svc"})
	require.NoError(t, err)
	for _, c := range []*x509.Certificate{made.Leaf, l.tls.Leaf} {
		assert.False(t, at(0).Before(c.NotBefore), "%s is not valid before %s", c.Subject, c.NotBefore)
	}
}

// bundle returns the certificates of the CAs.
func bundle(all ...*authority) []*x509.Certificate {
	var list []*x509.Certificate
	for _, x := range all {
		list = append(list, x.Leaf)
	}
	return list
}

func TestNext(t *testing.T) {
	a, b := ca(t, 0), ca(t, 16*time.Hour)
	future := ca(t, 72*time.Hour) // It is valid from 48 h.
	ahead := &record{current: future, bundle: bundle(future, a)}
	fresh := &record{current: a, bundle: bundle(a)}
	rotated := &record{current: b, bundle: bundle(b, a)}
	asked := func(r *record) *record { return &record{current: r.current, bundle: r.bundle, rotate: true} }
	since := func(x *authority, when time.Duration) trust { return trust{{ca: x.Leaf, since: at(when)}} }
	const over = 17*time.Hour + 2*time.Minute // All certificates of the first CA have expired, if all API servers have the second one since 16 h.

	cases := map[string]struct {
		reason  string
		now     time.Duration
		held    *record
		trusted trust
		// created means that there is a new CA. want are the other CAs of the record, or nil for no step.
		created bool
		want    []*x509.Certificate
	}{
		"Nothing":        {reason: "the first replica creates the CA", created: true},
		"Deleted":        {reason: "replicas serve certificates of the CA in the configuration", now: time.Hour, trusted: since(a, 0), created: true, want: bundle(a)},
		"DeletedExpired": {reason: "the clock of this replica may be ahead, and the CA not expired", now: 24 * time.Hour, trusted: since(a, 0), created: true, want: bundle(a)},
		"Young":          {reason: "the CA is not due for renewal", now: 15 * time.Hour, held: fresh, trusted: since(a, 0)},
		"TwoThirds":      {reason: "two thirds of the validity have passed", now: 16 * time.Hour, held: fresh, trusted: since(a, 0), created: true, want: bundle(a)},
		"Asked":          {reason: "an operator requested a rotation", now: time.Hour, held: asked(fresh), trusted: since(a, 0), created: true, want: bundle(a)},
		"AskedAgain":     {reason: "replicas may serve certificates of both CAs", now: 16*time.Hour + time.Second, held: asked(rotated), trusted: since(a, 0), created: true, want: bundle(b, a)},
		"Removed":        {reason: "an operator removed a CA from the Secret because its key has leaked", now: time.Hour, held: asked(fresh), trusted: since(b, 0), created: true, want: bundle(a)},
		"Expired":        {reason: "the cluster was off, or the clock of this replica is ahead", now: 24 * time.Hour, held: fresh, created: true, want: bundle(a)},
		"JustRotated":    {reason: "certificates of the old CA may be in use", now: 17 * time.Hour, held: rotated, trusted: since(b, 16*time.Hour)},
		"OldAlmostOver":  {reason: "a replica without a connection serves until its certificate expires", now: over - time.Second, held: rotated, trusted: since(b, 16*time.Hour)},
		"OldOver":        {reason: "all certificates of the old CA have expired", now: over, held: rotated, trusted: since(b, 16*time.Hour), want: bundle(b)},
		"NewFuture":      {reason: "the clock of a replica was ahead, and the API servers trust certificates of the old CA only", now: 15 * time.Hour, held: ahead, trusted: since(future, 0)},
		"NewJustValid":   {reason: "certificates of the old CA may be in use", now: 49*time.Hour + 2*time.Minute - time.Second, held: ahead, trusted: since(future, 0)},
		"NewValid":       {reason: "all certificates of the old CA have expired", now: 49*time.Hour + 2*time.Minute, held: ahead, trusted: since(future, 0), want: bundle(future)},
		"NewUnknown":     {reason: "the configuration cannot be written", now: over, held: rotated, trusted: since(a, 0)},
		"NewLate":        {reason: "the configuration could not be written for a while", now: over, held: rotated, trusted: since(b, 16*time.Hour+time.Second)},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v := view{now: at(tc.now), held: tc.held, trusted: tc.trusted}
			r, err := times.next(v)
			require.NoError(t, err)
			if !tc.created && tc.want == nil {
				assert.Nil(t, r, tc.reason)
				return
			}
			require.NotNil(t, r, tc.reason)
			if tc.created {
				assert.Equal(t, v.now.UTC(), r.current.Leaf.NotBefore.Add(early), tc.reason)
				assert.Equal(t, append(bundle(r.current), tc.want...), r.bundle, tc.reason)
			} else {
				assert.Equal(t, tc.want, r.bundle, tc.reason)
			}
			// The record can be written and read.
			var secret corev1.Secret
			require.NoError(t, r.write(&secret))
			back, err := parseRecord(&secret)
			require.NoError(t, err)
			again, err := times.next(view{now: v.now, held: back, trusted: v.trusted})
			require.NoError(t, err)
			assert.Nil(t, again, "the step is not repeated")
		})
	}
}

func TestRenews(t *testing.T) {
	a, b := ca(t, 0), ca(t, 16*time.Hour)
	issue := func(by *authority, when time.Duration) *leaf {
		l, err := by.issue(at(when), times.CertValidity, []string{"prebind.svc"})
		require.NoError(t, err)
		return l
	}
	only := &record{current: a, bundle: bundle(a)}
	rotated := &record{current: b, bundle: bundle(b, a)}
	future := ca(t, 72*time.Hour)
	ahead := &record{current: future, bundle: bundle(future, a)}
	aTrusted := trust{{ca: a.Leaf, since: at(0)}}
	bTrusted := func(since time.Duration) trust { return trust{{ca: b.Leaf, since: at(since)}} }
	bothTrusted := func(since time.Duration) trust { return append(bTrusted(since), aTrusted...) }
	cases := map[string]struct {
		reason  string
		now     time.Duration
		held    *record
		trusted trust
		served  *leaf
		want    *authority
	}{
		"First":           {reason: "the API server trusts its CA", held: only, trusted: aTrusted, want: a},
		"Untrusted":       {reason: "the CA is not in the configuration", held: only},
		"NoSecret":        {reason: "there is no CA", trusted: aTrusted},
		"FirstOfMany":     {reason: "other CAs are in use, and an API server may not have this one yet", now: 16*time.Hour + 59*time.Second, held: rotated, trusted: bothTrusted(16*time.Hour + time.Second)},
		"FirstOfManyNow":  {reason: "every API server has the CA", now: 16*time.Hour + time.Minute, held: rotated, trusted: bothTrusted(16 * time.Hour), want: b},
		"Young":           {reason: "the certificate is not due for renewal", now: 39 * time.Minute, held: only, trusted: aTrusted, served: issue(a, 0)},
		"TwoThirds":       {reason: "two thirds of the validity have passed", now: 40 * time.Minute, held: only, trusted: aTrusted, served: issue(a, 0), want: a},
		"NoConnection":    {reason: "the replica has the CA in its memory", now: 40 * time.Minute, trusted: aTrusted, served: issue(a, 0), want: a},
		"ExpiredNoTrust":  {reason: "a new certificate would not be trusted either", now: 2 * time.Hour, held: only, served: issue(a, 0)},
		"EndOfCA":         {reason: "a new certificate would not be valid longer", now: 23*time.Hour + 50*time.Minute, held: only, trusted: aTrusted, served: issue(a, 23*time.Hour+45*time.Minute)},
		"Rotated":         {reason: "every API server has the new CA", now: 17 * time.Hour, held: rotated, trusted: bothTrusted(17*time.Hour - time.Minute), served: issue(a, 16*time.Hour+50*time.Minute), want: b},
		"RotatedEarly":    {reason: "an API server may not have the new CA yet", now: 17 * time.Hour, held: rotated, trusted: bothTrusted(17*time.Hour - time.Second), served: issue(a, 16*time.Hour+50*time.Minute)},
		"RotatedEarlyDue": {reason: "until then, the old CA signs", now: 17 * time.Hour, held: rotated, trusted: bothTrusted(17*time.Hour - time.Second), served: issue(a, 16*time.Hour+20*time.Minute), want: a},
		"RotatedUnknown":  {reason: "the configuration cannot be written", now: 17 * time.Hour, held: rotated, trusted: aTrusted, served: issue(a, 16*time.Hour), want: a},
		"OldGone":         {reason: "the CA of the certificate was removed", now: 17 * time.Hour, held: rotated, trusted: bTrusted(17 * time.Hour), served: issue(a, 16*time.Hour+50*time.Minute), want: b},
		"Future":          {reason: "the clock of another replica is days ahead: until it is correct, the old CA signs", now: 40 * time.Minute, held: ahead, trusted: append(trust{{ca: future.Leaf, since: at(0)}}, aTrusted...), served: issue(a, 0), want: a},
		"OldExpired":      {reason: "the CA of the certificate has expired", now: 24 * time.Hour, held: rotated, trusted: bothTrusted(24 * time.Hour), served: issue(a, 23*time.Hour), want: b},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := times.renews(view{now: at(tc.now), held: tc.held, trusted: tc.trusted}, tc.served)
			assert.Same(t, tc.want, got, tc.reason)
		})
	}
}

func TestTrust(t *testing.T) {
	a, b, ahead := ca(t, 0), ca(t, 16*time.Hour), ca(t, 18*time.Hour)
	first := trust(nil).seen(at(17*time.Hour), bundle(a, ahead))
	assert.Equal(t, trust{{ca: a.Leaf, since: at(0)}, {ca: ahead.Leaf, since: at(17 * time.Hour)}}, first, "the configuration has them since they were created")
	second := first.seen(at(17*time.Hour+time.Second), bundle(b, a))
	assert.Equal(t, trust{{ca: b.Leaf, since: at(17*time.Hour + time.Second)}, {ca: a.Leaf, since: at(0)}}, second, "the configuration could not be written before")
	assert.NotNil(t, trust(nil).seen(at(0), nil))
}

// written returns the content of a Secret with these CAs. The first one is the current one.
func written(t testing.TB, all ...*authority) map[string][]byte {
	t.Helper()
	var s corev1.Secret
	require.NoError(t, (&record{current: all[0], bundle: bundle(all...)}).write(&s))
	return s.Data
}

func TestParseRecord(t *testing.T) {
	a, other := ca(t, 0), written(t, ca(t, 1))
	good := func() *corev1.Secret {
		s := corev1.Secret{Data: written(t, a)}
		metav1.SetMetaDataAnnotation(&s.ObjectMeta, RotateAnnotation, "")
		return &s
	}
	r, err := parseRecord(good())
	require.NoError(t, err)
	assert.True(t, r.rotate)

	leaf, err := a.issue(at(0), times.CertValidity, []string{"prebind.svc"})
	require.NoError(t, err)
	broken := map[string]func(s *corev1.Secret){
		"no data":       func(s *corev1.Secret) { s.Data = nil },
		"another's key": func(s *corev1.Secret) { s.Data["tls.key"] = other["tls.key"] },
		"no CA":         func(s *corev1.Secret) { s.Data = written(t, (*authority)(leaf.tls)) },
		"no bundle":     func(s *corev1.Secret) { delete(s.Data, "ca.crt") },
		"other bundle":  func(s *corev1.Secret) { s.Data["ca.crt"] = other["ca.crt"] },
	}
	for name, spoil := range broken {
		s := good()
		spoil(s)
		_, err := parseRecord(s)
		assert.Error(t, err, name)
	}
}

// defaults returns the defaults of the flags.
func defaults() Options {
	var o Options
	o.AddFlags(pflag.NewFlagSet("test", pflag.ContinueOnError))
	return o
}

func TestOptions_Validate(t *testing.T) {
	cases := map[string]struct {
		reason string
		o      Options
		says   string
	}{
		"Default":    {reason: "the defaults are valid", o: defaults()},
		"NoOverlap":  {reason: "API servers need time to receive a CA", o: Options{CAValidity: 365 * day, CertValidity: 7 * day}, says: "--self-managed-ca-overlap"},
		"ShortCert":  {reason: "certificates would expire before a new CA signs", o: Options{CAValidity: time.Hour, CertValidity: time.Minute, Overlap: 20 * time.Second}, says: "--self-managed-cert-validity"},
		"ShortCA":    {reason: "the CA would rotate too often", o: Options{CAValidity: time.Hour, CertValidity: 30 * time.Minute, Overlap: time.Second}, says: "--self-managed-ca-validity"},
		"JustEnough": {reason: "the minimum is allowed", o: Options{CAValidity: 16 * time.Second, CertValidity: 4 * time.Second, Overlap: time.Second}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := defaults()
			o.SelfManaged, o.CAValidity, o.CertValidity, o.Overlap = true, tc.o.CAValidity, tc.o.CertValidity, tc.o.Overlap
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
	a, err := newAuthority(begin, times.CAValidity)
	require.NoError(f, err)
	b, err := newAuthority(begin, times.CAValidity)
	require.NoError(f, err)
	one, other, both := written(f, a), written(f, b), written(f, a, b)
	f.Add(one["tls.crt"], one["tls.key"], one["ca.crt"])
	f.Add(both["tls.crt"], both["tls.key"], both["ca.crt"])
	f.Add(one["tls.crt"], other["tls.key"], one["ca.crt"])
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, cert, key, bundle []byte) {
		secret := &corev1.Secret{Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: key, bundleKey: bundle}}
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
