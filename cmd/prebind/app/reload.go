// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/prebind/prebind/binder"
	"github.com/prebind/prebind/config/v1alpha1"
	"github.com/prebind/prebind/telemetry"
)

// readConfigurationEvery is how often the file is looked at. The kubelet brings
// the change of a ConfigMap within about a minute, so a watch of the file would
// gain nothing, and could miss it.
const readConfigurationEvery = 2 * time.Second

// tryConfigurationAgain is when a file that could not be put in force is tried once
// more, as it is: a permission may have come meanwhile.
const tryConfigurationAgain = 30 * time.Second

// Reasons of the events about Prebind itself. They are stable.
const (
	reasonConfigured = "ConfigurationApplied"
	reasonRefused    = "ConfigurationRefused"
)

// configurer is the engine, as the reload needs it.
type configurer interface{ Configure(binder.Settings) error }

// reloader puts the configuration file in force whenever it changes, as a whole or
// not at all.
type reloader struct {
	o        *serveOptions
	assembly *assembly
	engine   configurer
	recorder *telemetry.Recorder
	events   events.EventRecorder
	clock    clock.Clock
	// put puts the content of the file in force, or returns why not.
	put func(ctx context.Context, content []byte) error
	// inForce is the configuration.
	inForce atomic.Pointer[configuration]
	// seen is the content in force. tried is another one that could not be put in
	// force, when that was, and why.
	seen  []byte
	tried struct {
		content []byte
		at      time.Time
		problem string
	}
}

// newReloader returns the reloader of a configuration that is in force already.
func newReloader(o *serveOptions, a *assembly, engine configurer, recorder *telemetry.Recorder, c *configuration) *reloader {
	r := &reloader{
		o: o, assembly: a, engine: engine, recorder: recorder,
		events: a.mgr.GetEventRecorder("prebind"), clock: clock.RealClock{},
	}
	r.put = r.putInForce
	r.seen = c.content
	r.inForce.Store(c)
	r.recorder.ConfigApplied(c.hash, r.clock.Now())
	return r
}

// Start implements manager.Runnable.
func (r *reloader) Start(ctx context.Context) error {
	if r.o.configFile == "" {
		return nil
	}
	for {
		timer := r.clock.NewTimer(readConfigurationEvery)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
		r.look(ctx)
	}
}

// look puts the file in force if it is another than before. One that could not be
// put in force is tried again now and then, for the reason may be over.
func (r *reloader) look(ctx context.Context) {
	content, err := os.ReadFile(r.o.configFile)
	switch {
	case err != nil:
	case bytes.Equal(content, r.seen):
		if r.tried.problem != "" {
			r.tried.problem = ""
			r.recorder.ConfigCurrent()
			klog.InfoS("The configuration file is again the one that is in force", "file", r.o.configFile)
		}
		return
	case r.tried.problem != "" && bytes.Equal(content, r.tried.content) && r.clock.Since(r.tried.at) < tryConfigurationAgain:
		return
	default:
		r.tried.content, r.tried.at = content, r.clock.Now()
		err = r.put(ctx, content)
	}
	if err == nil {
		r.seen, r.tried.problem = content, ""
		r.recorder.ConfigCurrent()
		return
	}
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	if ctx.Err() != nil || text == r.tried.problem {
		// The process ends, or it was told already.
		return
	}
	r.tried.problem = text
	r.recorder.ConfigRefused()
	klog.ErrorS(nil, "Refused a new configuration, the old one stays", "file", r.o.configFile, "reason", text)
	r.events.Eventf(r.about(), contentReference(content, text), corev1.EventTypeWarning, reasonRefused, "Reloading", "%s", note("refused a new configuration, the old one stays: "+text))
}

// putInForce is put.
func (r *reloader) putInForce(ctx context.Context, content []byte) error {
	c, err := newConfiguration(r.o.registry, r.o.configFile, content, r.o.given)
	if err != nil {
		return err
	}
	settings, err := r.assembly.settings(ctx, c.settings)
	if err != nil {
		return err
	}
	if err := r.engine.Configure(settings); err != nil {
		return err
	}
	r.inForce.Store(c)
	r.recorder.ConfigApplied(c.hash, r.clock.Now())
	on, err := c.on()
	if err != nil {
		return err
	}
	klog.InfoS("Put a new configuration in force", "file", r.o.configFile, "hash", c.hash, "mode", c.Mode, "mutators", on.mutators, "plugins", on.plugins)
	r.events.Eventf(r.about(), contentReference(content, ""), corev1.EventTypeNormal, reasonConfigured, "Reloading", "%s",
		note(fmt.Sprintf("put a new configuration in force: mode %s, mutators %s, PreBind plugins %s", c.Mode, orNone(on.mutators), orNone(on.plugins))))
	return nil
}

// about is what events about Prebind itself are about.
func (r *reloader) about() *corev1.ObjectReference {
	if r.o.podName == "" {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: r.o.namespace}
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: r.o.namespace, Name: r.o.podName}
}

// contentReference names a content of the file, and what is wrong with it: events
// that are about the same are counted as one, with the words of the first.
func contentReference(content []byte, problem string) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.Kind, Name: hashOf(append(slices.Clip(content), problem...)),
	}
}

// note is a text that an event can hold.
func note(text string) string {
	const most = 1024
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-len("…")], "") + "…"
	}
	return text
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: every replica has a
// file of its own.
func (*reloader) NeedLeaderElection() bool { return false }
