#!/usr/bin/env bash
# Looks every dependency up among the known vulnerabilities (RustSec).
#
#   deploy/local/audit.sh             says so when the database cannot be reached, and goes on
#   deploy/local/audit.sh --required  fails then
#
# The database is on GitHub, which not every machine that builds can reach. Not to have looked is
# no result, so it is never reported as one.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Whoever cannot be reached mostly says so at once; a firewall says nothing.
if ! fetched=$(timeout 60 cargo deny --log-level error fetch db 2>&1); then
    printf '%s\n' "$fetched" | sed 's/^/    /' >&2
    printf 'ADVISORIES: NOT CHECKED, the database of known vulnerabilities cannot be reached\n' >&2
    [ "${1:-}" != --required ]
    exit
fi
cargo deny --log-level error check advisories
printf 'ADVISORIES: checked, none concern what is in Cargo.lock\n'
