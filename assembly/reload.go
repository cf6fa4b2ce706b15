// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package assembly

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/binder/runner"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/telemetry"
)

const (
	// readInterval is the time between two reads of the file. The kubelet needs up to a
	// minute to update a ConfigMap, so watching the file would not be faster.
	readInterval = 2 * time.Second
	// retryInterval is the time after which the Reloader retries a rejected file, and looks for omitted
	// plugins. The cause, such as a missing permission, may be resolved.
	retryInterval = 30 * time.Second
)

// maxNote is the maximum length of an event's note, in bytes.
const maxNote = 1024

// Reasons of the events about Prebind itself. They are stable.
const (
	reasonApplied = "ConfigurationApplied"
	reasonRefused = "ConfigurationRefused"
)

// ReloadOptions are the options of a Reloader. All fields except File are required.
type ReloadOptions struct {
	// File is the path of the configuration file. Empty means no file.
	File string
	// Given are the flags of the command line. They override the file.
	Given    *pflag.FlagSet
	Assembly *Assembly
	Engine   *binder.Engine
	// Regarding is the object of the events.
	Regarding *corev1.ObjectReference
	Events    events.EventRecorder
	Recorder  *telemetry.Recorder
	Clock     clock.Clock
}

// Reloader applies the configuration file when it changes. It applies all of the file or rejects it. It also
// applies the configuration in force again when a plugin that was omitted becomes available, without a file too.
type Reloader struct {
	o ReloadOptions
	// apply applies the content of the file, or returns an error.
	apply func(ctx context.Context, content []byte) error
	// current is the configuration in force.
	current atomic.Pointer[v1alpha1.Loaded]
	// content is the content in force. rejected is the last content that was rejected. problem is
	// the reason, or empty if no content is rejected.
	content  []byte
	rejected struct {
		content []byte
		at      time.Time
		problem string
	}
	// resumed is the last look for omitted plugins.
	resumed struct {
		at      time.Time
		problem string
	}
}

// NewReloader returns a Reloader for a configuration that is already in force.
func NewReloader(o ReloadOptions, current *v1alpha1.Loaded) *Reloader {
	r := &Reloader{o: o, content: current.Content}
	r.apply, r.resumed.at = r.configure, o.Clock.Now()
	r.current.Store(current)
	o.Recorder.ConfigApplied(current.Hash, o.Clock.Now())
	return r
}

// Current returns the configuration in force. It is safe for concurrent use.
func (r *Reloader) Current() *v1alpha1.Loaded { return r.current.Load() }

// NeedLeaderElection implements manager.LeaderElectionRunnable. Each replica reads its own
// file.
func (*Reloader) NeedLeaderElection() bool { return false }

// Start implements manager.Runnable.
func (r *Reloader) Start(ctx context.Context) error {
	for {
		timer := r.o.Clock.NewTimer(readInterval)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		if r.o.File != "" {
			r.read(ctx)
		}
		r.resume(ctx)
	}
}

// read applies the file if it has changed.
func (r *Reloader) read(ctx context.Context) {
	content, err := os.ReadFile(r.o.File)
	switch {
	case err != nil:
	case bytes.Equal(content, r.content):
		if r.rejected.problem != "" {
			r.rejected.problem = ""
			r.o.Recorder.ConfigCurrent()
			klog.InfoS("The configuration file has the content in force again", "file", r.o.File)
		}
		return
	case r.rejected.problem != "" && bytes.Equal(content, r.rejected.content) && r.o.Clock.Since(r.rejected.at) < retryInterval:
		return
	default:
		r.rejected.content, r.rejected.at = content, r.o.Clock.Now()
		err = r.apply(ctx, content)
	}
	if err == nil {
		r.content, r.rejected.problem = content, ""
		r.o.Recorder.ConfigCurrent()
		return
	}
	problem := strings.ReplaceAll(err.Error(), "\n", "; ")
	if ctx.Err() != nil || problem == r.rejected.problem {
		return // The process is ending, or the problem is already reported.
	}
	r.rejected.problem = problem
	r.o.Recorder.ConfigRefused()
	klog.ErrorS(nil, "Rejected the new configuration; the previous one stays in force", "file", r.o.File, "reason", problem)
	r.event(corev1.EventTypeWarning, reasonRefused, content, problem, "rejected the new configuration; the previous one stays in force: "+problem)
}

// configure implements apply.
func (r *Reloader) configure(ctx context.Context, content []byte) error {
	c, err := v1alpha1.Parse(r.o.Assembly.o.Registry.Components(), r.o.File, content, r.o.Given)
	if err != nil {
		return err
	}
	if err := r.put(ctx, c); err != nil {
		return err
	}
	r.o.Recorder.ConfigApplied(c.Hash, r.o.Clock.Now())
	summary := c.Summary()
	klog.InfoS("Applied the new configuration", "file", r.o.File, "hash", c.Hash, "configuration", summary)
	r.event(corev1.EventTypeNormal, reasonApplied, content, "", "applied the new configuration: "+summary)
	return nil
}

// put puts the configuration in force.
func (r *Reloader) put(ctx context.Context, c *v1alpha1.Loaded) error {
	settings, err := r.o.Assembly.Settings(ctx, c.PrebindConfiguration)
	if err != nil {
		return err
	}
	if err := r.o.Engine.Configure(settings); err != nil {
		return err
	}
	r.o.Assembly.Applied()
	r.current.Store(c)
	return nil
}

// resume applies the configuration in force again if an omitted plugin is available now.
func (r *Reloader) resume(ctx context.Context) {
	if r.o.Clock.Since(r.resumed.at) < retryInterval {
		return
	}
	r.resumed.at = r.o.Clock.Now()
	c := r.current.Load()
	plugin, err := r.o.Assembly.Available(ctx, c.PrebindConfiguration)
	if err == nil && plugin != "" {
		if err = r.put(ctx, c); err == nil {
			klog.InfoS("Switched on a PreBind plugin that was skipped", "plugin", plugin)
		}
	}
	problem := ""
	if err != nil {
		problem = err.Error()
	}
	if problem != "" && problem != r.resumed.problem && ctx.Err() == nil {
		klog.ErrorS(err, "Could not switch on a PreBind plugin that was skipped", "plugin", plugin)
	}
	r.resumed.problem = problem
}

// event posts an event. The related object identifies the content and the problem, because
// client-go merges events about the same objects and keeps only the text of the first.
func (r *Reloader) event(kind, reason string, content []byte, problem, text string) {
	related := &corev1.ObjectReference{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind, Name: v1alpha1.Hash(append(slices.Clip(content), problem...)),
	}
	r.o.Events.Eventf(r.o.Regarding, related, kind, reason, "Reloading", "%s", runner.Clip(text, maxNote))
}
