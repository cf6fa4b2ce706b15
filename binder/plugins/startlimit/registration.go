// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package startlimit

import (
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/prebind/prebind/binder/framework"
	"github.com/prebind/prebind/config/v1alpha1"
)

// Name of the plugin.
const Name = "start-limit"

const (
	maxLimit    = 1000
	maxRefusals = 20
)

// Registration returns the plugin's entry in the registry. The plugin needs no permissions of
// its own, because Prebind itself watches pods and records events.
func Registration() framework.Registration {
	p := newPlugin()
	return framework.Registration{
		Name:        Name,
		Description: "limits the pods that start on a node at the same time, and rejects nodes that refuse pods",
		Arguments:   func() framework.Arguments { return Defaults() },
		Selections: func(_ string, a framework.Arguments) []framework.Selection {
			all := []framework.Selection{p.startingPods()}
			if args, err := v1alpha1.ArgumentsAs[*Arguments](a); err == nil && args.BreakerRefusals > 0 {
				all = append(all, p.refusedPods())
			}
			return all
		},
		Metrics: []prometheus.Collector{
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "prebind_start_limit_reserved", Help: "Slots that binds of this replica hold on all nodes, until it observes their pods.",
			}, func() float64 { return float64(p.slots.count()) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "prebind_start_limit_replicas", Help: "Live replicas that share the free slots of each node. 0 until the plugin is on and this replica has read their leases.",
			}, func() float64 { return float64(p.h.Replicas()) }),
			p.refused.openings,
		},
		New: framework.Build(p.configure),
	}
}

// Arguments of the plugin.
type Arguments struct {
	// Limit is the number of pods that may start on a node at the same time. Several replicas together
	// can exceed it; see rules.share.
	Limit int `json:"limit"`
	// Wait is how long a bind waits for a slot before it is rejected.
	Wait metav1.Duration `json:"wait"`
	// StartTimeout is the time after the bind from which a pod no longer counts.
	StartTimeout metav1.Duration `json:"startTimeout"`
	// BreakerRefusals within BreakerWindow open the circuit breaker of a node and a namespace for
	// BreakerOpen. 0 means no circuit breaker.
	BreakerRefusals int             `json:"breakerRefusals"`
	BreakerWindow   metav1.Duration `json:"breakerWindow"`
	BreakerOpen     metav1.Duration `json:"breakerOpen"`
}

// Defaults returns the default arguments. The caller owns them.
func Defaults() *Arguments {
	return &Arguments{
		Limit: 10, Wait: metav1.Duration{Duration: 2 * time.Minute}, StartTimeout: metav1.Duration{Duration: 5 * time.Minute},
		BreakerRefusals: 3, BreakerWindow: metav1.Duration{Duration: time.Minute}, BreakerOpen: metav1.Duration{Duration: 5 * time.Minute},
	}
}

// AddFlags implements framework.Arguments.
func (a *Arguments) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&a.Limit, "start-limit-limit", a.Limit,
		"Maximum number of pods that start on a node at the same time: bound, but not running yet. R replicas together can exceed it by R-1 pods or more.")
	fs.DurationVar(&a.Wait.Duration, "start-limit-wait", a.Wait.Duration,
		"Maximum time that a bind waits for a slot on its node before Prebind rejects it.")
	fs.DurationVar(&a.StartTimeout.Duration, "start-limit-start-timeout", a.StartTimeout.Duration,
		"Time after the bind from which a pod that still does not run no longer counts.")
	fs.IntVar(&a.BreakerRefusals, "start-limit-breaker-refusals", a.BreakerRefusals,
		"Number of pods of a namespace that a kubelet refuses within --start-limit-breaker-window before Prebind rejects the node for the namespace. 0 disables it.")
	fs.DurationVar(&a.BreakerWindow.Duration, "start-limit-breaker-window", a.BreakerWindow.Duration,
		"Time within which the refusals count. Also the time for which one pod at a time tries a node that was rejected.")
	fs.DurationVar(&a.BreakerOpen.Duration, "start-limit-breaker-open", a.BreakerOpen.Duration,
		"Time for which Prebind rejects a node after the last refusal.")
}

// LongestWait returns the wait that budgets.maxPrebindTimeout limits, and the wait's field.
func (a *Arguments) LongestWait() (name string, wait metav1.Duration) { return "wait", a.Wait }

// Validate implements framework.Arguments.
func (a *Arguments) Validate(path *field.Path) field.ErrorList {
	return slices.Concat(
		v1alpha1.Between(path.Child("limit"), a.Limit, 1, maxLimit),
		v1alpha1.Positive(path.Child("wait"), a.Wait),
		v1alpha1.Positive(path.Child("startTimeout"), a.StartTimeout),
		v1alpha1.Between(path.Child("breakerRefusals"), a.BreakerRefusals, 0, maxRefusals),
		v1alpha1.Positive(path.Child("breakerWindow"), a.BreakerWindow),
		v1alpha1.Positive(path.Child("breakerOpen"), a.BreakerOpen),
	)
}
