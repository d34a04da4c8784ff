#!/usr/bin/env bash
# Installs what the example needs, generates its client from the contract, and runs it.
set -euo pipefail
cd "$(dirname "$0")"
: "${WINDLASS_ADDRESS:?where the session service listens, as host:port}"
: "${WINDLASS_KEY:?an API key with the scopes read, run and admin}"
export PATH="${XDG_CACHE_HOME:-$HOME/.cache}/windlass/bin:$PATH"

../../../deploy/local/install.sh buf go
buf generate
exec go run .
