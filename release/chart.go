// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of charts and of Artifact Hub.
const (
	chartConfig    types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartLayer     types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
	artifactConfig types.MediaType = "application/vnd.cncf.artifacthub.config.v1+yaml"
	artifactLayer  types.MediaType = "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"
	// artifactTag is the tag under which Artifact Hub reads its metadata.
	artifactTag = "artifacthub.io"
	// imageAnnotation is the image of the release with its tag and digest. The templates of the chart read it.
	imageAnnotation = "prebind.dev/image"
)

// repack returns the chart that Helm packaged, with the time of the source and with annotations that only a release has. Helm writes
// the time of the packaging. The map is the content of Chart.yaml.
func repack(s source, packaged []byte, image string) ([]byte, map[string]any, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(packaged))
	if err != nil {
		return nil, nil, fmt.Errorf("reading the chart: %w", err)
	}
	files, err := untar(unzipped)
	if err != nil {
		return nil, nil, fmt.Errorf("reading the chart: %w", err)
	}
	var metadata map[string]any
	for i := range files {
		if files[i].name != "prebind/Chart.yaml" {
			continue
		}
		if err := yaml.Unmarshal(files[i].content, &metadata); err != nil {
			return nil, nil, fmt.Errorf("reading Chart.yaml: %w", err)
		}
		if err := annotate(metadata, s, image); err != nil {
			return nil, nil, fmt.Errorf("annotating Chart.yaml: %w", err)
		}
		if files[i].content, err = yaml.Marshal(metadata); err != nil {
			return nil, nil, fmt.Errorf("writing Chart.yaml: %w", err)
		}
	}
	if metadata == nil {
		return nil, nil, errors.New("reading the chart: no prebind/Chart.yaml")
	}
	content, err := tarOf(s.time, files...)
	if err != nil {
		return nil, nil, err
	}
	content, err = zip(content)
	return content, metadata, err
}

// annotate adds the image and Artifact Hub's annotations of this release.
func annotate(metadata map[string]any, s source, image string) error {
	if metadata["version"] != s.version.number() || metadata["appVersion"] != string(s.version) {
		return fmt.Errorf("version %v and appVersion %v, want %s and %s", metadata["version"], metadata["appVersion"], s.version.number(), s.version)
	}
	annotations, ok := metadata["annotations"].(map[string]any)
	if !ok {
		return errors.New("it has no annotations")
	}
	changes, err := yaml.Marshal(s.changes.changes)
	if err != nil {
		return err
	}
	images, err := yaml.Marshal([]map[string]string{{"name": "prebind", "image": image}})
	if err != nil {
		return err
	}
	annotations[imageAnnotation] = image
	annotations["artifacthub.io/changes"] = string(changes)
	annotations["artifacthub.io/images"] = string(images)
	annotations["artifacthub.io/prerelease"] = strconv.FormatBool(s.version.prerelease())
	return nil
}

// chartArtifacts returns the chart and the metadata of its repository, for a registry.
func chartArtifacts(s source, archive []byte, metadata map[string]any) ([]tagged, error) {
	config, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}
	chart, err := newArtifact(newLayer(config, chartConfig), newLayer(archive, chartLayer), map[string]string{
		"org.opencontainers.image.title":       "prebind",
		"org.opencontainers.image.description": fmt.Sprint(metadata["description"]),
		"org.opencontainers.image.version":     s.version.number(),
		"org.opencontainers.image.created":     s.time.Format(time.RFC3339),
		"org.opencontainers.image.url":         project,
		"org.opencontainers.image.source":      project,
		revision:                               s.commit,
	})
	if err != nil {
		return nil, err
	}
	repository, err := os.ReadFile(filepath.Join(s.root, "charts", "artifacthub-repo.yml"))
	if err != nil {
		return nil, err
	}
	hub, err := newHubMetadata(repository)
	return []tagged{{s.version.number(), chart}, {artifactTag, hub}}, err
}

// newHubMetadata returns artifacthub-repo.yml as an artifact.
func newHubMetadata(content []byte) (v1.Image, error) {
	layer := newLayer(content, artifactLayer)
	// Tools show the title as the name of the file.
	return newArtifact(newLayer(nil, artifactConfig), layer, map[string]string{"org.opencontainers.image.title": "artifacthub-repo.yml"})
}
