{{- define "curateevo.fullname" -}}
{{- if contains "curateevo" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-curateevo" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "curateevo.selector" -}}
app.kubernetes.io/name: curateevo
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "curateevo.labels" -}}
{{ include "curateevo.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "curateevo.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "curateevo.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{/* An image by its key in .Values.images: (list . "jobs") */}}
{{- define "curateevo.image" -}}
{{- $root := index . 0 }}{{ $image := index $root.Values.images (index . 1) }}
{{- printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) }}
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

{{/* What the operator does in a namespace: nothing that it does not need. */}}
{{- define "curateevo.rules" -}}
- apiGroups: [curateevo.io]
  resources: [curationevolutions]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [curateevo.io]
  resources: [policyversions]
  verbs: [get, list, watch, create]
- apiGroups: [curateevo.io]
  resources: [curationevolutions/status, policyversions/status]
  verbs: [update]
- apiGroups: [curateevo.io]
  resources: [curationevolutions/finalizers, policyversions/finalizers]
  verbs: [update]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list]
- apiGroups: [""]
  resources: [services]
  verbs: [get, list, create, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, create, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [list, create, patch]
- apiGroups: [""]
  resources: [secrets, configmaps]
  verbs: [get]
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
- apiGroups: [trainer.kubeflow.org]
  resources: [trainjobs]
  verbs: [get, list, watch, create, delete]
{{- end }}

{{- define "curateevo.hook" -}}
helm.sh/hook: pre-delete
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
