// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
)

// remembered is a key of a map in the memory of a replica.
type remembered struct{ uid, path string }

// podUID matches UIDs of pods.
var podUID = regexp.MustCompile(`web-\d-\d+`)

// census returns the UIDs of pods in the keys of all maps to which the engine and the plugins of an ended replica refer.
func census(p *process) []remembered {
	c := &counter{seen: map[uintptr]bool{}}
	c.visit(reflect.ValueOf(p.engine), "engine")
	for _, plugin := range p.plugins {
		c.visit(reflect.ValueOf(plugin), plugin.Name())
	}
	return c.found
}

type counter struct {
	seen  map[uintptr]bool
	found []remembered
}

// visit follows everything but functions, and types of the simulation and of its API server.
func (c *counter) visit(v reflect.Value, path string) {
	if !v.IsValid() || strings.HasPrefix(v.Type().PkgPath(), "github.com/prebind/prebind/test/") {
		return
	}
	switch v.Kind() { //nolint:exhaustive // The others refer to nothing.
	case reflect.Pointer:
		if !v.IsNil() && !c.seen[v.Pointer()] {
			c.seen[v.Pointer()] = true
			c.visit(v.Elem(), path)
		}
	case reflect.Interface:
		c.visit(v.Elem(), path)
	case reflect.Struct:
		for i := range v.NumField() {
			c.visit(v.Field(i), path+"."+v.Type().Field(i).Name)
		}
	case reflect.Slice, reflect.Array:
		if k := v.Type().Elem().Kind(); k == reflect.Pointer || k == reflect.Interface || k == reflect.Struct || k == reflect.Map {
			for i := range v.Len() {
				c.visit(v.Index(i), path)
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			for _, uid := range podUID.FindAllString(fmt.Sprint(i.Key()), -1) {
				c.found = append(c.found, remembered{uid: uid, path: path})
			}
			c.visit(i.Value(), path)
		}
	}
}
