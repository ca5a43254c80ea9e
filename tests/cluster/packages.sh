#!/usr/bin/env bash
# Sees to it that the system tools are there: packages.sh control-plane | node | tools
# (tools: what tests of the chart use). As root on Debian they are installed; anywhere else it says what is missing.
set -euo pipefail

# command (or file) and the Debian package that brings it
control_plane=(
  ip=iproute2 nsenter=util-linux setsid=util-linux flock=util-linux openssl=openssl
)
node=(
  containerd=containerd runc=runc /usr/lib/cni/bridge=containernetworking-plugins iptables=iptables ipset=ipset
  buildah=buildah debootstrap=debootstrap
)
case ${1:-} in
  control-plane) wanted=("${control_plane[@]}") ;;
  node) wanted=("${control_plane[@]}" "${node[@]}") ;;
  tools) wanted=(jq=jq promtool=prometheus) ;;
  *) echo "usage: packages.sh control-plane | node | tools" >&2; exit 2 ;;
esac

PATH=$PATH:/usr/sbin:/sbin
missing() {
  local pair
  for pair in "${wanted[@]}"; do
    command -v "${pair%%=*}" >/dev/null || echo "${pair#*=}"
  done | sort -u
}

mapfile -t packages < <(missing)
if (( ${#packages[@]} )); then
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "packages.sh: missing, by the names of their Debian packages: ${packages[*]}" >&2
    exit 1
  fi
  echo "installing ${packages[*]}" >&2
  export DEBIAN_FRONTEND=noninteractive RUNLEVEL=1  # 1: packages are not to start services
  timeout 300 apt-get -qq update >&2
  timeout 600 apt-get -qq install -y --no-install-recommends "${packages[@]}" >&2
  mapfile -t packages < <(missing)
  (( ${#packages[@]} == 0 )) || { echo "packages.sh: still missing: ${packages[*]}" >&2; exit 1; }
fi
