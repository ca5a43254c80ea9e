#!/usr/bin/env bash
# Builds the servers of the test cluster, once per content of servers/, and prints the folder that they are in.
# About ten minutes from an empty Go cache on two cores.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CURATEEVO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/curateevo}
cd "$here/servers"
key=$(cat "$here/build.sh" go.mod go.sum tools.go cmd/*/main.go | sha256sum | cut -c1-16)
target=$cache/cluster-$key
if [[ ! -d $target ]]; then
  command -v go >/dev/null || { echo "build.sh: go is not installed" >&2; exit 1; }
  mkdir -p "$cache"
  exec 9>"$cache/cluster.lock"
  flock -w 1800 9 || { echo "build.sh: another build has held $cache/cluster.lock for half an hour" >&2; exit 1; }
fi
if [[ ! -d $target ]]; then  # still: the other build may have been this one
  partial=$target.partial
  rm -rf "$partial"
  mkdir "$partial"
  export GOFLAGS="-trimpath -mod=readonly -buildvcs=false"
  build() { echo "$(date +%T) building $1" >&2; timeout 2400 go build "${@:2}" >&2; }
  build "etcd and CoreDNS" -ldflags "-s -w" -o "$partial/" ./cmd/etcd ./cmd/coredns
  CGO_ENABLED=0 build "the pause container" -ldflags "-s -w" -o "$partial/" ./cmd/pause

  # Components compare versions: a build without one calls itself v0.0.0.
  version=$(go list -m -f '{{.Version}}' k8s.io/kubernetes)
  IFS=. read -r major minor _ <<<"${version#v}"
  base=k8s.io/component-base/version
  flags="-s -w -X $base.gitVersion=$version -X $base.gitMajor=$major -X $base.gitMinor=$minor"
  build "Kubernetes $version (the longest)" -ldflags "$flags" -o "$partial/" ./cmd/kube
  for name in kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl; do
    ln -s kube "$partial/$name"
  done
  build "helm, versitygw, kube-router and crictl" -ldflags "-s -w" -o "$partial/" helm.sh/helm/v3/cmd/helm \
    github.com/versity/versitygw/cmd/versitygw github.com/cloudnativelabs/kube-router/v2/cmd/kube-router \
    sigs.k8s.io/cri-tools/cmd/crictl
  mv "$partial" "$target"
  echo "$(date +%T) built in $target" >&2
fi
echo "$target"
