# Everything beside python3 (3.11 or later), pip and make is installed into .venv and, if npm is there, into tests/node.
PYTHON ?= python3
IS_NEW_ENOUGH := 'import sys; sys.exit(sys.version_info < (3, 11) and "This needs Python 3.11 or later: make PYTHON=python3.11 ...")'
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  := .venv-bench
# Agent frameworks for the examples: those that can be installed beside our SDK; BeeAI's MCP client cannot.
AGENTS := .venv-examples
BEEAI  := .venv-beeai
AUDIT  := .venv-audit
CHATS  := .venv-chats
TRUE   := .venv-calibrate
EVAL   := .venv-eval
# pandas, polars and pyarrow: 430 MB that no other test needs.
FRAMES := .venv-dataframes
DAILY  := .venv-everyday
# The oldest versions of the dependencies that pyproject.toml permits.
LOWEST := .venv-lowest
# LOCA-bench needs a Python below 3.13; its PDF server one from 3.12 on. LOCA_SOURCE=/path/to/checkout: use that one.
LOCA   := .venv-loca
LOCA_PYTHON ?= $(PYTHON)
LOCA_URL    := https://github.com/hkust-nlp/LOCA-bench.git
LOCA_COMMIT := 8cd474d5efdf36c8c95555165ba0965e0496e48f
LOCA_SOURCE ?= $(LOCA)/LOCA-bench
# The documentation site; it does not contain the package, which is read as source files.
DOCS   := .venv-docs
HELM   := .venv-helm
NODE   := tests/node/node_modules
MCPB   := packaging/mcpb/node_modules
# Programs of other vendors, 1 GB, outside the checkout.
CLIENTS ?= $(HOME)/.cache/mcp-mirror/clients

# A test waits for other processes for half of its time.
TWO_PER_CORE = $(shell $(PYTHON) -c "import os; print(2 * (os.cpu_count() or 1))")

# Without compiled files, each process that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-slow check lint words format audit bench calibrate chats clients conformance dashboard dataframes docs docs-serve eval everyday examples faults fuzz helm hostile loca loca-logs soak signals test-as-macos test-as-windows test-lowest reference replicas node mcpb image lock clean

help: ## this list
	@awk -F ':[^#]*## *' '/^[a-z-]+:.*##/ {printf "%-17s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/.installed ## run both workflows of the paper through a real gateway, with real servers and a real client
	$(BIN)/python evals/paper/paper_workflows.py

test: $(VENV)/.installed $(NODE)/.installed ## run the tests without those marked `slow` or `alone`; TEST_WORKERS=3: in three processes instead of two for each core
	$(BIN)/pytest -n $(or $(TEST_WORKERS),$(TWO_PER_CORE)) --dist loadgroup -m "not (slow or alone)" tests

test-slow: $(VENV)/.installed $(NODE)/.installed ## run the tests marked `slow`, more combinations and more load, then by themselves those marked `alone`, which measure time
	$(BIN)/pytest -n $(or $(TEST_WORKERS),auto) --dist loadgroup -m "slow and not alone" tests
	$(BIN)/pytest -m alone tests

test-lowest: $(LOWEST)/.installed ## run the tests of the core and of whole calls with the oldest dependencies that pyproject.toml permits
	$(LOWEST)/bin/pytest -n $(or $(TEST_WORKERS),$(TWO_PER_CORE)) --dist loadgroup -m "not (slow or alone)" tests/unit tests/end_to_end tests/commands tests/integration tests/demo

# The deselected test expects that nothing comes between the end of a session and that of its stream. With the thread that
# writes on Windows, the cancellation of the question does.
test-as-windows: $(VENV)/.installed ## run the tests of whole calls on Linux with a fake of Windows
	PYTHONPATH=tests/as_windows $(BIN)/pytest -n $(or $(TEST_WORKERS),auto) --dist loadgroup -m "not (slow or alone or posix)" -W ignore::pytest.PytestAssertRewriteWarning --ignore tests/end_to_end/test_install.py --deselect tests/end_to_end/test_direct_path.py::test_the_end_of_a_session_ends_its_direct_calls tests/end_to_end

