// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

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

// pauseBetweenLooks is the pause between two looks at what is being deleted.
const pauseBetweenLooks = 200 * time.Millisecond

// unregisterOptions are the flags of prebind unregister.
type unregisterOptions struct {
	user    userClient
	name    string
	timeout time.Duration
}

func newUnregisterCommand() *cobra.Command {
	o := &unregisterOptions{name: "prebind", timeout: time.Minute}
	cmd := &cobra.Command{
		Use:   "unregister",
		Short: "Take Prebind out of the way of binds: the first step of removing it",
		Long: `Delete the webhook configuration, and return when it is gone.

From then on the API server binds pods as if Prebind were not there, so that all
the rest can be removed and no bind fails. It is no error if it is gone already.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			config, _, err := o.user.config()
			if err != nil {
				return err
			}
			client, err := kubernetes.NewForConfig(config)
			if err != nil {
				return fmt.Errorf("setting up: %w", err)
			}
			return unregister(cmd.Context(), client, o, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.name, "name", o.name, "Name of the MutatingWebhookConfiguration.")
	fs.DurationVar(&o.timeout, "timeout", o.timeout, "How long it may take until it is gone.")
	o.user.addFlags(fs)
	return cmd
}

func (o *unregisterOptions) validate() error {
	var problems []error
	if wrong := content.IsPathSegmentName(o.name); o.name == "" || len(wrong) > 0 {
		problems = append(problems, fmt.Errorf("--name: %q is no name: %s", o.name, strings.Join(append(wrong, "give that of a MutatingWebhookConfiguration"), "; ")))
	}
	if o.timeout <= 0 {
		problems = append(problems, fmt.Errorf("--timeout: %s is not positive", o.timeout))
	}
	return oneLine(problems)
}

// unregister deletes the webhook configuration and returns when it is gone.
func unregister(ctx context.Context, client kubernetes.Interface, o *unregisterOptions, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	configurations := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	err := configurations.Delete(ctx, o.name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		_, err = fmt.Fprintf(out, "there is no MutatingWebhookConfiguration %s: binds do not ask Prebind\n", o.name)
		return err
	}
	if err != nil {
		return fmt.Errorf("deleting the MutatingWebhookConfiguration %s: %w", o.name, err)
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, pauseBetweenLooks, true, func(ctx context.Context) (bool, error) {
		_, last = configurations.Get(ctx, o.name, metav1.GetOptions{})
		return apierrors.IsNotFound(last), nil
	})
	switch {
	case err == nil:
		_, err = fmt.Fprintf(out, "the MutatingWebhookConfiguration %s is gone: binds do not ask Prebind any more\n", o.name)
		return err
	case !errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("waiting for the end of the MutatingWebhookConfiguration %s: %w", o.name, err)
	case last != nil:
		return fmt.Errorf("the MutatingWebhookConfiguration %s was deleted, but it cannot be seen whether it is gone after %s: %w", o.name, o.timeout, last)
	default:
		return fmt.Errorf("the MutatingWebhookConfiguration %s is still there after %s: look at its finalizers, and at who makes it anew", o.name, o.timeout)
	}
}
