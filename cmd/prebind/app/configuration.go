// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/prebind/prebind/config/v1alpha1"
)

// maxConfiguration is more than any ConfigMap holds.
const maxConfiguration = 1 << 20

// configuration is what flags and file say together, and valid.
type configuration struct {
	*settings
	// hash is the same for the same settings.
	hash string
	// content is that of the file; nil where there is none.
	content []byte
}

// loadConfiguration reads the file, if there is a name, over the defaults, and the
// flags that were given over that. All that is wrong is one error, joined by
// errors.Join.
func loadConfiguration(r *registry, file string, given *pflag.FlagSet) (*configuration, error) {
	if file == "" {
		return newConfiguration(r, "", nil, given)
	}
	content, err := os.ReadFile(file)
	if err == nil && len(content) > maxConfiguration {
		err = fmt.Errorf("%s is larger than %d bytes", file, maxConfiguration)
	}
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return newConfiguration(r, file, content, given)
}

// newConfiguration is loadConfiguration of this content; no name is no file.
func newConfiguration(r *registry, name string, content []byte, given *pflag.FlagSet) (*configuration, error) {
	s := defaultSettings(r)
	var file *v1alpha1.File
	if name != "" {
		var err error
		if file, err = s.Read(name, content); err != nil {
			return nil, err
		}
	}
	if err := s.take(given); err != nil {
		return nil, err
	}
	var wrong []error
	for _, p := range s.Validate() {
		wrong = append(wrong, located(p, file, given))
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	encoded, err := s.Encode()
	if err != nil {
		return nil, err
	}
	return &configuration{settings: s, hash: hashOf(encoded), content: content}, nil
}

// hashOf is the beginning of a hash: enough to tell two contents apart.
func hashOf(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])[:12]
}

// located says where the problem comes from: flags win, then comes the file.
func located(p Problem, file *v1alpha1.File, given *pflag.FlagSet) error {
	flag := flagOf(p.Field)
	if !given.Changed(flag) && file != nil && file.Has(p.Field) {
		return file.At(p.Field, fmt.Errorf("%s: %w", p.Field, p.Err))
	}
	return fmt.Errorf("--%s: %w", flag, p.Err)
}