test-as-macos: $(VENV)/.installed ## run the tests of the core and of whole calls on Linux without the library functions that macOS lacks
	PYTHONPATH=tests/as_macos $(BIN)/pytest -n $(or $(TEST_WORKERS),auto) --dist loadgroup -m "not (slow or alone)" --ignore tests/end_to_end/test_install.py tests/unit tests/end_to_end tests/integration

check: lint words ## format, lint, types, layers, coverage of the pure core, words of the documentation
	$(BIN)/coverage erase
	HYPOTHESIS_PROFILE=same $(BIN)/coverage run -m pytest -q -n $(or $(TEST_WORKERS),auto) --dist loadgroup -m "not alone" tests/unit
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --fail-under=100 --include='$(subst $() ,$(comma),$(PURE:%=src/mcp_mirror/%.py))'

lint: $(VENV)/.installed ## format, lint, types (also with the library of macOS) and layers: the quick part of check
	$(BIN)/ruff format --check src tests calibration evals examples packaging docker
	$(BIN)/ruff check src tests calibration evals examples packaging docker
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin src
	$(BIN)/lint-imports

words: ## find words that the style guide excludes in the documentation, the package and the evaluations
	$(PYTHON) tests/docs/words.py

docs: $(VENV)/.installed $(DOCS)/.installed ## build the documentation site into site/; fails on broken links
	$(BIN)/python tests/docs/generate.py
	$(DOCS)/bin/zensical build --clean --strict

docs-serve: $(DOCS)/.installed ## serve the documentation site on 127.0.0.1:8000
	$(DOCS)/bin/zensical serve

format: $(VENV)/.installed ## format, and fix what ruff can fix
	$(BIN)/ruff format src tests calibration evals examples packaging docker
	$(BIN)/ruff check --fix src tests calibration evals examples packaging docker

audit: $(AUDIT)/.installed ## check every lock file against known advisories; needs the network
	$(AUDIT)/bin/python -m tests.audit

bench: $(VENV)/.installed $(BENCH)/.installed ## measure, side by side in one run; prints tables. BENCH_ARGS=--write-docs: update docs/operations/performance.md
	PYTHONPATH=tests/helpers:tests/replicas BENCH_PROXY_PYTHON=$(BENCH)/bin/python $(BIN)/python tests/bench $(BENCH_ARGS)

eval: $(VENV)/.installed $(EVAL)/.installed ## run a small local model on cases; prints a table
	$(BIN)/python evals/model/run.py --python $(EVAL)/bin/python $(EVAL_ARGS)

everyday: $(VENV)/.installed $(NODE)/.installed $(DAILY)/.installed ## compare real servers with and without the gateway; prints a table. EVERYDAY_WRITE_DOCS=1: update docs/evaluation/everyday.md
	@test -x /usr/bin/chromium || { test "$$(id -u)" = 0 && apt-get install -y -qq chromium >/dev/null; } || \
		echo "chromium was not found and could not be installed: the browser server is skipped."
	EVERYDAY_FULL=1 $(BIN)/pytest -q -n 0 tests/everyday

loca: $(VENV)/.installed $(NODE)/.installed $(LOCA)/.installed $(LOCA_SOURCE)/task-configs ## run LOCA-bench: the scripted oracle, or LOCA_ARGS='--model NAME --base-url URL'; prints tables. LOCA_SOURCE=CHECKOUT
	LOCA_SOURCE=$(LOCA_SOURCE) $(BIN)/python evals/loca/loca_run.py $(or $(LOCA_ARGS),--oracle)

loca-logs: $(VENV)/.installed ## pack raw logs of LOCA-bench, LOCA_LOGS='FILE ...', with their tables into dist/loca-logs.zip
	LOCA_SOURCE=$(LOCA_SOURCE) $(BIN)/python evals/loca/loca_pack.py dist/loca-logs.zip $(LOCA_LOGS)

dashboard: $(VENV)/.installed $(NODE)/.installed ## test the dashboard in a headless Chromium, with axe-core. DASHBOARD_SHOTS=FOLDER: save screenshots
	@test -x /usr/bin/chromium || { test "$$(id -u)" = 0 && apt-get install -y -qq chromium >/dev/null; } || \
		echo "chromium was not found and could not be installed: the browser tests are skipped."
	$(BIN)/pytest -q -n 0 tests/dashboard

