// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/types"
	"slices"
	"strings"
)

// exported adds the exported names of a package. The values do not contain names of parameters.
type exported struct {
	items
	short string
	pkg   *types.Package
}

func (e exported) add(name, value string) { e.items.add("go", e.short+"."+name, value) }

func (e exported) addAll() {
	for _, name := range e.pkg.Scope().Names() {
		object := e.pkg.Scope().Lookup(name)
		if !object.Exported() {
			continue
		}
		switch object := object.(type) {
		case *types.Const:
			e.add(name, "const "+e.text(object.Type())+" = "+object.Val().ExactString())
		case *types.Var:
			e.add(name, "var "+e.text(object.Type()))
		case *types.Func:
			e.add(name, e.text(object.Type()))
		case *types.TypeName:
			e.addType(object)
		}
	}
}

// addType adds a type with its exported fields and methods. An interface is one item, because another method breaks its
// implementations.
func (e exported) addType(object *types.TypeName) {
	name := object.Name()
	if alias, ok := object.Type().(*types.Alias); ok {
		e.add(name, "= "+e.text(alias.Rhs()))
		return
	}
	under, ok := object.Type().Underlying().(*types.Struct)
	if !ok {
		e.add(name, e.text(object.Type().Underlying()))
	} else {
		e.add(name, "struct")
		for field := range under.Fields() {
			if field.Exported() {
				e.add(name+"."+field.Name(), e.text(field.Type()))
			}
		}
	}
	named, ok := object.Type().(*types.Named)
	if !ok || types.IsInterface(named) {
		return
	}
	for method := range named.Methods() {
		if method.Exported() {
			e.add(name+"."+method.Name(), e.text(method.Type()))
		}
	}
}

// text returns a type like types.TypeString.
func (e exported) text(t types.Type) string {
	switch t := t.(type) {
	case *types.Signature:
		return "func" + e.signature(t)
	case *types.Interface:
		var parts []string
		for embedded := range t.EmbeddedTypes() {
			parts = append(parts, e.text(embedded))
		}
		for method := range t.ExplicitMethods() {
			if signature, ok := method.Type().(*types.Signature); ok {
				parts = append(parts, method.Name()+e.signature(signature))
			}
		}
		slices.Sort(parts)
		return "interface{" + strings.Join(parts, "; ") + "}"
	default:
		return types.TypeString(t, types.RelativeTo(e.pkg))
	}
}

func (e exported) signature(s *types.Signature) string {
	var parameters []string
	for p := range s.TypeParams().TypeParams() {
		parameters = append(parameters, p.Obj().Name()+" "+e.text(p.Constraint()))
	}
	text := ""
	if len(parameters) > 0 {
		text = "[" + strings.Join(parameters, ", ") + "]"
	}
	in := e.tuple(s.Params())
	if last := len(in) - 1; s.Variadic() {
		in[last] = "..." + strings.TrimPrefix(in[last], "[]")
	}
	text += "(" + strings.Join(in, ", ") + ")"
	switch out := e.tuple(s.Results()); len(out) {
	case 0:
		return text
	case 1:
		return text + " " + out[0]
	default:
		return text + " (" + strings.Join(out, ", ") + ")"
	}
}

func (e exported) tuple(t *types.Tuple) []string {
	var all []string
	for v := range t.Variables() {
		all = append(all, e.text(v.Type()))
	}
	return all
}
