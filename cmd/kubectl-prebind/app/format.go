// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"

	"github.com/prebind/prebind/cmd/internal/cli"
	"github.com/prebind/prebind/internal/text"
)

// format is the value of -o.
type format string

const (
	formatText format = "text"
	formatJSON format = "json"
	formatYAML format = "yaml"
)

// addFlag adds -o.
func (f *format) addFlag(fs *pflag.FlagSet) {
	*f = formatText
	fs.StringVarP((*string)(f), "output", "o", string(*f), "Output format: text, json or yaml.")
}

// validate returns an error for an unknown format.
func (f format) validate() error {
	switch f {
	case formatText, formatJSON, formatYAML:
		return nil
	default:
		return cli.Usage(fmt.Errorf("--output: must be %s, %s or %s, got %q", formatText, formatJSON, formatYAML, f))
	}
}

// write writes the value in the format. It calls asText for the text format, and replaces control characters in it, because users and other
// webhooks write parts of the text.
func (f format) write(out io.Writer, value any, asText func(*bytes.Buffer)) error {
	var encoded []byte
	var err error
	switch f {
	case formatText:
		var written bytes.Buffer
		asText(&written)
		encoded = []byte(text.Lines(written.String()))
	case formatYAML:
		encoded, err = yaml.Marshal(value)
	default:
		encoded, err = json.MarshalIndent(value, "", "  ")
		encoded = append(encoded, '\n')
	}
	if err == nil {
		_, err = out.Write(encoded)
	}
	return err
}

// writeTable writes a table. Tabs separate the columns of the header and of the rows.
func writeTable(out *bytes.Buffer, header string, rows func(io.Writer)) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, header)
	rows(w)
	_ = w.Flush() // A buffer returns no errors.
}

// writeFile writes the file of a flag. An empty name means no file.
func writeFile(flag, name string, write func(io.Writer) error) error {
	if name == "" {
		return nil
	}
	to, err := os.Create(name)
	if err == nil {
		err = errors.Join(write(to), to.Close())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}
