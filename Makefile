# Everything that a fresh machine needs beside python3 (3.11 or later), pip and make is installed here, into .venv
# and, where npm is found, into tests/node.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  := .venv-bench
NODE   := tests/node/node_modules

.DEFAULT_GOAL := help
.PHONY: help run test check format bench conformance faults fuzz soak replicas node lock clean

help: ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 14

run: $(VENV)/.installed ## run both workflows of the paper through a real gateway, with real servers and a real client
	$(BIN)/python -m mcp_mirror.demo.workflows

test: $(VENV)/.installed $(NODE)/.installed ## run all tests
	$(BIN)/pytest -n auto --dist loadgroup tests

check: $(VENV)/.installed ## format, lint, types, floors, coverage of the pure core
	$(BIN)/ruff format --check src tests
	$(BIN)/ruff check src tests
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -q tests/core
	$(BIN)/coverage report --fail-under=100 --include='$(subst $() ,$(comma),$(PURE:%=src/mcp_mirror/%.py))'

format: $(VENV)/.installed ## format and mend what can be mended
	$(BIN)/ruff format src tests
	$(BIN)/ruff check --fix src tests

bench: $(VENV)/.installed $(BENCH)/.installed ## measure, side by side in one run; prints tables
	BENCH_PROXY_PYTHON=$(BENCH)/bin/python $(BIN)/python tests/bench $(BENCH_ARGS)

faults: $(VENV)/.installed ## let upstreams and networks fail in every way, measure what it costs; prints tables
	$(BIN)/python -m tests.faults $(FAULTS_ARGS)

fuzz: $(VENV)/.installed ## fuzz what reads strangers' bytes, for a minute (Linux)
	@mkdir -p .fuzz && cp -n tests/fuzz/corpus/* .fuzz/
	$(BIN)/python tests/fuzz/fuzz_wire.py -max_total_time=60 -rss_limit_mb=4096 -artifact_prefix=.fuzz/ .fuzz

soak: $(VENV)/.installed ## kill gateways a thousand times while they write to the disk (minutes)
	SOAK_CYCLES=1000 $(BIN)/pytest -q tests/shells/test_disk_crashes.py

conformance: $(VENV)/.installed $(NODE)/.installed ## run the official conformance suite, server and client, both revisions; prints tables
	$(BIN)/python tests/conformance/tables.py $(CONFORMANCE_ARGS)

replicas: $(VENV)/.installed ## two gateways behind HAProxy over one Redis server: what must hold of them; prints a table
	$(BIN)/python tests/replicas/show.py $(REPLICAS_ARGS)

node: $(NODE)/.installed ## install the Node servers and clients that the tests use

lock: $(VENV)/.installed ## write requirements.lock anew from pyproject.toml: versions and hashes alone
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --all-extras --group dev --output-file requirements.lock pyproject.toml

clean: ## remove all that make made
	rm -rf $(VENV) $(BENCH) $(NODE) .fuzz .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.installed: pyproject.toml requirements.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(BENCH)/.installed: tests/bench/requirements.lock
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --require-hashes --requirement tests/bench/requirements.lock
	touch $@

$(NODE)/.installed: tests/node/package-lock.json
	@if command -v npm >/dev/null; then cd tests/node && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.installed; \
	else echo "npm was not found: the tests that need Node will be skipped."; fi

comma := ,
# The floors that decide: tests/core covers every branch of them. The shells are tested with real processes.
PURE  := errors models paths policies callers wire frames spans tokens references directory schema resolve capture notice digest \
         query/__init__ query/texts query/windows query/lines query/grep query/shape query/select query/trees query/edits
