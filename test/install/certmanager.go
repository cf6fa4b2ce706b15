// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/prebind/prebind/test/cluster"
)

// CertManager returns the process of cert-manager, or nil without Options.CertManager. The caller stops it before the cluster.
func (p *Prebind) CertManager() *cluster.Process { return p.certManager }

// Renew requests another certificate from cert-manager for a Certificate, like `cmctl renew`. It does not wait for the certificate.
func (p *Prebind) Renew(ctx context.Context, certificate string) error {
	return p.kubectl(ctx, "patch", "certificate", certificate, "--namespace="+Namespace, "--subresource=status", "--type=json",
		`--patch=[{"op":"add","path":"/status/conditions/-","value":{"type":"Issuing","status":"True","reason":"ManuallyTriggered"}}]`)
}

// awaitSecret waits until cert-manager has written the Secret. The kubelet starts a pod after that.
func (p *Prebind) awaitSecret(ctx context.Context, name string) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, cluster.Patience, true, func(ctx context.Context) (bool, error) {
		last = p.client.Get(ctx, client.ObjectKey{Namespace: Namespace, Name: name}, &corev1.Secret{})
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for cert-manager: %w", last)
	}
	return nil
}
