#!/usr/bin/env bash
# Generates the example's client from the contract, and runs it, where Go is new enough.
set -euo pipefail
cd "$(dirname "$0")"
: "${WINDLASS_ADDRESS:?where the session service listens, as host:port}"
: "${WINDLASS_KEY:?an API key with the scopes read, run and admin}"
export PATH="${XDG_CACHE_HOME:-$HOME/.cache}/windlass/bin:$PATH"

# Debian 12 has 1.19, and no grpc-go of today runs on that. Asked here, a Go that can fetch a newer
# one has done so; one that cannot read our go.mod is asked elsewhere.
needed=go1.24
found() { go env GOVERSION 2>/dev/null || (cd / && go env GOVERSION 2>/dev/null) || true; }
is_new() { printf '%s\n' "$needed" "$(found)" | sort --version-sort --check=quiet; }
if ! is_new; then
    # CI goes without only where it cannot be had at all.
    if [ "${CI:-}" != true ] || ! ../../../deploy/local/install.sh go; then
        echo "skipped: needs Go ${needed#go} or newer, and here is $(found)"
        exit 0
    fi
    is_new || { echo "Go was installed and is still $(found)" >&2; exit 1; }
fi

../../../deploy/local/install.sh buf
buf generate
exec go run .
