{{/*
Copyright The Prebind Authors.
SPDX-License-Identifier: Apache-2.0

Names are fixed because a cluster has one Prebind: two would both decide on every Binding.
*/}}

{{/* Labels of every object. */}}
{{- define "prebind.labels" -}}
app.kubernetes.io/name: prebind
app.kubernetes.io/part-of: prebind
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | trimAll "-_." | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/*
The chart of a release contains its image with the digest in an annotation. Another repository, tag or digest takes precedence. A mirror has
the same digest.
*/}}
{{- define "prebind.image" -}}
{{- $image := printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- $released := index .Chart.Annotations "prebind.dev/image" | default "" -}}
{{- if .Values.image.digest -}}
{{- $image = printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else if hasPrefix (printf "%s@" $image) $released -}}
{{- $image = $released -}}
{{- end -}}
{{- with .Values.image.registry -}}
{{- $image = printf "%s/%s" . (regexReplaceAll "^[^/]+[.:][^/]*/" $image "") -}}
{{- end -}}
{{ $image }}
{{- end }}

{{/* Namespace selector of the webhook and of the policies. */}}
{{- define "prebind.namespaceSelector" -}}
matchExpressions:
  # Namespaces that Prebind needs in order to start: its own, and those of network, DNS and certificates. If binds there
  # needed Prebind, a stopped cluster could not start.
  - key: kubernetes.io/metadata.name
    operator: NotIn
    values: {{ prepend .Values.exemptNamespaces .Release.Namespace | uniq | toJson }}
  # For your own exceptions and for emergencies. The value of the label does not matter.
  - key: prebind.dev/exempt
    operator: DoesNotExist
{{- end }}

{{/* An object of config/webhook with the release's labels and namespace. */}}
{{- define "prebind.object" -}}
{{- $o := .object -}}
{{- $_ := set $o.metadata "labels" (merge ($o.metadata.labels | default dict) (fromYaml (include "prebind.labels" .root))) -}}
{{- if hasKey $o.metadata "namespace" -}}
{{- $_ := set $o.metadata "namespace" .root.Release.Namespace -}}
{{- end -}}
{{ toYaml $o }}
{{- end }}

{{/* The roles of a file in files/roles, and a binding for each. */}}
{{- define "prebind.roles" -}}
{{- $root := .root -}}
{{- $content := $root.Files.Get (printf "files/roles/%s.yaml" .name) | required (printf "there are no roles for %s" .name) -}}
{{- range regexSplit "(?m)^---$" $content -1 }}
{{- $role := fromYaml . }}
{{- if $role.kind }}
---
{{ include "prebind.object" (dict "root" $root "object" $role) }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: {{ $role.kind }}Binding
metadata:
  name: {{ $role.metadata.name }}
  {{- if eq $role.kind "Role" }}
  namespace: {{ $root.Release.Namespace }}
  {{- end }}
  labels: {{- include "prebind.labels" $root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {{ $role.kind }}
  name: {{ $role.metadata.name }}
subjects:
  - kind: ServiceAccount
    name: prebind
    namespace: {{ $root.Release.Namespace }}
{{- end }}
{{- end }}
{{- end }}

{{/* The names that are on, and those of the other list. A value that was removed with null is off, and has no role. An empty list is not null, which
would keep the defaults of the program. */}}
{{- define "prebind.toggles" -}}
{{- $out := list -}}
{{- range $name, $v := .toggles -}}
{{- if has $name $.extra -}}
{{- fail (printf "%s is not extra: set %s.%s.enabled" $name $.value $name) -}}
{{- end -}}
{{- if $v.enabled }}{{ $out = append $out $name }}{{ end -}}
{{- end -}}
{{ concat $out .extra | default list | toJson }}
{{- end }}

{{/* The PrebindConfiguration. */}}
{{- define "prebind.config" -}}
{{- $config := dict "apiVersion" "config.prebind.dev/v1alpha1" "kind" "PrebindConfiguration" -}}
{{- range list "apiVersion" "kind" "mutators" "prebindPlugins" -}}
{{- if hasKey $.Values.config . -}}
{{- fail (printf "config.%s cannot be set: mutators and plugins are switched by .Values.mutators and .Values.prebindPlugins, and those of your own image by .Values.extraMutators and .Values.extraPlugins" .) -}}
{{- end -}}
{{- end -}}
{{- $config = merge $config .Values.config -}}
{{- $_ := set $config "mutators" (include "prebind.toggles" (dict "value" "mutators" "toggles" .Values.mutators "extra" .Values.extraMutators) | fromJsonArray) -}}
{{- $_ := set $config "prebindPlugins" (include "prebind.toggles" (dict "value" "prebindPlugins" "toggles" .Values.prebindPlugins "extra" .Values.extraPlugins) | fromJsonArray) -}}
{{ toYaml $config }}
{{- end }}

{{/* "true" if Prebind only reports in all namespaces. */}}
{{- define "prebind.audits" -}}
{{- $modes := list (.Values.config.mode | default "Enforce") -}}
{{- range .Values.config.namespaces -}}
{{- $modes = append $modes (.mode | default "Audit") -}}
{{- end -}}
{{- if not (has "Enforce" $modes) -}}true{{- end -}}
{{- end }}

{{/* Checks of the values that the schema cannot express. */}}
{{- define "prebind.check" -}}
{{- if and (eq .Values.certificates.mode "files") (not .Values.certificates.files.caBundle) -}}
{{- fail "certificates.mode files needs certificates.files.caBundle: without it the API server trusts no replica" -}}
{{- end -}}
{{- end }}

{{- define "prebind.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "prebind.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Annotations of objects that Helm applies before it deletes the release. */}}
{{- define "prebind.preDelete" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
