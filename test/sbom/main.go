// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

// Command sbom prints what is in a binary that Go built, as a CycloneDX document:
// the modules that the linker put into it, by the record that it left there. It
// refuses a binary that needs anything of the machine that it runs on.
package main

import (
	"cmp"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("there are %d arguments: give a binary and its version", len(args))
	}
	if err := checkStatic(args[0]); err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("%s: reading what Go recorded: %w", args[0], err)
	}
	bom, err := describe(info, args[1])
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	encoder := cyclonedx.NewBOMEncoder(out, cyclonedx.BOMFileFormatJSON)
	encoder.SetPretty(true)
	return encoder.EncodeVersion(bom, cyclonedx.SpecVersion1_6)
}

// checkStatic fails unless the binary runs without a loader and libraries, as an
// image with nothing else in it asks for.
func checkStatic(path string) error {
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("reading it as an ELF binary: %w", err)
	}
	defer func() { _ = file.Close() }() // It was only read.
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			return errors.New("it is linked dynamically: build it with CGO_ENABLED=0")
		}
	}
	return nil
}

// describe makes the document, which is the same for the same binary.
func describe(info *debug.BuildInfo, version string) (*cyclonedx.BOM, error) {
	if info.Main.Path == "" {
		return nil, errors.New("it was built outside of a module, and does not say from what")
	}
	program := component(cyclonedx.ComponentTypeApplication, info.Main.Path, version)
	program.Properties = properties(info.Settings)
	library := component(cyclonedx.ComponentTypeLibrary, "std", strings.TrimPrefix(info.GoVersion, "go"))
	components, refs := []cyclonedx.Component{library}, []string{library.BOMRef}
	for _, m := range info.Deps {
		c := component(cyclonedx.ComponentTypeLibrary, m.Path, m.Version)
		if m.Replace != nil {
			c = component(cyclonedx.ComponentTypeLibrary, m.Replace.Path, m.Replace.Version)
			m = m.Replace
		}
		if m.Sum != "" {
			// Go's checksum is that of a list of files, and not of any one file.
			c.Properties = &[]cyclonedx.Property{{Name: "go:sum", Value: m.Sum}}
		}
		components, refs = append(components, c), append(refs, c.BOMRef)
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	slices.Sort(refs)

	bom := cyclonedx.NewBOM()
	bom.Metadata = &cyclonedx.Metadata{Component: &program}
	bom.Components = &components
	bom.Dependencies = &[]cyclonedx.Dependency{{Ref: program.BOMRef, Dependencies: &refs}}
	return bom, nil
}

func component(of cyclonedx.ComponentType, path, version string) cyclonedx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{Type: of, BOMRef: url, Name: path, Version: version, PackageURL: url}
}

// properties are how the binary was built; a path of the machine is not among them.
func properties(settings []debug.BuildSetting) *[]cyclonedx.Property {
	var kept []cyclonedx.Property
	for _, s := range settings {
		switch s.Key {
		case "CGO_ENABLED", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "-trimpath", "vcs.revision", "vcs.modified":
			kept = append(kept, cyclonedx.Property{Name: "go:" + s.Key, Value: s.Value})
		}
	}
	return &kept
}
