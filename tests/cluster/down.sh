#!/usr/bin/env bash
# Ends the cluster that up.sh DIR started, also one that crashed: nothing of it is left but keys, data and logs in DIR.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
DIR=${1:?usage: down.sh DIR}
# shellcheck source=tests/cluster/lib.sh
source "$here/lib.sh"

names() { find "$DIR/run" -name '*.pid' -printf '%f\n' 2>/dev/null | sed 's/\.pid$//'; }

cgroup_pids() {  # of containers: up.sh gives the kubelet a cgroup of its own, in each hierarchy of cgroup v1
  find /sys/fs/cgroup -maxdepth 9 -path "*/$ID/*" -name cgroup.procs -exec cat {} + 2>/dev/null | sort -u
}

namespace_pids() {  # what else is in the namespace: containerd's shims, what a test left; never those who called this
  local pid=$$ callers=" "
  while (( pid > 1 )); do
    callers+="$pid "
    pid=$(awk '/^PPid:/ {print $2}' "/proc/$pid/status")
  done
  [[ -e /run/netns/$NS ]] || return 0
  for pid in $(ip netns pids "$NS" 2>/dev/null); do
    [[ $callers == *" $pid "* ]] || echo "$pid"
  done
}

# The kubelet first: it would start containers again. All at once: nothing in here has to be cleared away or written
# down, for mounts, pods' networks and iptables go with the namespaces that they are in.
send KILL kubelet || true
for name in $(names); do send KILL "$name" || true; done
for _ in $(seq 100); do
  mapfile -t left < <(cgroup_pids; namespace_pids)
  (( ${#left[@]} )) || break
  kill -KILL "${left[@]}" 2>/dev/null || true
  sleep 0.1
done
(( ! ${#left[@]} )) || die "still there: ${left[*]}"
rm -rf "$DIR"/run/*.pid "$DIR/containerd.sock" "$DIR/containerd.sock.ttrpc"
[[ ! -e /run/netns/$NS ]] || ip netns del "$NS"
find /sys/fs/cgroup -maxdepth 2 -name "$ID" -type d 2>/dev/null | while read -r group; do
  find "$group" -depth -type d -exec rmdir {} \; 2>/dev/null || true
done
