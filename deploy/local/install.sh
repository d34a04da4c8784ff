#!/usr/bin/env bash
# Installs what is missing and says nothing when nothing is.
#
#   deploy/local/install.sh                  what `make up` and `make test` need
#   deploy/local/install.sh cc buf sqlx …    some of it: cc postgres redis buf deny sqlx
#
# Servers and compilers are Debian packages. The tools of `make check` are pinned
# and go to a cache outside the clone, so that they survive `make clean`.
set -euo pipefail

BUF=1.74.0
CARGO_DENY=0.20.2
SQLX_CLI=0.9.0 # moves together with sqlx in Cargo.toml

cache="${XDG_CACHE_HOME:-$HOME/.cache}/windlass"
bin="$cache/bin"

main() {
    if [ $# -eq 0 ]; then
        set -- cc postgres redis
    fi
    for what in "$@"; do
        case "$what" in
            cc) has cc || package gcc libc6-dev ;;
            postgres) compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || has postgres || package postgresql ;;
            redis) has redis-server || package redis-server ;;
            buf) buf ;;
            deny) crate cargo-deny "$CARGO_DENY" ;;
            sqlx) crate sqlx-cli "$SQLX_CLI" --no-default-features --features postgres,rustls,sqlx-toml ;;
            *) fail "do not know how to install $what" ;;
        esac
    done
}

# Installs Debian packages, as root or through a sudo that asks no questions.
package() {
    local root=()
    if [ "$(id -u)" -ne 0 ]; then
        root=(sudo -n)
    fi
    if ! has apt-get; then
        fail "please install what Debian calls $*; this script knows only apt-get"
    fi
    if ! "${root[@]}" true 2>/dev/null; then
        fail "please run this first, I may not:  sudo apt-get install -y $*"
    fi
    say "installing $* with apt-get"
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Installs one version of a crate's programs. Unoptimised: they run for seconds,
# and compiling them for speed would take minutes.
crate() {
    local name="$1" version="$2" root="$cache/$1-$2"
    shift 2
    if [ ! -e "$root/.crates.toml" ]; then
        main cc
        say "installing $name $version into $cache (once, takes some minutes)"
        env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
            cargo install --quiet --locked --debug --root "$root" --version "=$version" "$name" "$@"
    fi
    link "$root"/bin/*
}

buf() {
    local root="$cache/buf-$BUF"
    if [ ! -x "$root/node_modules/.bin/buf" ]; then
        has npm || package npm
        say "installing buf $BUF into $cache"
        npm install --silent --no-fund --no-audit --no-save --prefix "$root" "@bufbuild/buf@$BUF"
    fi
    link "$root/node_modules/.bin/buf"
}

# Makes programs callable as `$cache/bin/<name>`, whichever version is the pinned one.
link() {
    mkdir -p "$bin"
    ln -sf "$@" "$bin/"
}

has() { command -v "$1" >/dev/null; }
say() { echo "install: $*" >&2; }
fail() { say "$*"; exit 1; }

main "$@"
