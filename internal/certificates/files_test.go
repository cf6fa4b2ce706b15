// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package certificates

import (
	"bytes"
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"github.com/prebind/prebind/test/gencert"
)

const day = 24 * time.Hour

func TestFiles(t *testing.T) {
	ca := gencert.NewCA(t, "ca")
	good := ca.Sign(t, "prebind")
	other := ca.Sign(t, "prebind")
	expired := ca.Sign(t, "old", gencert.Valid(-day, -time.Minute))
	early := ca.Sign(t, "", gencert.DNS("new.svc"), gencert.Valid(time.Hour, day))
	cases := map[string]struct {
		reason    string
		cert, key []byte
		// says is a pattern of the error. It is empty for no error. ready is that of a replica that is not ready.
		says, ready string
	}{
		"Good":        {reason: "certificate and key match", cert: good.CertPEM, key: good.KeyPEM},
		"NoFile":      {reason: "the certificate is missing", key: good.KeyPEM, says: "tls.crt.*no such file"},
		"Mismatch":    {reason: "the key belongs to another certificate", cert: good.CertPEM, key: other.KeyPEM, says: "tls.crt.*private key does not match"},
		"Expired":     {reason: "the API server rejects an expired certificate", cert: expired.CertPEM, key: expired.KeyPEM, ready: `"old".*expired at.*renew`},
		"NotYetValid": {reason: "the API server rejects a certificate that is not valid yet", cert: early.CertPEM, key: early.KeyPEM, ready: `"new.svc".*not valid before.*clock`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tc.cert, tc.key)
			f, err := follow(dir, shared(nil))
			if tc.ready != "" {
				require.NoError(t, err, "the backoff of restarts would delay the renewed certificate")
				assert.Regexp(t, tc.ready, f.ready().Error(), tc.reason)
				write(t, dir, good.CertPEM, good.KeyPEM)
				f.look(t.Context())
			}
			if tc.says == "" {
				require.NoError(t, err, tc.reason)
				require.NoError(t, f.ready())
				assert.Equal(t, good.Cert.Raw, f.get().Certificate[0])
				return
			}
			require.Error(t, err, tc.reason)
			assert.Regexp(t, tc.says, err.Error(), tc.reason)
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
		})
	}
}

// TestFiles_Reload checks that a valid renewal is loaded, and that a bad one is logged once and not used.
func TestFiles_Reload(t *testing.T) {
	ca := gencert.NewCA(t, "ca", gencert.Valid(-day, 1000*day))
	first := ca.Sign(t, "prebind", gencert.Valid(-time.Hour, day))
	dir := t.TempDir()
	write(t, dir, first.CertPEM, first.KeyPEM)
	var log bytes.Buffer
	now := testingclock.NewFakeClock(time.Now())
	o := shared(&log)
	o.Clock = now
	f, err := follow(dir, o)
	require.NoError(t, err)
	served := func() string { return f.get().Leaf.SerialNumber.String() }
	looks := func(n int) {
		for range n {
			now.Step(interval)
			f.look(t.Context())
		}
	}
	counted := func(result string) float64 {
		return testutil.ToFloat64(o.Metrics.reloads.WithLabelValues(Serving, result))
	}
	expires := func() float64 { return testutil.ToFloat64(o.Metrics.expiration.WithLabelValues(Serving)) }

	assert.InDelta(t, first.Cert.NotAfter.Unix(), expires(), 0)
	looks(3)
	assert.Equal(t, first.Cert.SerialNumber.String(), served())
	assert.Empty(t, log.String(), "unchanged files are not logged")

	// The certificate is written before its key.
	second := ca.Sign(t, "prebind", gencert.Valid(-time.Hour, day))
	write(t, dir, second.CertPEM, nil)
	looks(1)
	assert.Equal(t, first.Cert.SerialNumber.String(), served(), "a certificate without its key is not used")
	write(t, dir, nil, second.KeyPEM)
	looks(1)
	assert.Equal(t, second.Cert.SerialNumber.String(), served())
	assert.NotContains(t, log.String(), "Kept the current", "no error is logged between the writes of two files")
	assert.InDelta(t, 1, counted("done"), 0)

	expired := ca.Sign(t, "prebind", gencert.Valid(-day, -time.Hour))
	for failed := range 2 {
		log.Reset()
		write(t, dir, expired.CertPEM, expired.KeyPEM)
		looks(10)
		assert.Equal(t, second.Cert.SerialNumber.String(), served())
		assert.Equal(t, 1, strings.Count(log.String(), "Kept the current certificate"), "%s", &log)
		assert.InDelta(t, failed+1, counted("failed"), 0)
		write(t, dir, second.CertPEM, second.KeyPEM)
		looks(1)
	}

	now.Step(day)
	looks(10)
	assert.Equal(t, second.Cert.SerialNumber.String(), served(), "an expired certificate stays in use")
	third := ca.Sign(t, "prebind", gencert.Valid(-time.Hour, 2*day))
	write(t, dir, third.CertPEM, third.KeyPEM)
	looks(1)
	assert.Equal(t, third.Cert.SerialNumber.String(), served())
	assert.InDelta(t, third.Cert.NotAfter.Unix(), expires(), 0)
}

