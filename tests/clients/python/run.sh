#!/usr/bin/env bash
# Installs what the example needs, generates its client from the contract, and runs it.
set -euo pipefail
cd "$(dirname "$0")"
: "${WINDLASS_ADDRESS:?where the session service listens, as host:port}"
: "${WINDLASS_KEY:?an API key with the scopes read, run and admin}"
proto=../../../proto

../../../deploy/local/install.sh python
if ! cmp -s requirements.txt .venv/installed; then
    python3 -m venv --clear .venv
    .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.txt
    cp requirements.txt .venv/installed
fi

rm -rf gen
mkdir gen
(cd "$proto" && find windlass -name '*.proto') |
    xargs .venv/bin/python -m grpc_tools.protoc -I "$proto" --python_out=gen --grpc_python_out=gen
PYTHONPATH=gen exec .venv/bin/python example.py
