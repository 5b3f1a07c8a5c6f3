{{/* All values: what is below `cni` wins over the root. */}}
{{- define "cni.values" -}}
{{- $root := omit .Values "cni" -}}
{{- mustMergeOverwrite (mustDeepCopy $root) (mustDeepCopy (.Values.cni | default dict)) | toYaml -}}
{{- end -}}

{{/* Stops on values that this version cannot honour. */}}
{{- define "cni.check" -}}
{{- $v := include "cni.values" . | fromYaml -}}
{{- if or (dig "ambient" "enabled" false $v) (eq (toString ($v.profile | default $v.global.profile)) "ambient") -}}
{{- fail "ambient.enabled (or the profile ambient) is set, but this version has no ambient mode: pods of ambient namespaces would stay outside the mesh. Use Istio's own chart for ambient." -}}
{{- end -}}
{{- if and $v.istioOwnedCNIConfig (not $v.chained) -}}
{{- fail "istioOwnedCNIConfig needs chained: true; a file of our own copies the node's network configuration." -}}
{{- end -}}
{{- if eq (toString $v.pluginServiceAccount) "istio-cni" -}}
{{- fail "pluginServiceAccount is istio-cni, which is the agent's own; leave it empty, or give another name, such as istio-cni-plugin." -}}
{{- end -}}
{{- if dig "repair" "enabled" false $v -}}
{{- fail "repair.enabled is set, but this version does not repair pods that started before the plugin was there. Set it to false, and keep istio-validation in the pods." -}}
{{- end -}}
{{- if ne ($v.provider | default "default") "default" -}}
{{- fail (printf "provider %s is not supported; this version renders no NetworkAttachmentDefinition. Set it to default." $v.provider) -}}
{{- end -}}
{{- if dig "global" "nativeNftables" false $v -}}
{{- fail "global.nativeNftables is set, but this version writes its rules in the iptables-compatible form only. Set it to false." -}}
{{- end -}}
{{- with $v.platform | default $v.global.platform -}}
{{- fail (printf "platform %s: this version has no platform presets. Set cniBinDir and cniConfDir to the node's directories instead." .) -}}
{{- end -}}
{{- if not (has ($v.global.resourceScope | default "all") (list "all" "cluster" "namespace")) -}}
{{- fail (printf "global.resourceScope is %s, but all, cluster or namespace is needed." $v.global.resourceScope) -}}
{{- end -}}
{{- end -}}

{{- define "cni.image" -}}
{{- $v := include "cni.values" . | fromYaml -}}
{{- if contains "/" (toString $v.image) -}}
{{- $v.image -}}
{{- else -}}
{{- $hub := $v.hub | default $v.global.hub | required "hub is needed: the registry with the image install-cni (or give the whole reference as image)" -}}
{{- $variant := $v.variant | default $v.global.variant -}}
{{- printf "%s/%s:%s%s" $hub $v.image (include "cni.tag" .) (ternary (printf "-%s" $variant) "" (not (empty $variant))) -}}
{{- end -}}
{{- end -}}

{{- define "cni.tag" -}}
{{- $v := include "cni.values" . | fromYaml -}}
{{- $v.tag | default $v.global.tag | default .Chart.AppVersion -}}
{{- end -}}

{{- define "cni.labels" -}}
{{- $v := include "cni.values" . | fromYaml -}}
app.kubernetes.io/name: istio-cni
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: istio
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
release: {{ .Release.Name | quote }}
istio.io/rev: {{ $v.revision | default "default" | quote }}
install.operator.istio.io/owning-resource: {{ $v.ownerName | default "unknown" | quote }}
operator.istio.io/component: Cni
{{- end -}}

{{/* The agent's environment, each key once: generated ones first, `env` wins. */}}
{{- define "cni.environment" -}}
{{- $v := include "cni.values" . | fromYaml -}}
{{- $environment := dict
      "CURRENT_AGENT_VERSION" (include "cni.tag" .)
      "AMBIENT_ENABLED" "false"
      "REPAIR_ENABLED" "false"
      "CHAINED_CNI_PLUGIN" (toString $v.chained)
      "EXCLUDE_NAMESPACES" (join "," $v.excludeNamespaces) -}}
{{- if $v.refuseUncaptured -}}{{- $_ := set $environment "REFUSE_UNCAPTURED" "true" -}}{{- end -}}
{{- with $v.pluginServiceAccount -}}{{- $_ := set $environment "PLUGIN_SERVICE_ACCOUNT" . -}}{{- end -}}
{{- with $v.cniConfFileName -}}{{- $_ := set $environment "CNI_CONF_NAME" . -}}{{- end -}}
{{- if $v.istioOwnedCNIConfig -}}
{{- $_ := set $environment "ISTIO_OWNED_CNI_CONFIG" "true" -}}
{{- with $v.istioOwnedCNIConfigFileName -}}{{- $_ := set $environment "ISTIO_OWNED_CNI_CONFIG_FILENAME" . -}}{{- end -}}
{{- end -}}
{{- range $key, $value := $v.env -}}{{- $_ := set $environment $key (toString $value) -}}{{- end -}}
{{- toYaml $environment -}}
{{- end -}}

{{- define "cni.renders" -}}
{{- $v := include "cni.values" .root | fromYaml -}}
{{- if has ($v.global.resourceScope | default "all") (list "all" .scope) -}}true{{- end -}}
{{- end -}}
