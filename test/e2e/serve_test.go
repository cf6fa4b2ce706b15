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
	"syscall"
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
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("no certificate"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls.key"), []byte("no key"), 0o600))
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
		"unknown flag":        {args: []string{"--bogus"}, says: []string{"unknown flag: --bogus"}, code: usage},
		"bad hold":            {args: []string{"--hold=-1s"}, says: []string{"--hold", `Invalid value: "-1s": must be positive`}, code: usage},
		"unknown plugin":      {args: []string{"--prebind-plugins=*,volumes"}, says: []string{`"volumes"`, "volumebinding"}, code: usage},
		"agent's selector":    {args: []string{"--node-ready-agents=kube-system/a=b,,=c"}, says: []string{`--node-ready-agents: Invalid value: "a=b,,=c": must be a label selector`}, code: usage},
		"agent's namespace":   {args: []string{"--node-ready-agents=app=cni"}, says: []string{"--node-ready-agents", `must be NAMESPACE/SELECTOR or NAMESPACE/SELECTOR@NODE-SELECTOR, got "app=cni"`}, code: usage},
		"unknown check":       {args: []string{"--node-ready-checks=csi"}, says: []string{"--node-ready-checks", `Unsupported value: "csi"`, "csi-drivers"}, code: usage},
		"unknown mutator":     {args: []string{"--mutators=-topologie"}, says: []string{`"topologie"`, "topology"}, code: usage},
		"several":             {args: []string{"--hold=0s", "--max-holds=0"}, says: []string{"--hold", "--max-holds"}, code: usage},
		"no certificate":      {args: []string{"--cert-dir=" + filepath.Join(dir, "none")}, says: []string{"--cert-dir", "tls.crt", "no such file"}},
		"bad certificate":     {args: []string{"--cert-dir=" + dir}, says: []string{"--cert-dir"}},
		"expired certificate": {args: []string{"--cert-dir=" + expired}, says: []string{"--cert-dir", `"prebind" expired at`, "renew it"}},
		"no client CA":        {args: []string{"--cert-dir=" + p.CertDir(), "--client-ca-file=" + filepath.Join(dir, "none")}, says: []string{"--client-ca-file", "no such file"}},
		"empty client CA":     {args: []string{"--cert-dir=" + p.CertDir(), "--client-ca-file=" + filepath.Join(dir, "tls.key")}, says: []string{"--client-ca-file", "no certificate"}},
		"names without a CA":  {args: []string{"--client-allowed-names=kube-apiserver"}, says: []string{"--client-allowed-names", "--client-ca-file"}, code: usage},
		"certificates twice":  {args: []string{"--self-managed-certs", "--cert-dir=" + p.CertDir()}, says: []string{"--self-managed-certs and --cert-dir", "mutually exclusive"}, code: usage},
		"no kubeconfig":       {args: []string{"--cert-dir=" + p.CertDir(), "--kubeconfig=" + filepath.Join(dir, "none")}, says: []string{"--kubeconfig", "no such file"}},
		"no API server":       {args: []string{"--cert-dir=" + p.CertDir(), "--kubeconfig=" + nowhere}, says: []string{"the API server at", "does not answer", "connection refused"}},
		"contradiction":       {args: []string{"--prebind-plugins=device,-device"}, says: []string{"--prebind-plugins", `"device" is switched both on and off`}, code: usage},
		"unknown field":       {args: []string{"--config=" + badConfig}, says: []string{badConfig + ": line 4: budgets.hodl: unknown field", "hold, maxHolds"}, code: usage},
		"no config":           {args: []string{"--config=" + filepath.Join(dir, "none")}, says: []string{"--config", "no such file"}, code: usage},
		"port in use": {
			args: []string{"--cert-dir=" + p.CertDir(), "--kubeconfig=" + p.Kubeconfig(), "--webhook-bind-address=" + p.Replicas()[0].WebhookAddress()},
			says: []string{"--webhook-bind-address", "address already in use"},
		},
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

// After SIGTERM, a ready replica exits quickly without errors.
func TestCleanShutdown(t *testing.T) {
	t.Parallel()
	c := shared.cluster
	address, err := c.ReserveAddress(t.Context())
	require.NoError(t, err)
	health, err := c.ReserveAddress(t.Context())
	require.NoError(t, err)
	process, err := cluster.NewProcess(cluster.ProcessOptions{
		Name: "brief",
		Path: shared.prebind.Binary(),
		Args: []string{
			"serve", "--kubeconfig=" + shared.prebind.Kubeconfig(), "--cert-dir=" + shared.prebind.CertDir(), "--webhook-bind-address=" + address,
			"--health-probe-bind-address=" + health, "--metrics-bind-address=0",
		},
		LogFile: filepath.Join(t.TempDir(), "log"),
		Health: func(ctx context.Context) error {
			return get(ctx, "http://"+health+"/readyz", http.StatusOK)
		},
	})
	require.NoError(t, err)
	require.NoError(t, process.Start())
	t.Cleanup(func() { assert.NoError(t, process.Kill()) })
	require.NoError(t, process.WaitReady(t.Context()))
	require.NoError(t, process.Signal(syscall.SIGTERM))
	select {
	case <-process.Exited():
		assert.ErrorContains(t, process.Err(), "exit code 0")
	case <-time.After(patience):
		t.Fatalf("it should have ended:\n%s", process.Tail(20))
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
