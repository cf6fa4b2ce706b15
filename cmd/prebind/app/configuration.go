// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/prebind/prebind/cmd/prebind/app/configfile"
)

// configurationHeader is that of the file of --config.
var configurationHeader = configfile.Header{APIVersion: "config.prebind.dev/v1alpha1", Kind: "PrebindConfiguration"}

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
	var file *configfile.File
	if name != "" {
		document := s.document()
		var err error
		if file, err = configfile.Decode(name, content, configurationHeader, document.Interface()); err != nil {
			return nil, err
		}
		s.adopt(document)
	}
	if err := s.take(given); err != nil {
		return nil, err
	}
	var wrong []error
	for _, p := range s.problems() {
		wrong = append(wrong, located(p, file, given))
	}
	if len(wrong) > 0 {
		return nil, errors.Join(wrong...)
	}
	encoded, err := s.encode()
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
func located(p Problem, file *configfile.File, given *pflag.FlagSet) error {
	flag := flagOf(p.Field)
	if !given.Changed(flag) && file != nil && file.Has(p.Field) {
		return file.At(p.Field, fmt.Errorf("%s: %w", p.Field, p.Err))
	}
	return fmt.Errorf("--%s: %w", flag, p.Err)
}

// document returns a pointer to a struct that is the whole file, filled with the
// settings: the arguments of whatever is registered are fields of it, so that one
// strict decoder knows them all.
func (s *settings) document() reflect.Value {
	var fields []reflect.StructField
	for i, a := range s.arguments {
		fields = append(fields, reflect.StructField{
			Name: fmt.Sprintf("A%d", i), Type: reflect.TypeOf(a.Arguments), Tag: reflect.StructTag(fmt.Sprintf("yaml:%q", a.name)),
		})
	}
	document := reflect.New(reflect.StructOf([]reflect.StructField{
		{Name: "Header", Type: reflect.TypeFor[configfile.Header](), Tag: `yaml:",inline"`},
		{Name: "General", Type: reflect.TypeFor[general](), Tag: `yaml:",inline"`},
		{Name: "Arguments", Type: reflect.StructOf(fields), Tag: `yaml:"arguments"`},
	}))
	document.Elem().Field(0).Set(reflect.ValueOf(configurationHeader))
	document.Elem().Field(1).Set(reflect.ValueOf(s.general))
	for i, a := range s.arguments {
		document.Elem().Field(2).Field(i).Set(reflect.ValueOf(a.Arguments))
	}
	return document
}

// adopt takes the settings over from a document of theirs. The arguments are
// shared; where the file has null for them they stay as they are.
func (s *settings) adopt(document reflect.Value) {
	reflect.ValueOf(&s.general).Elem().Set(document.Elem().Field(1))
}

// encode returns the settings as a file.
func (s *settings) encode() ([]byte, error) {
	encoded, err := yaml.Marshal(s.document().Interface())
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return encoded, nil
}

// encodeWithComments returns the settings as a file that says what each field is
// for, in the words of its flag.
func (s *settings) encodeWithComments() ([]byte, error) {
	var root yaml.Node
	encoded, err := s.encode()
	if err == nil {
		err = yaml.Unmarshal(encoded, &root)
	}
	if err != nil {
		return nil, err
	}
	var sets cliflag.NamedFlagSets
	s.addFlags(&sets)
	usage := map[string]string{"namespaces": namespacesUsage}
	for _, fs := range sets.FlagSets {
		fs.VisitAll(func(f *pflag.Flag) { usage[f.Name] = f.Usage })
	}
	comment(root.Content[0], "", usage)
	var out strings.Builder
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(&root); err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return []byte(out.String()), nil
}

const namespacesUsage = "What is different for the pods of some namespaces: rules with names (patterns such as team-* are fine) and one or more of mode, prebindTimeout and maxPrebindTimeout. The first rule that names a namespace counts, and it alone."

// comment puts the usage of its flag above each field of the map.
func comment(at *yaml.Node, prefix string, usage map[string]string) {
	for i := 0; i+1 < len(at.Content); i += 2 {
		key, value := at.Content[i], at.Content[i+1]
		field := prefix + key.Value
		if text := usage[flagOf(field)]; text != "" {
			key.HeadComment = wrapped(text, 100)
		}
		if value.Kind == yaml.MappingNode {
			comment(value, field+".", usage)
		}
	}
}

// wrapped is the text in lines of about that width.
func wrapped(text string, width int) string {
	var out strings.Builder
	length := 0
	for word := range strings.FieldsSeq(text) {
		switch {
		case length == 0:
		case length+1+len(word) > width:
			out.WriteByte('\n')
			length = 0
		default:
			out.WriteByte(' ')
			length++
		}
		out.WriteString(word)
		length += len(word)
	}
	return out.String()
}
