# Every command we type, the same here and in CI. Targets with a `##` are listed by `make` alone.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help up down test check audit bench fuzz prepare fmt clean build

# Queries are checked against `.sqlx`, not against whatever DATABASE_URL names; `prepare` alone asks a database.
export SQLX_OFFLINE := true
export PATH := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/windlass/bin:$(PATH)

INSTALL := deploy/local/install.sh
BIN := $(or $(CARGO_TARGET_DIR),target)/debug
RELEASE := $(or $(CARGO_TARGET_DIR),target)/release
MEASURED := session tools models triggers sandbox-init restrict bench

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
	@$(INSTALL) postgres redis mcp
	$(BIN)/with-servers -- cargo test --workspace

check: build ## Format, lint, queries, contracts, licences: what a change must pass besides the tests
	@$(INSTALL) postgres redis buf deny sqlx
	cargo fmt --all --check
	buf lint proto
	cargo deny --log-level error check bans licenses sources
	cargo clippy --workspace --all-targets -- -D warnings
	$(BIN)/with-servers -- deploy/local/prepare.sh --check
	@deploy/local/audit.sh

audit: ## Look the dependencies up among the known vulnerabilities; fails where it cannot
	@$(INSTALL) deny
	@deploy/local/audit.sh --required

# Only what is measured: optimising the other programs would take longer than measuring.
bench: ## Measure release builds against Postgres, bubblewrap and rg; wants a quiet machine
	@$(INSTALL) cc postgres redis bwrap rg
	cargo build --release --workspace $(addprefix --bin ,$(MEASURED))
	@$(RELEASE)/bench

# FUZZ_SECONDS is for each target; FUZZ names some of them.
fuzz: build ## Look for inputs that break what reads hostile input, ten minutes for each part
	@$(INSTALL) c++
	services/tools/fuzz/run.sh $(FUZZ)

# Does not need `build`: what wants to be prepared does not compile yet.
prepare: ## Write `.sqlx` anew after a query or a migration changed
	@$(INSTALL) cc postgres redis sqlx
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
