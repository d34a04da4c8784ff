# Every command we type, the same here and in CI. Targets with a `##` are listed by `make` alone.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help up down test clients check manifests audit bench load chaos fuzz prepare fmt clean build

# Queries are checked against `.sqlx`, not against whatever DATABASE_URL names; `prepare` alone asks a database.
export SQLX_OFFLINE := true
export PATH := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/windlass/bin:$(PATH)

INSTALL := deploy/local/install.sh
BIN := $(or $(CARGO_TARGET_DIR),target)/debug
DIST := $(or $(CARGO_TARGET_DIR),target)/dist
MEASURED := session tools models triggers sandbox-init restrict bench
LOADED := session tools models triggers sandbox-init load

# A machine that builds once needs neither incremental data nor debug information.
ifeq ($(CI),true)
export CARGO_INCREMENTAL := 0
export CARGO_PROFILE_DEV_DEBUG := 0
endif

help:
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' Makefile | expand -t 16

up: ## Start everything here, show one turn with a tool call, and stay up until Ctrl-C
	@$(INSTALL) cc $(if $(DATABASE_URL),,postgres) $(if $(REDIS_URL),,redis)
	@cargo build --workspace
	@$(BIN)/up

down: ## Stop what a `make up` of this clone left running
	@if [ -x $(BIN)/down ]; then $(BIN)/down; fi

test: build ## Run every test against a private Postgres and Redis
	@$(INSTALL) postgres redis mcp python node buf go
	$(BIN)/with-servers --migrated -- cargo test --workspace

clients: build ## Run the example clients in Go, Python and TypeScript against a system of their own
	@$(INSTALL) postgres redis python node buf go
	@$(BIN)/with-servers -- cargo test --quiet --workspace --test scenarios clients::

check: build manifests ## Format, lint, queries, contracts, licences, manifests: what a change must pass besides the tests
	@$(INSTALL) postgres redis buf deny
	cargo fmt --all --check
	buf lint proto
	cargo deny --log-level error check bans licenses sources
	cargo clippy --workspace --all-targets -- -D warnings
	cargo metadata --locked --format-version 1 --manifest-path services/tools/fuzz/Cargo.toml > /dev/null
	$(BIN)/with-servers -- deploy/local/prepare.sh --check
	@deploy/local/audit.sh

audit: ## Look the dependencies up among the known vulnerabilities; fails where it cannot
	@$(INSTALL) deny
	@deploy/local/audit.sh --required

# Asks the programs which variables they know, so it needs `build`.
manifests: build ## Render what is for Kubernetes, and check it against schemas, policy and flags
	@$(INSTALL) manifests
	deploy/k8s/check/run.sh $(BIN)

# Only what is measured: optimising the other programs would take longer than measuring.
bench: ## Measure what ships against Postgres, bubblewrap and rg; wants a quiet machine
	@$(INSTALL) cc postgres redis bwrap rg
	cargo build --profile dist --workspace $(addprefix --bin ,$(MEASURED))
	@$(DIST)/bench

# LOAD_SECONDS is for each profile. LOAD_DEBUG=true tries the same on the builds that tests use.
load: ## Put load on what ships with ghz, and print how it did
	@$(INSTALL) cc postgres redis ghz
ifeq ($(LOAD_DEBUG),true)
	cargo build --workspace --all-targets
	@$(BIN)/load
else
	cargo build --profile dist --workspace $(addprefix --bin ,$(LOADED))
	@$(DIST)/load
endif

# CHAOS_SECONDS is how long, 300 unless it is said; CHAOS_SEED replays a run.
chaos: build ## Kill, pause and part everything under load, and check every promise
	@$(INSTALL) postgres redis
	@$(BIN)/chaos

# FUZZ_SECONDS is for each target; FUZZ names some of them.
fuzz: build ## Look for inputs that break what reads hostile input, ten minutes for each part
	@$(INSTALL) c++
	services/tools/fuzz/run.sh $(FUZZ)

# Does not need `build`: what wants to be prepared does not compile yet.
prepare: ## Write `.sqlx` anew after a query or a migration changed
	@$(INSTALL) cc postgres redis
	@[ -x $(BIN)/with-servers ] || cargo build --package local --bin with-servers
	$(BIN)/with-servers -- deploy/local/prepare.sh

fmt: ## Format the Rust and the contracts
	@$(INSTALL) buf
	cargo fmt --all
	buf format --write proto

clean: down ## Remove what was built and the data of `make up`
	cargo clean
	@if [ -L .local/postgres ]; then rm -rf "$$(readlink .local/postgres)"; fi
	rm -rf .local

# The whole workspace, always: building one crate alone picks other features of
# its dependencies, and everything would be compiled twice.
build:
	@$(INSTALL) cc
	cargo build --workspace --all-targets
