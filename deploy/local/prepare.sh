#!/usr/bin/env bash
# Writes `.sqlx`, the queries as the database understood them; with `--check`, proves that it is up
# to date. Runs under `with-servers`, in a database of its own.
#
# This is `cargo sqlx prepare` without the minutes that building it takes: the macros themselves
# write down what they were told, wherever they are asked to.
set -euo pipefail
cd "$(dirname "$0")/../.."

server="$DATABASE_URL"
name="prepare_$$"
on() { psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 "$@"; }
on "$server" --command "create database $name"
trap 'on "$server" --command "drop database $name with (force)"' EXIT
export DATABASE_URL="${server%/*}/$name"

# Each owner of a schema has its migrations and an sqlx.toml that names it.
for crate in chassis services/*; do
    if [ -d "$crate/migrations" ]; then
        schema="$(sed -nE 's/^create-schemas = \["(.*)"\]$/\1/p' "$crate/sqlx.toml")"
        on "$DATABASE_URL" --command "create schema $schema"
        for migration in "$crate"/migrations/*.sql; do
            on "$DATABASE_URL" --file "$migration" >/dev/null
        done
    fi
done

written="$(realpath -m "${CARGO_TARGET_DIR:-target}")/sqlx"
rm -rf "$written"
mkdir -p "$written"
# What is compiled already says nothing.
grep --recursive --files-with-matches --include '*.rs' -E 'query(_as|_scalar)?!\(' chassis services tests deploy | xargs touch
SQLX_OFFLINE=false SQLX_OFFLINE_DIR="$written" cargo check --workspace --all-targets

if [ "${1:-}" = --check ]; then
    if ! diff --recursive --brief .sqlx "$written"; then
        echo ".sqlx is not what the queries and the migrations are: run \`make prepare\`" >&2
        exit 1
    fi
else
    rm -rf .sqlx
    cp --recursive "$written" .sqlx
fi
