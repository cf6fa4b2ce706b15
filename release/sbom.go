// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"

	cdx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// imageSBOM returns the SBOM of the image of one platform. The image contains the binary and nothing else, so its components are the
// program and the components of the binary.
func imageSBOM(s source, b build, image v1.Image) ([]byte, error) {
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	var bom cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(b.sbom), cdx.BOMFileFormatJSON).Decode(&bom); err != nil {
		return nil, err
	}
	if bom.Metadata == nil || bom.Metadata.Component == nil || bom.Components == nil {
		return nil, errors.New("the SBOM of the binary has no components")
	}
	program := *bom.Metadata.Component
	ref := fmt.Sprintf("pkg:oci/prebind@%s?arch=%s&os=%s&repository_url=%s&tag=%s", url.QueryEscape(digest.String()),
		b.platform.arch, b.platform.os, url.QueryEscape(registryOfReleases+"/"+imageRepository), s.version)
	bom.Metadata.Component = &cdx.Component{
		BOMRef: ref, PackageURL: ref, Type: cdx.ComponentTypeContainer,
		Name: registryOfReleases + "/" + imageRepository, Version: string(s.version),
		Hashes: &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: digest.Hex}},
	}
	components := append([]cdx.Component{program}, *bom.Components...)
	bom.Components = &components
	dependencies := []cdx.Dependency{{Ref: ref, Dependencies: &[]string{program.BOMRef}}}
	if bom.Dependencies != nil {
		dependencies = append(dependencies, *bom.Dependencies...)
	}
	bom.Dependencies = &dependencies
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(&bom); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
