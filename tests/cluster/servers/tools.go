//go:build tools

// Package tools pins the servers that are commands of other modules.
package tools

import (
	_ "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
	_ "github.com/versity/versitygw/cmd/versitygw"
	_ "helm.sh/helm/v3/cmd/helm"
	_ "sigs.k8s.io/cri-tools/cmd/crictl"
)
