// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	githubHost         = "github.com"
	githubRepository   = "prebind/prebind"
	project            = "https://" + githubHost + "/" + githubRepository
	registryOfReleases = "ghcr.io/prebind"
	imageRepository    = "prebind"
	chartRepository    = "charts/prebind"

	// refName is the tag of an entry in an OCI layout.
	refName = "org.opencontainers.image.ref.name"
	// containerdName is the reference under which containerd imports the entry.
	containerdName = "io.containerd.image.name"
	revision       = "org.opencontainers.image.revision"
)

// labels returns the labels and annotations of the image.
func (s source) labels() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "prebind",
		"org.opencontainers.image.description": "Mutators and PreBind plugins for every Kubernetes scheduler",
		"org.opencontainers.image.url":         project,
		"org.opencontainers.image.source":      project,
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.version":     string(s.version),
		"org.opencontainers.image.created":     s.time.Format(time.RFC3339),
		revision:                               s.commit,
	}
}

// platformImage is the image of one platform.
type platformImage struct {
	platform platform
	image    v1.Image
}

// newImage returns an image with the binary, and the licenses in /licenses. It has the user, the command and the labels of the
// Dockerfile.
func newImage(s source, p platform, binary []byte, licenses []file) (v1.Image, error) {
	files := []file{{name: "prebind", mode: 0o755, content: binary}}
	for _, l := range licenses {
		l.name = "licenses/" + l.name
		files = append(files, l)
	}
	content, err := tarOf(s.time, files...)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: s.time}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: p.os, Architecture: p.arch, Created: created,
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User: "65532:65532", WorkingDir: "/", Labels: s.labels(),
			Entrypoint: []string{"/prebind"}, Cmd: []string{"serve"},
			Env: []string{"PATH=/"},
		},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: created, CreatedBy: "make release"}})
	if err != nil {
		return nil, err
	}
	annotated, ok := mutate.Annotations(image, s.labels()).(v1.Image)
	if !ok {
		return nil, fmt.Errorf("annotating the image of %s: not an image", p)
	}
	return annotated, nil
}

// newIndex combines the images of all platforms.
func newIndex(s source, images []platformImage) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, i := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        i.image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: i.platform.os, Architecture: i.platform.arch}},
		})
	}
	annotated, ok := mutate.Annotations(index, s.labels()).(v1.ImageIndex)
	if !ok {
		return nil, fmt.Errorf("annotating the image: not an index")
	}
	return annotated, nil
}

// artifact is an OCI artifact with one layer.
type artifact struct {
	config   []byte
	manifest []byte
	layers   map[v1.Hash]v1.Layer
}

var _ partial.CompressedImageCore = &artifact{}

func newArtifact(config, layer v1.Layer, annotations map[string]string) (v1.Image, error) {
	descriptor, err := partial.Descriptor(config)
	if err != nil {
		return nil, err
	}
	below, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	content, err := config.Compressed()
	if err != nil {
		return nil, err
	}
	a := &artifact{layers: map[v1.Hash]v1.Layer{below.Digest: layer}}
	if a.config, err = io.ReadAll(content); err != nil {
		return nil, err
	}
	if a.manifest, err = json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: *descriptor, Layers: []v1.Descriptor{*below}, Annotations: annotations,
	}); err != nil {
		return nil, err
	}
	return partial.CompressedToImage(a)
}

// RawConfigFile returns the content of the config blob.
func (a *artifact) RawConfigFile() ([]byte, error) { return a.config, nil }

// MediaType returns the type of the manifest.
func (a *artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// RawManifest returns the manifest.
func (a *artifact) RawManifest() ([]byte, error) { return a.manifest, nil }

// LayerByDigest returns the config blob or the layer.
func (a *artifact) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if layer, ok := a.layers[digest]; ok {
		return layer, nil
	}
	return nil, fmt.Errorf("unknown blob %s", digest)
}

// newLayer returns a blob without compression of its own.
func newLayer(content []byte, mediaType types.MediaType) v1.Layer {
	return static.NewLayer(content, mediaType)
}

// tagged is an image or an index with its tag.
type tagged struct {
	tag   string
	image mutate.Appendable
}

// layoutArchive returns an OCI layout of the images as a tar archive, which skopeo and podman accept as oci-archive.
func layoutArchive(at time.Time, reference func(tag string) string, images ...tagged) ([]byte, error) {
	dir, err := os.MkdirTemp("", "prebind-release-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // Only a directory of this process.
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return nil, err
	}
	for _, i := range images {
		annotations := layout.WithAnnotations(map[string]string{refName: i.tag, containerdName: reference(i.tag)})
		switch image := i.image.(type) {
		case v1.ImageIndex:
			err = path.AppendIndex(image, annotations)
		case v1.Image:
			err = path.AppendImage(image, annotations)
		default:
			err = fmt.Errorf("unexpected type %T", image)
		}
		if err != nil {
			return nil, fmt.Errorf("writing the layout of %s: %w", reference(i.tag), err)
		}
	}
	files, err := filesOf(dir)
	if err != nil {
		return nil, err
	}
	return tarOf(at, files...)
}
