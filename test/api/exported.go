// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "go/types"

// exported adds the exported names of a package.
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

// text returns the type. Names of other packages contain their path.
func (e exported) text(t types.Type) string { return types.TypeString(t, types.RelativeTo(e.pkg)) }
