// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// pollInterval is the time between two reads of the object that is being deleted.
const pollInterval = 200 * time.Millisecond

// unregisterOptions are the flags of unregister.
type unregisterOptions struct {
	client  Client
	name    string
	timeout time.Duration
}

// NewUnregisterCommand returns the command unregister. Both programs have it: the image contains only the server, and the pre-delete hook
// of the chart runs in it.
func NewUnregisterCommand() *cobra.Command {
	o := &unregisterOptions{name: "prebind", timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "unregister",
		Short: "Delete the webhook configuration, as the first step of removing Prebind",
		Long: `Delete the MutatingWebhookConfiguration, and wait until it is gone.

From then on the API server binds pods without calling Prebind, so you can remove
everything else without a failed bind. The command succeeds if the configuration
does not exist.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			client, err := o.client.Connect()
			if err != nil {
				return err
			}
			return unregister(cmd.Context(), client, o, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.name, "name", o.name, "Name of the MutatingWebhookConfiguration.")
	fs.DurationVar(&o.timeout, "timeout", o.timeout, "Maximum time to wait until it is gone.")
	o.client.AddFlags(fs)
	return cmd
}

func (o *unregisterOptions) validate() error {
	var problems []error
	if wrong := content.IsPathSegmentName(o.name); o.name == "" || len(wrong) > 0 {
		problems = append(problems, fmt.Errorf("--name: must be the name of a MutatingWebhookConfiguration, got %q%s", o.name, strings.Join(append([]string{""}, wrong...), "; ")))
	}
	if o.timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout: must be positive, got %s", o.timeout))
	}
	return Usage(problems...)
}

// unregister deletes the webhook configuration and waits until it is gone.
func unregister(ctx context.Context, client kubernetes.Interface, o *unregisterOptions, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	configurations := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	err := configurations.Delete(ctx, o.name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		_, err = fmt.Fprintf(out, "MutatingWebhookConfiguration %s does not exist: the API server does not call Prebind\n", o.name)
		return err
	}
	if err != nil {
		return fmt.Errorf("deleting MutatingWebhookConfiguration %s: %w", o.name, err)
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		_, last = configurations.Get(ctx, o.name, metav1.GetOptions{})
		return apierrors.IsNotFound(last), nil
	})
	switch {
	case err == nil:
		_, err = fmt.Fprintf(out, "MutatingWebhookConfiguration %s deleted: the API server no longer calls Prebind\n", o.name)
		return err
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("waiting until MutatingWebhookConfiguration %s is gone: %w", o.name, err)
	case last != nil:
		return fmt.Errorf("MutatingWebhookConfiguration %s: deleted, but not confirmed within %s: %w", o.name, o.timeout, last)
	default:
		return fmt.Errorf("MutatingWebhookConfiguration %s: still exists after %s; check its finalizers, and whether a controller creates it again", o.name, o.timeout)
	}
}
