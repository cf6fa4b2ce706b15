// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// feature is an entry of a list of mutators or plugins.
type feature entry

func (f feature) entry() entry { return entry(f) }

func TestSelected(t *testing.T) {
	list := []feature{{name: "a", on: true}, {name: "b", on: true}, {name: "c"}}
	cases := map[string]struct {
		reason string
		flag   []string
		want   []string
		// says is part of the error; empty for none.
		says string
	}{
		"Default":         {reason: "'*' is what is on by default", flag: []string{"*"}, want: []string{"a", "b"}},
		"None":            {reason: "an empty flag switches all off"},
		"One":             {reason: "only what is named", flag: []string{"b"}, want: []string{"b"}},
		"OffByDefault":    {reason: "naming switches on", flag: []string{"c"}, want: []string{"c"}},
		"AllAndMore":      {reason: "'*' and one more", flag: []string{"*", "c"}, want: []string{"a", "b", "c"}},
		"AllButOne":       {reason: "'-x' outweighs '*'", flag: []string{"*", "-a"}, want: []string{"b"}},
		"AllButOneBefore": {reason: "the flag's order does not matter", flag: []string{"-a", "*"}, want: []string{"b"}},
		"ListOrder":       {reason: "the order is the list's", flag: []string{"c", "b", "a"}, want: []string{"a", "b", "c"}},
		"OnlyOff":         {reason: "without '*' nothing is on", flag: []string{"-a"}},
		"OffTwice":        {reason: "what is off stays off", flag: []string{"*", "-a", "-a", "-c"}, want: []string{"b"}},
		"Twice":           {reason: "what is on runs once", flag: []string{"a", "a"}, want: []string{"a"}},
		"OnAndOff":        {reason: "a contradiction is an error", flag: []string{"a", "-a"}, says: `"a" is switched both on and off`},
		"Unknown":         {reason: "an unknown name lists the known ones", flag: []string{"x"}, says: "a, b, c"},
		"UnknownOff":      {reason: "also to switch off", flag: []string{"*", "-x"}, says: `no thing "x"`},
		"MinusStar":       {reason: "there is no '-*'", flag: []string{"-*"}, says: `"*"`},
		"EmptyName":       {reason: "nothing is not a name", flag: []string{""}, says: `""`},
		"Case":            {reason: "names are compared exactly", flag: []string{"A"}, says: `"A"`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := selected(list, "thing", tc.flag)
			if tc.says != "" {
				require.ErrorContains(t, err, tc.says, tc.reason)
				return
			}
			require.NoError(t, err, tc.reason)
			var names []string
			for _, f := range got {
				names = append(names, f.name)
			}
			assert.Equal(t, tc.want, names, tc.reason)
		})
	}
}