chats: $(VENV)/.installed $(CHATS)/.installed $(NODE)/.installed ## check pruned conversations against the published types of OpenAI, Anthropic and Vercel; prints counts
	$(BIN)/python tests/chats/write_conversations.py $(or $(CHATS_ARGS),500) > $(CHATS)/conversations
	$(CHATS)/bin/python tests/chats/check_types.py < $(CHATS)/conversations
	$(NODE)/node/bin/node tests/node/check_messages.mjs < $(CHATS)/conversations

clients: $(VENV)/.installed $(CLIENTS)/.installed ## run real clients (Claude Code, Codex, Gemini CLI, OpenCode) with wrapped servers and a scripted model
	CLIENTS_FOLDER=$(CLIENTS) $(BIN)/pytest -q -n 0 tests/clients

calibrate: $(TRUE)/.installed ## compare token estimates with real tokenizers, on held-out texts; FIT=1: fit them again
	nice -n 10 $(TRUE)/bin/python calibration

faults: $(VENV)/.installed ## make upstreams and networks fail in every way, measure the cost; prints tables
	PYTHONPATH=tests/helpers $(BIN)/python -m tests.faults $(FAULTS_ARGS)

fuzz: $(VENV)/.installed ## fuzz the parsers of foreign bytes, for a minute (Linux)
	@mkdir -p .fuzz && cp -n tests/fuzz/corpus/* .fuzz/
	PYTHONPATH=tests/helpers $(BIN)/python tests/fuzz/fuzz_wire.py -max_total_time=60 -rss_limit_mb=4096 -artifact_prefix=.fuzz/ .fuzz

hostile: $(VENV)/.installed ## send hostile input at full size; prints its cost. HOSTILE_WRITE_DOCS=1: update docs/operations/security.md
	HOSTILE_FULL=1 $(BIN)/pytest -q -o timeout=600 tests/hostile

soak: $(VENV)/.installed $(NODE)/.installed ## long tests: gateways killed as they write, attempts on another's memory, fuzzing, all combinations
	SOAK_CYCLES=1000 $(BIN)/pytest -q tests/integration/test_disk_crashes.py
	SOAK_GATEWAYS=$(or $(SOAK_GATEWAYS),300) $(BIN)/pytest -q -s tests/hostile/test_two_gateways.py
	STRANGER_ATTEMPTS=34000 STRANGER_PAIRS=2000 $(BIN)/pytest -q -o timeout=7200 tests/auth/test_two_principals.py
	FULL_SIZE=1 HYPOTHESIS_PROFILE=explore $(BIN)/pytest -q -n auto tests/unit tests/demo tests/commands tests/integration/test_input_rounds.py tests/integration/test_conversations.py
	PYTHONPATH=tests/helpers $(BIN)/python -m tests.fuzz.fuzz_transports $(or $(SOAK_FUZZ),600)
	FULL_SIZE=1 GATEWAY_EXECUTABLE=1 $(BIN)/pytest -q -n auto --dist loadgroup tests/end_to_end tests/faults
	ALL_COMBINATIONS=1 $(BIN)/pytest -q -n auto --dist loadgroup tests/relay tests/faults tests/conformance tests/real tests/end_to_end/test_whole_calls.py

conformance: $(VENV)/.installed $(NODE)/.installed ## run the official conformance suite, server and client, both protocol versions; prints tables
	$(BIN)/python tests/conformance/tables.py $(CONFORMANCE_ARGS)

dataframes: $(FRAMES)/.installed ## test tables of pandas, polars and pyarrow as results of functions
	$(FRAMES)/bin/python -m pytest -q tests/dataframes

examples: $(VENV)/.installed $(AGENTS)/.installed $(BEEAI)/.installed ## run the examples: agent frameworks with the library and a scripted model
	$(BIN)/pytest -q tests/examples

reference: $(VENV)/.installed ## write the generated pages of the documentation and configs/example.yaml
	$(BIN)/python tests/docs/generate.py

replicas: $(VENV)/.installed ## two gateways behind HAProxy over one Redis server; prints a table
	PYTHONPATH=tests/helpers $(BIN)/python tests/replicas/show.py $(REPLICAS_ARGS)

signals: $(VENV)/.installed ## test dashboard, alerts and traces with a real Prometheus server and an OTLP receiver
	@command -v prometheus >/dev/null || { test "$$(id -u)" = 0 && apt-get install -y -qq prometheus >/dev/null; } || \
		echo "Prometheus was not found and could not be installed: its tests are skipped."
	$(BIN)/pytest -q -n 0 tests/signals

helm: $(VENV)/.installed $(HELM)/.installed ## render the Helm chart by Helm's own library, and validate it against the schemas of Kubernetes
	$(BIN)/pytest -q -n 0 tests/deploy

node: $(NODE)/.installed ## install the Node servers and clients that the tests use

mcpb: $(VENV)/.installed $(MCPB)/.installed ## build an MCP bundle for Claude Desktop into dist/, validate it with the official tool, and start it
	$(BIN)/python packaging/mcpb/build.py dist
	$(BIN)/python packaging/mcpb/check.py dist/mcp-mirror-*.mcpb

image: $(VENV)/.installed ## build the container image with buildah, and test it with servers of npx and uvx (Linux, root). BASE=python:3.13-slim: not from Debian packages
	@{ command -v mmdebstrap && command -v buildah && command -v podman; } >/dev/null || \
		apt-get install -y -qq --no-install-recommends mmdebstrap buildah podman runc >/dev/null
	$(BIN)/python packaging/image/build.py $(BASE)
	$(BIN)/python packaging/image/check.py

lock: $(VENV)/.installed ## write the lock files again: versions and hashes only
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --all-extras --group dev --output-file requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --resolution lowest-direct --all-extras \
		--output-file tests/lowest/requirements.lock pyproject.toml
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file examples/frameworks.lock pyproject.toml examples/frameworks.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file examples/beeai.lock examples/beeai.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --extra redis --constraint requirements.lock --output-file docker/requirements.lock \
		pyproject.toml docker/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file docker/programs.lock docker/programs.in
	$(BIN)/uv pip compile --quiet --no-deps --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file packaging/registry/requirements.lock packaging/registry/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file tests/audit/requirements.lock tests/audit/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --extra redis --group dev --constraint requirements.lock \
		--output-file tests/dataframes/requirements.lock pyproject.toml tests/dataframes/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file tests/everyday/requirements.lock tests/everyday/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file docs/requirements.lock docs/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file evals/loca/requirements.lock evals/loca/requirements.in
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --output-file tests/deploy/requirements.lock tests/deploy/requirements.in

clean: ## remove everything that make created
	rm -rf $(VENV) $(HELM) $(AUDIT) $(BENCH) $(EVAL) $(DAILY) $(LOWEST) $(LOCA) $(DOCS) site .cache $(AGENTS) $(BEEAI) $(CHATS) $(FRAMES) $(TRUE) calibration/packages calibration/node_modules $(NODE) $(MCPB) .image dist .fuzz .coverage .coverage.* .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.installed: pyproject.toml requirements.lock
	@echo "Installing the dependencies into $(VENV) (one to three minutes) ..."
	@test -x $(BIN)/pip || { $(PYTHON) -c $(IS_NEW_ENOUGH) && $(PYTHON) -m venv $(VENV); }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(BENCH)/.installed: tests/bench/requirements.lock
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/bench/requirements.lock
	touch $@

$(EVAL)/.installed: evals/model/requirements.lock
	test -x $(EVAL)/bin/python || $(PYTHON) -m venv $(EVAL)
	$(EVAL)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement evals/model/requirements.lock
	touch $@

$(DAILY)/.installed: tests/everyday/requirements.lock
	test -x $(DAILY)/bin/python || $(PYTHON) -m venv $(DAILY)
	$(DAILY)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/everyday/requirements.lock
	touch $@

$(LOWEST)/.installed: pyproject.toml requirements.lock tests/lowest/requirements.lock
	test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement requirements.lock
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/lowest/requirements.lock
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(LOCA)/.installed: evals/loca/requirements.lock
	test -x $(LOCA)/bin/python || $(LOCA_PYTHON) -m venv $(LOCA)
	$(LOCA)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement evals/loca/requirements.lock
	touch $@

$(LOCA)/LOCA-bench/task-configs:
	git init --quiet $(@D)
	cd $(@D) && git fetch --quiet --depth 1 $(LOCA_URL) $(LOCA_COMMIT) && git checkout --quiet FETCH_HEAD

$(DOCS)/.installed: docs/requirements.lock
	test -x $(DOCS)/bin/python || $(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement docs/requirements.lock
	touch $@

$(HELM)/.installed: tests/deploy/requirements.lock
	test -x $(HELM)/bin/python || $(PYTHON) -m venv $(HELM)
	$(HELM)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/deploy/requirements.lock
	touch $@

$(AGENTS)/.installed: pyproject.toml examples/frameworks.lock
	test -x $(AGENTS)/bin/python || $(PYTHON) -m venv $(AGENTS)
	$(AGENTS)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement examples/frameworks.lock
	$(AGENTS)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(BEEAI)/.installed: examples/beeai.lock
	test -x $(BEEAI)/bin/python || $(PYTHON) -m venv $(BEEAI)
	$(BEEAI)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement examples/beeai.lock
	touch $@

$(FRAMES)/.installed: pyproject.toml tests/dataframes/requirements.lock
	test -x $(FRAMES)/bin/python || $(PYTHON) -m venv $(FRAMES)
	$(FRAMES)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/dataframes/requirements.lock
	$(FRAMES)/bin/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

$(AUDIT)/.installed: tests/audit/requirements.lock
	test -x $(AUDIT)/bin/python || $(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/audit/requirements.lock
	touch $@

$(CHATS)/.installed: tests/chats/requirements.lock
	test -x $(CHATS)/bin/python || $(PYTHON) -m venv $(CHATS)
	$(CHATS)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement tests/chats/requirements.lock

$(TRUE)/.installed: calibration/requirements.lock calibration/ctok.lock calibration/package-lock.json
	test -x $(TRUE)/bin/python || $(PYTHON) -m venv $(TRUE)
	$(TRUE)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --requirement calibration/requirements.lock
	$(TRUE)/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps --ignore-requires-python \
		--upgrade --target calibration/packages --requirement calibration/ctok.lock
	cd calibration && npm ci --no-audit --no-fund --loglevel=error
	touch $@

$(NODE)/.installed: tests/node/package-lock.json
	@if command -v npm >/dev/null; then echo "Installing the Node packages of the tests into tests/node ..."; \
	cd tests/node && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.installed; \
	else echo "npm was not found: the tests that need Node will be skipped."; fi

$(MCPB)/.installed: packaging/mcpb/package-lock.json
	cd packaging/mcpb && npm ci --no-audit --no-fund --loglevel=error && touch node_modules/.installed

$(CLIENTS)/.installed: tests/clients/package-lock.json
	mkdir -p $(CLIENTS) && cp tests/clients/package*.json $(CLIENTS)/ && cd $(CLIENTS) && npm ci --no-audit --no-fund --loglevel=error
	touch $@

comma := ,
# The pure modules: tests/unit covers every branch of them. Modules with I/O are tested with real processes.
PURE  := errors types callers paths library/tool_formats $(addprefix observability/,audit argument_shapes) \
         $(addprefix settings/,policies upstreams store labels access limits declarations) \
         $(addprefix payload/,json_rpc json_bounds framing json_spans json_strings scans) \
         $(addprefix security/,flows pins sanitize) \
         $(addprefix core/,__init__ amounts budgets catalog conversion merged_lists naming replies resolve \
           similar_names tool_index value_sizes) \
         $(addprefix core/schemas/,__init__ accepted_types argument_faults fault_search listed_members references repair tool_inspection \
           twin_schemas validation validation_cost) \
         $(addprefix core/texts/,__init__ edges embedded_json formats line_patterns number_tables outlines pipe_tables python_literals) \
         $(addprefix core/results/,__init__ capture captured content_comparison drafts main_parts media notice notice_keys \
           outlines parsed_result preview processing repeated_texts) \
         $(addprefix tokens/,__init__ lexicon costs estimate messages) \
         $(addprefix prune/,__init__ formats stubs ledger pruning) \
         $(addprefix functions/,__init__ signatures results result_types dataframes reply) \
         $(addprefix query/,__init__ texts indexes windows lines grep shape select missing_keys unlike_types text_order trees edits rows data_texts text_tables) \
         $(addprefix evals/,__init__ cases conversation dialects pointers judge few_shot matrix report)
