// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// maxFile is the maximum size of a configuration file in bytes. A ConfigMap is smaller.
const maxFile = 1 << 20

// Loaded is a valid configuration.
type Loaded struct {
	*PrebindConfiguration
	// Hash is the same for equal configurations.
	Hash string
}

// Load returns the configuration. The file overrides the defaults, and the given flags override the
// file. Without a file, the name is empty. The error joins all problems. Each is one line.
func Load(r Registered, file string, given *pflag.FlagSet) (*Loaded, error) {
	if file == "" {
		return Parse(r, "", nil, given)
	}
	content, err := os.ReadFile(file)
	if err == nil && len(content) > maxFile {
		err = fmt.Errorf("%s: larger than %d bytes", file, maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return Parse(r, file, content, given)
}

// Parse is Load for a file with this name and content.
func Parse(r Registered, name string, content []byte, given *pflag.FlagSet) (*Loaded, error) {
	c := Default(r)
	var file *File
	if name != "" {
		var err error
		if file, err = c.Read(name, content); err != nil {
			return nil, err
		}
	}
	if err := c.apply(given); err != nil {
		return nil, err
	}
	var invalid []error
	for _, p := range c.Validate() {
		invalid = append(invalid, located(p, file, given))
	}
	if len(invalid) > 0 {
		return nil, errors.Join(invalid...)
	}
	encoded, err := c.Encode()
	if err != nil {
		return nil, err
	}
	return &Loaded{PrebindConfiguration: c, Hash: hash(encoded)}, nil
}

// hash returns a short hash of the content.
func hash(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])[:12]
}

// located adds the source to a problem: the flag if it is set, otherwise the line of the file if the
// file contains the field, otherwise the flag of the field.
func located(p Problem, file *File, given *pflag.FlagSet) error {
	flag := flagOf(p.Field)
	if !given.Changed(flag) && file != nil && file.Has(p.Field) {
		return file.At(p.Field, fmt.Errorf("%s: %w", p.Field, p.Err))
	}
	return fmt.Errorf("--%s: %w", flag, p.Err)
}
