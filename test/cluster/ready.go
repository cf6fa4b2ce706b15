// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// The identities of the components that are not part of Kubernetes. They may do what
// their work needs and no more.
const (
	provisionerUser = "prebind-test-provisioner"
	kwokUser        = "prebind-test-kwok"
)

// health asks a component's health endpoint.
func (c *Cluster) health(component string) func(ctx context.Context) error {
	path := map[string]string{
		Etcd:              "/health",
		APIServer:         "/readyz",
		OtherAPIServer:    "/readyz",
		ControllerManager: "/healthz", // it has no other that waits for its caches
		Scheduler:         "/readyz",
		SecondScheduler:   "/readyz",
		Provisioner:       "/readyz",
		Kwok:              "/readyz",
	}[component]
	return c.serves(c.scheme(component) + address(c.ports[component]) + path)
}

// serves returns a check whether the URL answers with 200. It trusts the CA of the cluster.
func (c *Cluster) serves(url string) func(ctx context.Context) error {
	roots := x509.NewCertPool()
	roots.AddCert(c.pki.Cert)
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		// A connection from before a restart must not answer for after it.
		DisableKeepAlives: true,
	}}
	return func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(io.LimitReader(response.Body, 4<<10))
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s: %s", url, response.Status, body)
		}
		return nil
	}
}

// bootstrap makes the objects that come with the components that are not part of Kubernetes.
func (c *Cluster) bootstrap(ctx context.Context) error {
	if c.o.Kwok {
		err := grant(ctx, c.client, kwokUser,
			rule("", "nodes", "get", "list", "watch"),
			rule("", "pods", "get", "list", "watch", "delete"),
			rule("", "pods/status", "patch"),
			rule("", "events", "create", "patch", "update"),
		)
		if err != nil {
			return err
		}
	}
	if c.o.WithoutProvisioner {
		return nil
	}
	err := grant(ctx, c.client, provisionerUser,
		rule("", "persistentvolumes", "get", "list", "watch", "create", "delete", "patch"),
		rule("", "persistentvolumeclaims", "get", "list", "watch", "update"),
		rule("", "nodes", "get"),
		rule("", "events", "create", "patch", "update"),
		rule("storage.k8s.io", "storageclasses", "get", "list", "watch"),
	)
	if err != nil {
		return err
	}
	return createDriver(ctx, c.client, ProvisionerName, false)
}

// createDriver creates a CSIDriver. Nothing attaches volumes here, so nothing must wait for it.
func createDriver(ctx context.Context, client kubernetes.Interface, name string, capacity bool) error {
	_, err := client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       storagev1.CSIDriverSpec{AttachRequired: new(false), StorageCapacity: &capacity},
	}, metav1.CreateOptions{})
	return err
}

// grant gives the user these rights.
func grant(ctx context.Context, client kubernetes.Interface, user string, rules ...rbacv1.PolicyRule) error {
	meta := metav1.ObjectMeta{Name: user}
	_, err := client.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make the role of %s: %w", user, err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make the role binding of %s: %w", user, err)
	}
	return nil
}

func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// Pause waits for the duration. It returns an error if ctx ends before.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// WaitForPods waits until the namespaces may have pods: the API server rejects pods until the default service account exists.
func WaitForPods(ctx context.Context, client kubernetes.Interface, namespaces ...string) error {
	for _, namespace := range namespaces {
		err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, Patience, true, func(ctx context.Context) (bool, error) {
			_, err := client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{})
			return err == nil, nil
		})
		if err != nil {
			return fmt.Errorf("wait for the service account %s/default: %w", namespace, err)
		}
	}
	return nil
}
