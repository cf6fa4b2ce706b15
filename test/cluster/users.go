// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/prebind/prebind/test/gencert"
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

const (
	// certLife is far longer than any cluster of this package.
	certLife = 365 * 24 * time.Hour
	// Backdated is for how long the certificates of a new cluster have been valid: those
	// of most clusters are older than any clock is behind.
	Backdated = 2 * time.Hour
)

// pki is the authority of one cluster: the client CA, the serving CA, the signer of the certificates API, and the signer of the tokens of
// service accounts. Its files are for the components to read.
type pki struct {
	*gencert.Pair
	dir string
}

// newPKI makes the authority, and a certificate for servers on the loopback address and for the API server.
func newPKI(dir string) (*pki, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the folder for certificates: %w", err)
	}
	p := &pki{dir: dir}
	var err error
	if p.Pair, err = p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "prebind-test-cluster"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}); err != nil {
		return nil, err
	}
	serving, err := p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "serving"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		IPAddresses: []net.IP{net.ParseIP(apiServiceIP), net.ParseIP(loopback)},
	})
	if err != nil {
		return nil, err
	}
	return p, errors.Join(p.write("ca", p.Pair), p.write("serving", serving))
}

// client makes a certificate that the API server takes for the user.
func (p *pki) client(user string, groups ...string) (*gencert.Pair, error) {
	return p.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: user, Organization: groups}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// issue completes and signs the certificate. The first one signs itself.
func (p *pki) issue(template *x509.Certificate) (*gencert.Pair, error) {
	gencert.Valid(-Backdated, certLife)(template)
	issued, err := gencert.Issue(p.Pair, template)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %s: %w", template.Subject.CommonName, err)
	}
	return issued, nil
}

// write writes the files NAME.crt and NAME.key.
func (p *pki) write(name string, pair *gencert.Pair) error {
	return errors.Join(os.WriteFile(p.file(name+".crt"), pair.CertPEM, 0o600), os.WriteFile(p.file(name+".key"), pair.KeyPEM, 0o600))
}

func (p *pki) file(name string) string { return filepath.Join(p.dir, name) }