// A certificate that becomes valid makes the replica ready without another one.
func TestFiles_BecomesValid(t *testing.T) {
	dir, now := t.TempDir(), testingclock.NewFakeClock(time.Now())
	early := gencert.NewCA(t, "ca").Sign(t, "prebind", gencert.Valid(time.Hour, day))
	write(t, dir, early.CertPEM, early.KeyPEM)
	o := shared(nil)
	o.Clock = now
	f, err := follow(dir, o)
	require.NoError(t, err)
	require.Error(t, f.ready())
	now.Step(2 * time.Hour)
	f.look(t.Context())
	assert.NoError(t, f.ready())
}

func TestClients(t *testing.T) {
	ca, next := gencert.NewCA(t, "ca"), gencert.NewCA(t, "next", gencert.Valid(-time.Hour, 2*day))
	old, leaf := gencert.NewCA(t, "old", gencert.Valid(-day, -time.Hour)), ca.Sign(t, "kube-apiserver")
	early := gencert.NewCA(t, "early", gencert.Valid(time.Hour, 2*day))
	cases := map[string]struct {
		reason string
		file   []byte
		// trusts contains the CAs in the pool.
		trusts      []*gencert.Pair
		says, ready string
	}{
		"One":         {reason: "the file has one CA", file: ca.CertPEM, trusts: []*gencert.Pair{ca}},
		"Bundle":      {reason: "the file has the old and the new CA", file: append(bytes.Clone(next.CertPEM), ca.CertPEM...), trusts: []*gencert.Pair{ca, next}},
		"OldInBundle": {reason: "a handshake ignores an expired CA", file: append(bytes.Clone(old.CertPEM), ca.CertPEM...), trusts: []*gencert.Pair{old, ca}},
		"NewInBundle": {reason: "the file is not read again when a CA becomes valid", file: append(bytes.Clone(early.CertPEM), ca.CertPEM...), trusts: []*gencert.Pair{ca, early}},
		"Empty":       {reason: "the file has no CA", file: []byte(" "), says: "ca.crt.*no certificate"},
		"NoCA":        {reason: "the file has a client certificate", file: leaf.CertPEM, says: `"kube-apiserver".*not a CA certificate`},
		"Expired":     {reason: "the only CA has expired", file: old.CertPEM, ready: `"old".*expired`},
		"NotYetValid": {reason: "the only CA is not valid yet", file: early.CertPEM, ready: `"early".*not valid before`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "ca.crt")
			if tc.file != nil {
				require.NoError(t, os.WriteFile(file, tc.file, 0o600))
			}
			o := shared(nil)
			c, err := newFollower(o, ClientCA, parsePool, file)
			if tc.ready != "" {
				require.NoError(t, err)
				assert.Regexp(t, tc.ready, c.ready().Error(), tc.reason)
				return
			}
			if tc.says == "" {
				require.NoError(t, err, tc.reason)
				assert.True(t, gencert.Pool(tc.trusts...).Equal(c.get()), tc.reason)
				last := tc.trusts[len(tc.trusts)-1].Cert.NotAfter.Unix()
				assert.InDelta(t, last, testutil.ToFloat64(o.Metrics.expiration.WithLabelValues(ClientCA)), 0, "the metric shows the last CA to expire")
				return
			}
			require.Error(t, err, tc.reason)
			assert.Regexp(t, tc.says, err.Error(), tc.reason)
		})
	}
}

func TestClients_Reload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, next := gencert.NewCA(t, "ca"), gencert.NewCA(t, "next")
		file := filepath.Join(t.TempDir(), "ca.crt")
		require.NoError(t, os.WriteFile(file, ca.CertPEM, 0o600))
		c, err := newFollower(shared(nil), ClientCA, parsePool, file)
		require.NoError(t, err)
		go c.start(t.Context())
		require.NoError(t, os.WriteFile(file, next.CertPEM, 0o600))
		<-time.After(interval)
		synctest.Wait()
		assert.True(t, gencert.Pool(next).Equal(c.get()))
	})
}

func shared(log *bytes.Buffer) Shared {
	o := Shared{Clock: clock.RealClock{}, Log: klog.Background(), Metrics: NewMetrics()}
	if log != nil {
		o.Log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log)))
	}
	return o
}

// follow follows the certificate in a directory.
func follow(dir string, o Shared) (*follower[*tls.Certificate], error) {
	return newFollower(o, Serving, parsePair, filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"))
}

// write writes the files that are not nil.
func write(t *testing.T, dir string, cert, key []byte) {
	t.Helper()
	for name, content := range map[string][]byte{"tls.crt": cert, "tls.key": key} {
		if content != nil {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o600))
		}
	}
}
