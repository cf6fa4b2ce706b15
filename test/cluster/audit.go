// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const auditPolicyFile = "audit-policy.yaml"

// auditPolicy logs binds, by both of their paths, and nothing else.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create]
  resources:
  - group: ""
    resources: [pods/binding, bindings]
- level: None
`

// AuditEvent is the part of an event of audit.k8s.io/v1 that tests read.
type AuditEvent struct {
	RequestURI string `json:"requestURI"`
	Verb       string `json:"verb"`
	User       struct {
		Username string `json:"username"`
	} `json:"user"`
	// ObjectRef is nil for requests that name no object.
	ObjectRef *struct {
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus           *metav1.Status    `json:"responseStatus"`
	RequestReceivedTimestamp metav1.MicroTime  `json:"requestReceivedTimestamp"`
	Annotations              map[string]string `json:"annotations"`
}

// AuditLog returns the path of the API server's audit log, which is there from
// the first bind on if [Options.Audit] is set.
func (c *Cluster) AuditLog() string { return c.file("audit.log") }

// AuditEvents returns one event, at the level Metadata, for each answer that the
// API server has given to a bind, by either path, in order. Annotations contain the additions of webhooks. The event of a bind is there when its client has the answer, but
// not yet when the pod is bound. It is an error if [Options.Audit] is not set.
func (c *Cluster) AuditEvents() ([]AuditEvent, error) {
	if !c.o.Audit {
		return nil, errors.New("read the audit log: there is none: set Options.Audit")
	}
	content, err := os.ReadFile(c.AuditLog())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	var out []AuditEvent
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var event AuditEvent
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		out = append(out, event)
	}
	return out, nil
}
