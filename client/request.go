// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits of the plugin device for one bind.
const (
	maxDevices = 256
	maxID      = 253
	maxText    = 4 << 10
)

// Request is what a scheduler requests for one bind. The zero Request requests nothing: the pod's own annotations apply. A
// field that is set overrides the pod's annotation.
type Request struct {
	// Devices by resource. Prebind grants all of them to the pod, or rejects the Binding.
	Devices map[string][]Device
	// NodeLock requests the lock of the node: no other bind with the lock is in progress on it.
	NodeLock bool
	// Require lists PreBind plugins that must be enabled.
	Require []string
	// Timeout is the budget of the bind over all its calls. 0 means the pod's annotation or Prebind's default.
	Timeout time.Duration
}

// Device is a device of the node.
type Device struct {
	// ID has 1 to 253 printable ASCII characters without spaces and commas.
	ID string
	// Share is the requested part of the device: more than 0, at most 1, and a multiple of 0.000001. The zero Quantity means
	// the whole device.
	Share resource.Quantity
}

// Binding returns the Binding of the pod to the node, with the pod's UID and the annotations of the request. It does not
// change the pod. Post the same Binding again after a Waiting answer.
func (r Request) Binding(pod *corev1.Pod, node string) (*corev1.Binding, error) {
	annotations, err := r.Annotations()
	if err != nil {
		return nil, err
	}
	return &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: node},
	}, nil
}

// Annotations returns the annotations of the request. The caller owns the map; it is nil for the zero Request. The error names
// the first field that Prebind would reject with code 422.
func (r Request) Annotations() (map[string]string, error) {
	annotations := map[string]string{}
	if err := r.addDevices(annotations); err != nil {
		return nil, err
	}
	if r.NodeLock {
		annotations[NodeLockAnnotation] = "true"
	}
	for _, name := range r.Require {
		if problems := validation.IsDNS1123Subdomain(name); len(problems) > 0 {
			return nil, fmt.Errorf("require: %q: invalid name of a plugin: %s", name, problems[0])
		}
	}
	if len(r.Require) > 0 {
		annotations[RequireAnnotation] = strings.Join(r.Require, ",")
	}
	if r.Timeout < 0 {
		return nil, fmt.Errorf("timeout: must be positive, got %s", r.Timeout)
	}
	if r.Timeout > 0 {
		annotations[TimeoutAnnotation] = r.Timeout.String()
	}
	if len(annotations) == 0 {
		return nil, nil
	}
	return annotations, nil
}

func (r Request) addDevices(annotations map[string]string) error {
	count, text := 0, 0
	for _, name := range slices.Sorted(maps.Keys(r.Devices)) {
		devices, key := r.Devices[name], DeviceAnnotationPrefix+name
		if problems := validation.IsQualifiedName(key); len(problems) > 0 {
			return fmt.Errorf("devices: %q: invalid name of a resource: %s", name, problems[0])
		}
		if key == NodeLockAnnotation {
			return fmt.Errorf("devices: %q: not a resource; set NodeLock", name)
		}
		value, err := list(devices)
		if err != nil {
			return fmt.Errorf("devices: %s: %w", name, err)
		}
		annotations[key] = value
		count, text = count+len(devices), text+len(name)+len(value)
	}
	if count > maxDevices {
		return fmt.Errorf("devices: a bind can have at most %d, got %d", maxDevices, count)
	}
	if text > maxText {
		return fmt.Errorf("devices: resources and devices of a bind can have at most %d bytes, got %d", maxText, text)
	}
	return nil
}

// list returns the value of a device annotation.
func list(devices []Device) (string, error) {
	if len(devices) == 0 {
		return "", errors.New("a resource needs at least one device")
	}
	seen := map[string]bool{}
	entries := make([]string, 0, len(devices))
	for _, d := range devices {
		if !validID(d.ID) {
			return "", fmt.Errorf("%q: invalid device ID: must be 1 to %d printable ASCII characters without spaces and commas", d.ID, maxID)
		}
		if seen[d.ID] {
			return "", fmt.Errorf("device %q is listed twice", d.ID)
		}
		seen[d.ID] = true
		share, err := formatShare(d.Share)
		if err != nil {
			return "", fmt.Errorf("device %q: %w", d.ID, err)
		}
		// The text after the last colon of an entry is always a share.
		if share != "1" || strings.Contains(d.ID, ":") {
			d.ID += ":" + share
		}
		entries = append(entries, d.ID)
	}
	return strings.Join(entries, ","), nil
}

func validID(id string) bool {
	if id == "" || len(id) > maxID || id == "true" || id == "false" {
		return false
	}
	return !strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r > '~' || r == ',' })
}

// formatShare returns the share as a decimal number, such as 0.5.
func formatShare(share resource.Quantity) (string, error) {
	if share.IsZero() {
		return "1", nil
	}
	const whole = 1_000_000
	millionths := share.ScaledValue(resource.Micro) // Rounded up.
	if share.Cmp(*resource.NewScaledQuantity(millionths, resource.Micro)) != 0 || millionths <= 0 || millionths > whole {
		return "", fmt.Errorf("share %s: must be more than 0, at most 1, and a multiple of 0.000001", share.String())
	}
	return strconv.FormatFloat(float64(millionths)/whole, 'f', -1, 64), nil
}
