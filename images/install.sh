#!/bin/sh
# Runs while an image is built: makes /opt/venv of what /build/requirements.txt lists, everything pinned by hash.
# The system's certificates are trusted, so that those of a proxy can be mounted over them; where /var/cache/uv is
# mounted, wheels are taken from there; where the base brings this very environment, there is nothing to do.
set -eu
if cmp -s /build/requirements.txt /opt/venv/requirements.txt; then exit 0; fi
certificates=/etc/ssl/certs/ca-certificates.crt
if [ -f $certificates ]; then export PIP_CERT=$certificates SSL_CERT_FILE=$certificates; fi
if [ -d /var/cache/uv ]; then export UV_CACHE_DIR=/var/cache/uv UV_LINK_MODE=copy; else export UV_NO_CACHE=1; fi
python3 -m venv /tmp/uv
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
/tmp/uv/bin/pip install --quiet --require-hashes -r /build/requirements.uv.txt
/tmp/uv/bin/uv venv --quiet --python "$(command -v python3)" /opt/venv
/tmp/uv/bin/uv pip sync --quiet --python /opt/venv/bin/python --require-hashes --no-build --compile-bytecode \
  /build/requirements.txt
rm -rf /tmp/uv
# Found by isolated interpreters (python -I) too, unlike PYTHONPATH.
for packages in /opt/venv/lib/python3*/site-packages; do echo /opt/curateevo >"$packages/curateevo.pth"; done
cp /build/requirements.txt /opt/venv/requirements.txt
