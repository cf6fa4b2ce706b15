// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestUnregister(t *testing.T) {
	cases := map[string]struct {
		reason string
		// there lists the configurations before the command.
		there []string
		// answer is the answer to the nth deletion, if it is handled without the deletion, as for an object with a finalizer.
		answer func(n int) (handled bool, err error)
		// interrupted ends the context during the first deletion.
		interrupted bool
		timeout     time.Duration
		says        string
		// fails is part of the error. It is empty for no error.
		fails string
		// left lists the configurations after the command.
		left []string
	}{
		"There": {
			reason: "only the named object is deleted",
			there:  []string{"other", "prebind"},
			says:   "MutatingWebhookConfiguration prebind deleted\n",
			left:   []string{"other"},
		},
		"Gone": {
			reason: "the command can be repeated",
			there:  []string{"other"},
			says:   "MutatingWebhookConfiguration prebind does not exist\n",
			left:   []string{"other"},
		},
		"Held": {
			reason:  "the command fails while the API server still calls Prebind",
			there:   []string{"prebind"},
			answer:  func(int) (bool, error) { return true, nil },
			timeout: time.Millisecond,
			fails:   "still exists after 1ms; check its finalizers",
			left:    []string{"prebind"},
		},
		"Slow": {
			reason: "a finalizer can delay the deletion",
			there:  []string{"prebind"},
			answer: func(n int) (bool, error) { return n < 3, nil },
			says:   "MutatingWebhookConfiguration prebind deleted\n",
		},
		"Unconfirmed": {
			reason: "an unconfirmed deletion is an error",
			there:  []string{"prebind"},
			answer: func(n int) (bool, error) { return n == 2, errors.New("connection lost") },
			fails:  "deleting MutatingWebhookConfiguration prebind: connection lost",
		},
		"Hangs": {
			reason: "the API server has not shown that the object exists",
			there:  []string{"prebind"},
			answer: func(int) (bool, error) { return true, context.DeadlineExceeded },
			fails:  "deleting MutatingWebhookConfiguration prebind: context deadline exceeded",
			left:   []string{"prebind"},
		},
		"Interrupted": {
			reason:      "a signal ends the command before its timeout",
			there:       []string{"prebind"},
			answer:      func(int) (bool, error) { return true, nil },
			interrupted: true,
			fails:       "deleting MutatingWebhookConfiguration prebind: context canceled",
			left:        []string{"prebind"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			client := fake.NewClientset()
			configurations := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
			for _, name := range tc.there {
				_, err := configurations.Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			deletions := 0
			client.PrependReactor("delete", "mutatingwebhookconfigurations", func(k8stesting.Action) (handled bool, _ runtime.Object, err error) {
				deletions++
				if tc.interrupted {
					interrupt()
				}
				if tc.answer != nil {
					handled, err = tc.answer(deletions)
				}
				return handled, nil, err
			})
			o := &unregisterOptions{name: "prebind", timeout: cmp.Or(tc.timeout, time.Minute)}
			var out bytes.Buffer
			err := unregister(ctx, client, o, &out)
			if tc.fails != "" {
				require.ErrorContains(t, err, tc.fails, tc.reason)
				assert.NotContains(t, err.Error(), "\n", "an error is one line")
			} else {
				require.NoError(t, err, tc.reason)
			}
			assert.Equal(t, tc.says, out.String(), tc.reason)
			list, err := configurations.List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			var left []string
			for _, c := range list.Items {
				left = append(left, c.Name)
			}
			assert.Equal(t, tc.left, left, tc.reason)
		})
	}
}

// TestUnregister_KubectlFlags checks that the command uses the flags and the environment of kubectl.
func TestUnregister_KubectlFlags(t *testing.T) {
	asked := make(chan string, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path + " as " + r.Header.Get("Impersonate-User")
		http.NotFound(w, r)
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "config")
	config := clientcmdapi.NewConfig()
	config.Clusters["other"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["other"] = &clientcmdapi.Context{Cluster: "other"}
	require.NoError(t, clientcmd.WriteToFile(*config, file))
	for name, given := range map[string]struct {
		environment string
		args        []string
	}{
		"Environment": {environment: file},
		"Flag":        {args: []string{"--kubeconfig=" + file}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", given.environment)
			root := &cobra.Command{Use: "root"}
			root.AddCommand(NewUnregisterCommand())
			Configure(root)
			var printed bytes.Buffer
			root.SetOut(&printed)
			root.SetArgs(append([]string{"unregister", "--context=other", "--as=admin"}, given.args...))
			require.NoError(t, root.ExecuteContext(t.Context()))
			assert.Contains(t, printed.String(), "MutatingWebhookConfiguration prebind does not exist")
			assert.Equal(t, "DELETE /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/prebind as admin", <-asked)
		})
	}
}