func TestValidate(t *testing.T) {
	cases := map[string]struct {
		reason string
		change func(o *serveOptions)
		// says are parts of the error; none for no error.
		says []string
	}{
		"Default":          {reason: "the defaults are valid", change: func(*serveOptions) {}},
		"NoMetrics":        {reason: "0 switches metrics off", change: func(o *serveOptions) { o.metricsAddress = "0" }},
		"IPv6":             {reason: "addresses of every family", change: func(o *serveOptions) { o.webhookAddress = "[::1]:9443" }},
		"AllOff":           {reason: "nothing need be on", change: func(o *serveOptions) { o.mutators, o.plugins, o.topology.Labels = nil, nil, nil }},
		"WebhookAddress":   {reason: "a port is needed", change: func(o *serveOptions) { o.webhookAddress = "9443" }, says: []string{"--webhook-bind-address", `"9443"`}},
		"MetricsAddress":   {reason: "a port is needed", change: func(o *serveOptions) { o.metricsAddress = "localhost" }, says: []string{"--metrics-bind-address"}},
		"HealthAddress":    {reason: "a port is needed", change: func(o *serveOptions) { o.healthAddress = "" }, says: []string{"--health-probe-bind-address"}},
		"CertDir":          {reason: "a certificate is needed", change: func(o *serveOptions) { o.certDir = "" }, says: []string{"--cert-dir"}},
		"Hold":             {reason: "must be positive", change: func(o *serveOptions) { o.hold = 0 }, says: []string{"--hold", "0s"}},
		"MaxHolds":         {reason: "must be positive", change: func(o *serveOptions) { o.maxHolds = -1 }, says: []string{"--max-holds", "-1"}},
		"Timeout":          {reason: "must be positive", change: func(o *serveOptions) { o.preBindTimeout = -time.Second }, says: []string{"--prebind-timeout"}},
		"ShutdownTimeout":  {reason: "must be positive", change: func(o *serveOptions) { o.shutdownTimeout = 0 }, says: []string{"--shutdown-timeout"}},
		"Domain":           {reason: "a DNS subdomain", change: func(o *serveOptions) { o.domain = "Not a\ndomain" }, says: []string{"--annotation-domain"}},
		"UnknownMutator":   {reason: "the known ones are listed", change: func(o *serveOptions) { o.mutators = []string{"*", "to\npology"} }, says: []string{"--mutators", "topology"}},
		"UnknownPlugin":    {reason: "the known ones are listed", change: func(o *serveOptions) { o.plugins = []string{"volumes"} }, says: []string{"--prebind-plugins", "volumebinding"}},
		"BadTopologyLabel": {reason: "a label key", change: func(o *serveOptions) { o.topology.Labels = []string{"a\nb"} }, says: []string{"--topology-labels"}},
		"TopologyPath":     {reason: "a label key", change: func(o *serveOptions) { o.topology.Path = []string{"a b"} }, says: []string{"--topology-path", "a b"}},
		"TopologyPodLabel": {reason: "a key that is there", change: func(o *serveOptions) { o.topology.PodLabels = []string{"rack"} }, says: []string{"--topology-pod-labels", "rack"}},
		"NodeAnnotations":  {reason: "an annotation key", change: func(o *serveOptions) { o.nodeInfo.Annotations = []string{"a/b/c"} }, says: []string{"--node-info-annotations"}},
		"Required":         {reason: "what is on can be required", change: func(o *serveOptions) { o.requiredMutators = []string{"topology"} }},
		"RequiredOff":      {reason: "what is off never runs", change: func(o *serveOptions) { o.requiredMutators = []string{"bind-info"} }, says: []string{"--required-mutators", "bind-info"}},
		"NodeStateChecks":  {reason: "the known ones are listed", change: func(o *serveOptions) { o.nodeStateChecks = []string{"raedy"} }, says: []string{"--node-state-checks", "raedy", "ready"}},
		"NoNodeState":      {reason: "nothing need be checked", change: func(o *serveOptions) { o.nodeStateChecks = nil }},
		"NodeStateWait":    {reason: "must be positive", change: func(o *serveOptions) { o.nodeStateMaxWait = 0 }, says: []string{"--node-state-max-wait"}},
		"NodeStateTooLong": {reason: "more than any attempt has", change: func(o *serveOptions) { o.nodeStateMaxWait = time.Hour }, says: []string{"--node-state-max-wait", "1h"}},
		"NodeLockTimeout":  {reason: "must be positive", change: func(o *serveOptions) { o.deviceNodeLockTimeout = 0 }, says: []string{"--device-node-lock-timeout"}},
		"ClaimsTimeout":    {reason: "must be positive", change: func(o *serveOptions) { o.resourceClaimsTimeout = 0 }, says: []string{"--resource-claims-binding-timeout"}},
		"ClaimsAllocate":   {reason: "the name of a class", change: func(o *serveOptions) { o.resourceClaimsAllocate = []string{"GPU !"} }, says: []string{"--resource-claims-allocate", "GPU !"}},
		"Several": {
			reason: "all that is wrong is told at once", change: func(o *serveOptions) { o.hold, o.maxHolds, o.mutators = 0, 0, []string{"x"} },
			says: []string{"--hold", "--max-holds", "--mutators"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			o := defaultServeOptions()
			tc.change(o)
			err := o.validate()
			if len(tc.says) == 0 {
				require.NoError(t, err, tc.reason)
				return
			}
			require.Error(t, err, tc.reason)
			for _, says := range tc.says {
				assert.Contains(t, err.Error(), says, tc.reason)
			}
			assert.NotContains(t, err.Error(), "\n", "an error is one line")
		})
	}
}

// TestFlagsAreDocumented: every flag has a usage, and the ones that design and
// manifests rely on are there.
func TestFlagsAreDocumented(t *testing.T) {
	sets := defaultServeOptions().flags()
	known := map[string]bool{}
	for _, section := range sets.Order {
		sets.FlagSets[section].VisitAll(visit(t, known))
	}
	for _, name := range []string{
		"kubeconfig", "webhook-bind-address", "cert-dir", "metrics-bind-address", "health-probe-bind-address",
		"mutators", "prebind-plugins", "annotation-domain", "hold", "max-holds", "prebind-timeout",
	} {
		assert.True(t, known[name], "--%s", name)
	}
}
