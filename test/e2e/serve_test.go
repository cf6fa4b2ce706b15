// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/prebind/prebind/test/cluster"
	"github.com/prebind/prebind/test/gencert"
)

// Startup errors are reported in one line, and the process exits.
func TestServeSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	p := shared.prebind
	dir := t.TempDir()
	badConfig := filepath.Join(dir, "config.yaml")
	require.NoError(t, os.WriteFile(badConfig, []byte(configHead+"budgets:\n  hodl: 5s\n"), 0o600))
	expired := filepath.Join(dir, "expired")
	old := gencert.NewCA(t, "ca").Sign(t, "prebind", gencert.Valid(-2*time.Hour, -time.Hour))
	require.NoError(t, os.Mkdir(expired, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(expired, "tls.crt"), old.CertPEM, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(expired, "tls.key"), old.KeyPEM, 0o600))
	nowhere := filepath.Join(dir, "kubeconfig")
	config, err := clientcmd.LoadFromFile(p.Kubeconfig())
	require.NoError(t, err)
	for _, c := range config.Clusters {
		address, err := shared.cluster.ReserveAddress(t.Context())
		require.NoError(t, err)
		c.Server = "https://" + address
	}
	require.NoError(t, clientcmd.WriteToFile(*config, nowhere))

	// The exit code is 64 if the command line or the configuration is wrong, and 1 if a file or a server is not as it should be.
	const usage = 64
	tests := map[string]struct {
		args []string
		says []string
		code int
	}{
		"several":             {args: []string{"--hold=0s", "--max-holds=0"}, says: []string{"--hold", "--max-holds"}, code: usage},
		"expired certificate": {args: []string{"--cert-dir=" + expired}, says: []string{"--cert-dir", `"prebind" expired at`, "renew it"}},
		"no API server":       {args: []string{"--cert-dir=" + p.CertDir(), "--kubeconfig=" + nowhere}, says: []string{"the API server at", "does not answer", "connection refused"}},
		"unknown field":       {args: []string{"--config=" + badConfig}, says: []string{badConfig + ": line 4: budgets.hodl: unknown field", "hold, maxHolds"}, code: usage},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(ctx, p.Binary(), append([]string{"serve"}, tc.args...)...)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, cmp.Or(tc.code, 1), exit.ExitCode())
			assert.Empty(t, stdout.String())
			assert.Equal(t, 1, strings.Count(stderr.String(), "\n"), "the output should be one line:\n%s", &stderr)
			for _, words := range tc.says {
				assert.Contains(t, stderr.String(), words)
			}
		})
	}
}

// A replica serves a new certificate of a new CA without a restart.
func TestCertificateRotation(t *testing.T) {
	b := newBench(t, shared, nil)
	replica := b.prebind.Replicas()[0]
	serial := func() string {
		dialer := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true}} // This connection only reads the certificate.
		raw, err := dialer.DialContext(t.Context(), "tcp", replica.WebhookAddress())
		require.NoError(t, err)
		defer raw.Close()
		conn, ok := raw.(*tls.Conn)
		require.True(t, ok)
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	require.NoError(t, b.prebind.IssueCertificates(t.Context()))
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		assert.NotEqual(c, before, serial())
	}, patience, 100*time.Millisecond, "the new certificate should be served")
	b.pod(cluster.DefaultScheduler)
	b.assertTopology(b.untilBound())
}

var insecure = &http.Client{Transport: &http.Transport{
	TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // Any client that can reach the port.
}}

// get returns the body of the URL. It fails unless the response has the code.
func get(ctx context.Context, url string, code int) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != code {
		return errors.New(url + " answers " + response.Status)
	}
	return nil
}
