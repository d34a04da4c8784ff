#!/usr/bin/env bash
# Renders the manifests and checks them: schemas, policy, and that every variable is a flag.
#
#   deploy/k8s/check/run.sh <directory with the services' programs>
#
# `make manifests` calls it, after deploy/local/install.sh has brought what it needs.
set -euo pipefail
k8s="$(cd "$(dirname "$0")/.." && pwd)"
cache="${XDG_CACHE_HOME:-$HOME/.cache}/windlass"
programs="$(cd "$1" && pwd)"

rendered="$(mktemp -d)"
trap 'rm -rf "$rendered"' EXIT

render() {
    if command -v kustomize >/dev/null; then
        kustomize build "$1"
    else
        kubectl kustomize "$1"
    fi
}

for what in base overlays/dev overlays/production check/alternative; do
    render "$k8s/$what" >"$rendered/${what##*/}.yaml"
done
"$cache/python/bin/python" -B "$k8s/check/check.py" "$programs" "$rendered"/*.yaml
"$cache/python/bin/python" -B "$k8s/check/mutations.py" "$rendered/base.yaml"
