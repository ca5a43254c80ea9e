{{- define "curateevo.fullname" -}}
{{- if contains "curateevo" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-curateevo" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "curateevo.selector" -}}
app.kubernetes.io/name: curateevo
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "curateevo.labels" -}}
{{ include "curateevo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{/* Name, namespace and labels of an object, by the end of its name: (list . "-metrics") */}}
{{- define "curateevo.meta" -}}
{{- $root := index . 0 -}}
name: {{ include "curateevo.fullname" $root }}{{ index . 1 }}
namespace: {{ $root.Release.Namespace | quote }}
labels: {{- include "curateevo.labels" $root | nindent 2 }}
{{- end }}

{{- define "curateevo.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "curateevo.fullname" .) }}
{{- end }}

{{/* An image by its key in .Values.images: (list . "jobs") */}}
{{- define "curateevo.image" -}}
{{- $root := index . 0 }}{{ $image := index $root.Values.images (index . 1) }}
{{- with $root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end }}{{ $image.repository }}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $image.tag | default $root.Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "curateevo.pullSecrets" -}}
{{- with .Values.images.pullSecrets -}}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "curateevo.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "curateevo.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "curateevo.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}

{{/* What the schema can't say, or not in words that help. */}}
{{- define "curateevo.check" -}}
{{- range .Values.namespaces }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$" .) }}
{{- fail (printf "namespaces: %q is no name of a namespace" .) }}
{{- end }}
{{- end }}
{{- range $name, $image := .Values.images }}
{{- if and (kindIs "map" $image) (regexMatch "[:@][^/]*$" $image.repository) }}
{{- fail (printf "images.%s.repository: %q: the tag goes into images.%s.tag, a digest into images.%s.digest" $name $image.repository $name $name) }}
{{- end }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.create is false: say in serviceAccount.name which account the operator runs under" }}
{{- end }}
{{- if and (not .Values.rbac.create) .Values.uninstall.releaseFinalizers (not .Values.uninstall.serviceAccountName) }}
{{- fail "rbac.create is false, so the uninstall Job has no rights either: name an account that has them in uninstall.serviceAccountName, or set uninstall.releaseFinalizers to false and take the finalizers off by hand" }}
{{- end }}
{{- end }}
