#!/usr/bin/env bash
# Ends, stops or starts again one component of a cluster, for tests of what the operator makes of it:
#   component.sh DIR start|kill|stop|continue NAME
# NAME: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, s3, kubelet, kube-proxy, coredns, kube-router
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DIR=${1:?usage: component.sh DIR start|kill|stop|continue NAME}
# shellcheck source=tests/cluster/lib.sh
source "$here/lib.sh"
what=$2 name=$3
[[ -f $DIR/run/$name.command ]] || die "$DIR has no $name"
case $what in
  start)
    pid_of "$name" >/dev/null && die "$name runs"
    eval "start $name $(<"$DIR/run/$name.command")"
    ;;
  kill)
    send KILL "$name" || die "$name does not run"
    for _ in $(seq 50); do
      pid_of "$name" >/dev/null || exit 0
      sleep 0.1
    done
    die "$name is still there"
    ;;
  stop) send STOP "$name" || die "$name does not run" ;;
  continue) send CONT "$name" || die "$name does not run" ;;
  *) die "unknown: $what" ;;
esac
