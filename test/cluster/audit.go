// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
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

// AuditLog returns the path of the API server's audit log, which is there from
// the first bind on if [Options.Audit] is set.
func (c *Cluster) AuditLog() string { return c.file("audit.log") }

// AuditEvents returns one event, at the level Metadata, for each answer that the
// API server has given to a bind, by either path, in order. What webhooks added
// is in the annotations. It is an error if [Options.Audit] is not set.
func (c *Cluster) AuditEvents() ([]auditv1.Event, error) {
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
	var out []auditv1.Event
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // being written
		}
		var event auditv1.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return nil, fmt.Errorf("read the audit log: %w", err)
		}
		out = append(out, event)
	}
	return out, nil
}
