#!/usr/bin/env bash
# Builds the S3 server of the tests, versitygw, once per go.sum, and prints where it is.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${CURATEEVO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/curateevo}
key=$(cat "$here/go.mod" "$here/go.sum" | sha256sum | cut -c1-16)
target=$cache/versitygw-$key
if [[ ! -x $target ]]; then
  command -v go >/dev/null || { echo "build.sh: go is not installed" >&2; exit 1; }
  mkdir -p "$cache"
  (cd "$here" && GOFLAGS="-trimpath -mod=readonly" go build -o "$target.partial" github.com/versity/versitygw/cmd/versitygw) >&2
  mv "$target.partial" "$target"
fi
echo "$target"
