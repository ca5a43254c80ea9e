# shellcheck shell=bash
# What up.sh, down.sh, component.sh and images.sh share. Sourced with DIR set to the cluster's folder.
#
# DIR/run/NAME.pid holds "pid start-time" of a component, so that a pid which the system gave to another process since
# is never taken for ours; DIR/run/NAME.command holds its command line, so that it can be started again.

# shellcheck disable=SC2034  # used by those that source this
NODE_IP=10.99.0.1 SERVICES=10.96.0.0/16 PODS=10.244.0.0/24 DNS_IP=10.96.0.10
PATH=$PATH:/usr/sbin:/sbin
DIR=$(realpath -m "$DIR")
ID=curateevo-$(printf %s "$DIR" | sha256sum | cut -c1-8)
NS=${NS:-$(cat "$DIR/run/namespace" 2>/dev/null || echo "$ID")}

die() { echo "${0##*/}: $*" >&2; exit 1; }

inside() { nsenter --net="/run/netns/$NS" "$@"; }  # not `ip netns exec`, which hides the cgroups

start_time() {  # of a pid, in ticks since boot; fails when it is gone or a zombie
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  # shellcheck disable=SC2086
  set -- ${stat##*) }
  [[ $1 != Z ]] && echo "${20}"
}

pid_of() {  # of a component, when it runs
  local pid started
  { read -r pid started <"$DIR/run/$1.pid"; } 2>/dev/null || return 1
  [[ $(start_time "$pid") == "$started" ]] && echo "$pid"
}

start() {  # name, command: in the background, as the head of a process group of its own
  local name=$1 pid
  shift
  printf '%q ' "$@" >"$DIR/run/$name.command"
  setsid "$@" >>"$DIR/logs/$name.log" 2>&1 </dev/null &
  pid=$!
  echo "$pid $(start_time "$pid")" >"$DIR/run/$name.pid"
}

send() {  # signal, name: to the component's group, when it runs
  local pid
  pid=$(pid_of "$2") && kill "-$1" -- "-$pid" 2>/dev/null
}

within() {  # seconds, command: try until it succeeds
  local end=$((SECONDS + $1)) name
  shift
  until "$@" >/dev/null 2>&1; do
    if (( SECONDS >= end )); then
      echo "${0##*/}: timed out: $*" >&2
      tail -n 15 "$DIR"/logs/*.log >&2
      return 1
    fi
    for name in "$DIR"/run/*.pid; do
      name=$(basename "$name" .pid)
      pid_of "$name" >/dev/null && continue
      echo "${0##*/}: $name has ended:" >&2
      tail -n 30 "$DIR/logs/$name.log" >&2
      return 1
    done
    sleep 0.2
  done
}
