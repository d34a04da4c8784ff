#!/usr/bin/env bash
# Writes `.sqlx`, the queries as the database understood them; with `--check`,
# proves that it is up to date. Runs under `with-servers`, in a database of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."

export SQLX_OFFLINE=false
export DATABASE_URL="${DATABASE_URL%/*}/prepare_$$"
sqlx database create
trap 'sqlx database drop -y --force' EXIT

# Each owner of a schema has its migrations and an sqlx.toml that names its table of them.
for crate in chassis services/*; do
    if [ -d "$crate/migrations" ]; then
        (cd "$crate" && sqlx migrate run)
    fi
done
cargo sqlx prepare --workspace "$@" -- --all-targets

# sqlx only warns about these.
if [ "${1:-}" = --check ] && ! diff <(ls .sqlx) <(ls "${CARGO_TARGET_DIR:-target}/sqlx-prepare-check"); then
    echo ".sqlx holds queries that nobody asks any more: run \`make prepare\`" >&2
    exit 1
fi
