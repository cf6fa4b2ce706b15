// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package configuration

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// Load returns a valid configuration with its hash. The file overrides the defaults, and the given flags override the
// file. Without a file, the name is empty. The error joins all duplicate fields of the file; or all unknown
// fields and values of another type; or all invalid values. Each is one line with the file and the path of the field, or with the flag.
func Load(r *Registry, file string, given *pflag.FlagSet) (*PrebindConfiguration, error) {
	if file == "" {
		return Parse(r, "", nil, given)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	return Parse(r, file, content, given)
}

// Parse is Load for a file with this name and content.
func Parse(r *Registry, name string, content []byte, given *pflag.FlagSet) (*PrebindConfiguration, error) {
	c := Default(r)
	if name != "" {
		if err := c.decode(content); err != nil {
			return nil, prefixed(name+": ", err)
		}
	}
	if err := c.apply(given); err != nil {
		return nil, err
	}
	var invalid []error
	for _, e := range c.Validate() {
		if flag := flagOf(e.Field); name == "" || given.Changed(flag) {
			invalid = append(invalid, fmt.Errorf("--%s: %s", flag, e.ErrorBody()))
		} else {
			invalid = append(invalid, fmt.Errorf("%s: %w", name, e))
		}
	}
	if len(invalid) > 0 {
		return nil, errors.Join(invalid...)
	}
	encoded, err := c.Encode()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(encoded)
	c.Hash = hex.EncodeToString(sum[:6])
	return c, nil
}

// prefixed adds the prefix to each line.
func prefixed(prefix string, err error) error {
	return errors.New(prefix + strings.ReplaceAll(err.Error(), "\n", "\n"+prefix))
}
