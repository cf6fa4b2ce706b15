// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Tests and benchmarks measure the server, so their clients must not wait for
// themselves.
const (
	clientQPS   = 5000
	clientBurst = 10000
)

// tokenLife is how long the tokens in [Cluster.ServiceAccountKubeconfig]'s files
// last, in seconds.
const tokenLife = 24 * 60 * 60

// UserConfig returns a configuration whose client certificate makes its bearer
// the named user, in the named groups. The user can do what RBAC grants it; the
// group system:masters can do everything. The caller owns the configuration.
func (c *Cluster) UserConfig(name string, groups ...string) (*rest.Config, error) {
	client, err := c.pki.client(name, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host: c.URL(APIServer),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   c.pki.CertPEM,
			CertData: client.CertPEM,
			KeyData:  client.KeyPEM,
		},
		QPS:   clientQPS,
		Burst: clientBurst,
	}, nil
}

// ServiceAccountKubeconfig makes a token for the service account, as the API
// server gives it to a pod, and returns the path of a kubeconfig that reads it
// from a file. The service account must exist. The token lasts for 24 hours; the
// files are the cluster's and go with its folder.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	life := int64(tokenLife)
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &life}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("make a token for service account %s/%s (does it exist?): %w", namespace, name, err)
	}
	tokenFile := filepath.Join(c.dir, "users", namespace+"."+name+".token")
	if err := os.MkdirAll(filepath.Dir(tokenFile), 0o700); err != nil {
		return "", fmt.Errorf("write the token: %w", err)
	}
	if err := os.WriteFile(tokenFile, []byte(token.Status.Token), 0o600); err != nil {
		return "", fmt.Errorf("write the token: %w", err)
	}
	path := strings.TrimSuffix(tokenFile, ".token") + ".kubeconfig"
	return path, c.writeKubeconfig(path, name, &clientcmdapi.AuthInfo{TokenFile: tokenFile}, namespace)
}

// userKubeconfig writes a kubeconfig with a client certificate and returns its path.
func (c *Cluster) userKubeconfig(file, user string, groups ...string) (string, error) {
	client, err := c.pki.client(user, groups...)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.dir, "users", file+".kubeconfig")
	return path, c.writeKubeconfig(path, user, &clientcmdapi.AuthInfo{
		ClientCertificateData: client.CertPEM,
		ClientKeyData:         client.KeyPEM,
	}, metav1.NamespaceDefault)
}

func (c *Cluster) writeKubeconfig(path, user string, auth *clientcmdapi.AuthInfo, namespace string) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["prebind-test"] = &clientcmdapi.Cluster{
		Server:               c.URL(APIServer),
		CertificateAuthority: c.pki.file("ca.crt"),
	}
	config.AuthInfos[user] = auth
	config.Contexts["prebind-test"] = &clientcmdapi.Context{Cluster: "prebind-test", AuthInfo: user, Namespace: namespace}
	config.CurrentContext = "prebind-test"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return nil
}

const admissionConfigFile = "admission.yaml"

// admissionConfig contains the path of a kubeconfig.
const admissionConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: %q}
`

// CAFile returns the path of the CA that signs the certificates of all users and of
// all components, in PEM.
func (c *Cluster) CAFile() string { return c.pki.file("ca.crt") }

// writeAdmissionConfig has the API server show a certificate to every webhook, if
// [Options.WebhookClient] says whose.
func (c *Cluster) writeAdmissionConfig() error {
	if c.o.WebhookClient == "" {
		return nil
	}
	client, err := c.pki.client(c.o.WebhookClient)
	if err != nil {
		return err
	}
	// The API server looks up the webhook's name among the users; the star is all.
	path := filepath.Join(c.dir, "users", "webhooks.kubeconfig")
	auth := &clientcmdapi.AuthInfo{ClientCertificateData: client.CertPEM, ClientKeyData: client.KeyPEM}
	if err := c.writeKubeconfig(path, "*", auth, metav1.NamespaceDefault); err != nil {
		return err
	}
	if err := os.WriteFile(c.file(admissionConfigFile), fmt.Appendf(nil, admissionConfig, path), 0o644); err != nil {
		return fmt.Errorf("write the admission configuration: %w", err)
	}
	return nil
}
