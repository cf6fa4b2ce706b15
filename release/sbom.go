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

// imageSBOM returns the SBOM of the image of one platform. The image contains the binary and licenses, so its components are the
// program and the components of the binary.
func imageSBOM(s source, b build, image v1.Image) ([]byte, error) {
	digest, err := image.Digest()
	if err != nil {
		return nil, err
	}
	bom, err := decodeSBOM(b.server.sbom)
	if err != nil {
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
	return encodeSBOM(bom)
}

// portable returns the SBOM without the checksums of the tool that wrote it. They differ between machines, because `go tool` builds
// the tool with the paths of the machine.
func portable(sbom []byte) ([]byte, error) {
	bom, err := decodeSBOM(sbom)
	if err != nil {
		return nil, err
	}
	if bom.Metadata == nil || bom.Metadata.Tools == nil || bom.Metadata.Tools.Tools == nil {
		return nil, errors.New("the SBOM does not name its tool")
	}
	for i := range *bom.Metadata.Tools.Tools {
		(*bom.Metadata.Tools.Tools)[i].Hashes = nil
	}
	return encodeSBOM(bom)
}

func decodeSBOM(content []byte) (*cdx.BOM, error) {
	bom := &cdx.BOM{}
	return bom, cdx.NewBOMDecoder(bytes.NewReader(content), cdx.BOMFileFormatJSON).Decode(bom)
}

func encodeSBOM(bom *cdx.BOM) ([]byte, error) {
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
