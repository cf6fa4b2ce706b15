// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

const admissionConfigFile = "admission.yaml"

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
	config, err := yaml.Marshal(map[string]any{
		"apiVersion": "apiserver.config.k8s.io/v1",
		"kind":       "AdmissionConfiguration",
		"plugins": []any{map[string]any{
			"name": "MutatingAdmissionWebhook",
			"configuration": map[string]any{
				"apiVersion":     "apiserver.config.k8s.io/v1",
				"kind":           "WebhookAdmissionConfiguration",
				"kubeConfigFile": path,
			},
		}},
	})
	if err != nil {
		return fmt.Errorf("write the admission configuration: %w", err)
	}
	if err := os.WriteFile(c.file(admissionConfigFile), config, 0o644); err != nil {
		return fmt.Errorf("write the admission configuration: %w", err)
	}
	return nil
}
