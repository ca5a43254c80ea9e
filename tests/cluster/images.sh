#!/usr/bin/env bash
# Builds localhost/curateevo-{operator,sandbox,jobs}:test from images/*/Containerfile, for the node of DIR.
#   images.sh [DIR]      without DIR they are only built
#
# Nothing is pulled: the base is made by debootstrap. operator and sandbox are built as a user builds them. The seven
# gigabytes of packages in jobs would take buildah and containerd six minutes of packing and unpacking, so they are
# installed into a folder, by the same script in the same base, and the Containerfile finds them there. Everything is
# kept in the cache by its content; a change of sources takes seconds.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CURATEEVO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/curateevo}
store=$cache/containers
cd "$here/../.."
PATH=$PATH:/usr/sbin:/sbin
[[ $(id -u) == 0 ]] || { echo "images.sh: needs root: debootstrap, mounts" >&2; exit 1; }
"$here/packages.sh" node
mkdir -p "$store"
exec 9>"$cache/images.lock"
flock -w 1800 9 || { echo "images.sh: another build has held $cache/images.lock for half an hour" >&2; exit 1; }

say() { echo "$(date +%T) $*" >&2; }
buildah=(buildah --root "$store" --runroot /run/curateevo-images)
key() { sha256sum | cut -c1-16; }
exists() { "${buildah[@]}" inspect --type image "$1" >/dev/null 2>&1; }
rm -rf "$cache"/images.?????? "$cache"/environment-*.partial  # of a build that was killed
"${buildah[@]}" rm --all >/dev/null 2>&1 || true
work=$(mktemp -d "$cache/images.XXXXXX")
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

# crun refuses hybrid cgroups, hence runc; the host's certificates hold a proxy's too; wheels come from `make setup`.
wheels=$(UV_NO_CONFIG=1 "${VENV:-.venv}/bin/uv" cache dir 2>/dev/null || echo "$HOME/.cache/uv")
mkdir -p "$wheels"
options=(--runtime "$(command -v runc)" --network host --volume "$wheels:/var/cache/uv:O")
certificates=/etc/ssl/certs/ca-certificates.crt
[[ ! -f $certificates ]] || options+=(--volume "$certificates:$certificates:ro")

# ---- the base

packages=python3,python3-venv,ca-certificates,libgomp1,libnuma1
base=localhost/curateevo-base:$(echo "bookworm $packages" | key)
if ! exists "$base"; then
  say "making the base with debootstrap"
  timeout 900 debootstrap --variant=minbase --include="$packages" bookworm "$work/base" >"$work/log" 2>&1 ||
    { tail "$work/log" >&2; exit 1; }
  (cd "$work/base" && rm -rf var/cache/apt/archives/*.deb var/lib/apt/lists/* usr/share/{doc,man,locale})
  container=$("${buildah[@]}" from scratch)
  "${buildah[@]}" add -q "$container" "$work/base" / >/dev/null
  "${buildah[@]}" commit -q --rm "$container" "$base" >/dev/null
fi

# ---- the jobs' environment: in a folder, and an image that stands for it, with nothing but the list of its packages

inputs=(images/install.sh requirements.uv.txt images/jobs/requirements.txt)
id=$( (echo "$base"; cat "${inputs[@]}") | key)
environment=$cache/environment-$id
if [[ ! -d $environment ]]; then
  say "installing the jobs' packages"
  rm -rf "$cache"/environment-*
  mkdir -m 755 "$environment.partial"
  container=$("${buildah[@]}" from "$base")
  "${buildah[@]}" copy -q "$container" "${inputs[@]}" /build/ >/dev/null
  timeout 1800 "${buildah[@]}" run "${options[@]}" --volume "$environment.partial:/opt/venv" \
    "$container" sh /build/install.sh >&2
  "${buildah[@]}" rm "$container" >/dev/null
  mv "$environment.partial" "$environment"
fi
packed=localhost/curateevo-environment:$id
if ! exists "$packed"; then
  container=$("${buildah[@]}" from "$base")
  "${buildah[@]}" copy -q "$container" images/jobs/requirements.txt /opt/venv/requirements.txt >/dev/null
  "${buildah[@]}" commit -q --rm "$container" "$packed" >/dev/null
fi

# ---- the images

image() {  # name, base, options
  say "building $1"
  timeout 1800 "${buildah[@]}" bud --quiet --layers "${options[@]}" "${@:3}" \
    --build-arg "BASE=$2" -f "images/$1/Containerfile" -t "localhost/curateevo-$1:test" . >"$work/log" 2>&1 ||
    { tail -n 40 "$work/log" >&2; exit 1; }
}
image operator "$base"
image sandbox "$base"
image jobs "$packed" --volume "$environment:/opt/venv:ro"
"${buildah[@]}" rmi --prune >/dev/null 2>&1 || true  # what no image is made of any more

if [[ ${1:-} ]]; then
  say "handing them to the node"
  # buildah mounts its folder over itself while anything is built, and no link leads from one mount to another.
  unshare --mount --propagation private bash -euc '
    for _ in 1 2 3; do ! mountpoint -q "$1/overlay" || umount --lazy "$1/overlay"; done
    exec python3 "${@:2}"' bash "$store" "$here/load.py" "$store" "$1" \
    --layer "$packed=$environment:opt/venv" localhost/curateevo-{operator,sandbox,jobs}:test
fi
say "images are there"
