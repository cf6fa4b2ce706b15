// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

// pollInterval is the time between two deletions of the object, until it is gone.
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

// unregister deletes the webhook configuration until it is gone.
func unregister(ctx context.Context, client kubernetes.Interface, o *unregisterOptions, out io.Writer) error {
	what, deleted := "MutatingWebhookConfiguration "+o.name, false
	err := wait.PollUntilContextTimeout(ctx, pollInterval, o.timeout, true, func(ctx context.Context) (bool, error) {
		err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(ctx, o.name, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		deleted = deleted || err == nil
		return false, err
	})
	switch {
	case deleted && wait.Interrupted(err) && ctx.Err() == nil: // Not a slow API server, or a signal.
		return fmt.Errorf("%s: still exists after %s; check its finalizers, and whether a controller creates it again", what, o.timeout)
	case err != nil:
		return fmt.Errorf("deleting %s: %w", what, err)
	case deleted:
		_, err = fmt.Fprintln(out, what, "deleted")
	default:
		_, err = fmt.Fprintln(out, what, "does not exist")
	}
	return err
}
