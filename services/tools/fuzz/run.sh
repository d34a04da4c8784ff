#!/usr/bin/env bash
# Fuzzes the targets that are named, or all of them, one after the other.
#
#   services/tools/fuzz/run.sh [commands|paths|rules|edits|mcp …]
#
# FUZZ_SECONDS says how long each is fuzzed. What breaks one is written to `found/`, where the
# tests run it again for ever; `run.sh` ends there and says how to repeat it.
#
# The instruments that tell libFuzzer which way an input took are a pass of LLVM that every
# compiler has, so this needs no nightly one; only the checks for memory errors do, which code
# without `unsafe` can do without.
set -euo pipefail
cd "$(dirname "$0")"

host="$(rustc -vV | sed -n 's/^host: //p')"
built="$(realpath -m "${CARGO_TARGET_DIR:-../../../target}")"
export SANDBOX_INIT="${SANDBOX_INIT:-$built/debug/sandbox-init}"
export SQLX_OFFLINE=true
export RUSTFLAGS="-Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares"

cargo build --locked --target-dir "$built/fuzz" --target "$host" --bins

if [ $# -eq 0 ]; then
    set -- commands paths rules edits mcp
fi
for target in "$@"; do
    learnt="$built/fuzz/corpus/$target"
    mkdir -p "$learnt" "found/$target"
    "$built/fuzz/$host/debug/$target" -max_total_time="${FUZZ_SECONDS:-600}" \
        -timeout=20 -max_len=2048 -rss_limit_mb=4096 -print_final_stats=1 \
        -dict="$target.dict" -artifact_prefix="found/$target/" \
        "$learnt" "corpus/$target" "found/$target"
done
