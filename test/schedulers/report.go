// Copyright The Prebind Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"
)

// judgment is the heading of the part of a report that people write. It stays when a report is written again.
const judgment = "## Judgment\n"

var report = template.Must(template.New("report").Funcs(template.FuncMap{"join": strings.Join}).Parse(`# {{.Profile.Title}} {{.Version.name}}

- **Source:** {{.Profile.Repository}}{{with .Version.commit}}, commit {{.}}{{end}}, unmodified
- **Date:** {{.Date}}
- **Control plane:** Kubernetes {{.Kubernetes}}, {{.Nodes}} nodes, two replicas of Prebind
{{- range .Profile.Processes}}
- **Program**, as {{.Account}}: ` + "`{{join .CommandLine \" \"}}`" + `
{{- end}}

` + "```console" + `
$ kubectl prebind conformance {{join .Flags " "}}
{{.Table}}` + "```" + `

`))

// fileName is the name of the report without its extension.
func fileName(o options, v version) string { return o.scheduler + "-" + v.name }

// writeReport writes the report. It keeps the judgment of an existing one.
func writeReport(b *bench, v version, kubernetes, table string) error {
	path := filepath.Join(reports, fileName(b.options, v)+".md")
	before, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var out strings.Builder
	err = report.Execute(&out, map[string]any{
		"Profile": b.profile, "Version": map[string]string{"name": v.name, "commit": v.commit}, "Date": time.Now().UTC().Format(time.DateOnly),
		"Kubernetes": kubernetes, "Nodes": nodes, "Flags": b.flags(), "Table": table,
	})
	if err != nil {
		return err
	}
	_, kept, found := strings.Cut(string(before), judgment)
	if !found {
		kept = "\nWhose fault is each failure: the scheduler, the test or Prebind?\n"
	}
	return os.WriteFile(path, []byte(out.String()+judgment+kept), 0o644)
}
