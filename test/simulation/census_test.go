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
	c.within("engine", reflect.ValueOf(p.engine))
	for _, plugin := range p.plugins {
		c.within(plugin.Name(), reflect.ValueOf(plugin))
	}
	return c.found
}

type counter struct {
	seen  map[uintptr]bool
	found []remembered
	// path are the names of the fields on the way to the value.
	path []string
}

// within visits a value below the name.
func (c *counter) within(name string, v reflect.Value) {
	c.path = append(c.path, name)
	c.visit(v)
	c.path = c.path[:len(c.path)-1]
}

// visit follows everything but functions, objects of the API, and types of the simulation and of its API server.
func (c *counter) visit(v reflect.Value) {
	if !v.IsValid() || strings.HasPrefix(v.Type().PkgPath(), "github.com/prebind/prebind/test/") || strings.HasPrefix(v.Type().PkgPath(), "k8s.io/api/") {
		return
	}
	switch v.Kind() { //nolint:exhaustive // The others refer to nothing.
	case reflect.Pointer:
		if !v.IsNil() && !c.seen[v.Pointer()] {
			c.seen[v.Pointer()] = true
			c.visit(v.Elem())
		}
	case reflect.Interface:
		c.visit(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			c.within(v.Type().Field(i).Name, v.Field(i))
		}
	case reflect.Slice, reflect.Array:
		if k := v.Type().Elem().Kind(); k == reflect.Pointer || k == reflect.Interface || k == reflect.Struct || k == reflect.Map {
			for i := range v.Len() {
				c.visit(v.Index(i))
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); {
			for _, uid := range podUID.FindAllString(fmt.Sprint(i.Key()), -1) {
				c.found = append(c.found, remembered{uid: uid, path: strings.Join(c.path, ".")})
			}
			c.visit(i.Value())
		}
	}
}
