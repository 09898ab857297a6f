# Everything a fresh machine needs beside python3, pip and make is installed here, into .venv and tests/node.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test check format lock clean node

help:            ## this list
	@grep -E '^[a-z-]+: .*##|^[a-z-]+: *##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | expand -t 12

$(VENV)/.installed: pyproject.toml requirements.lock
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

lock: ## write requirements.lock anew from pyproject.toml (versions and hashes alone)
	$(BIN)/python -m uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --all-extras --group dev --output-file requirements.lock pyproject.toml

clean: ## remove what make made
	rm -rf $(VENV) tests/node/node_modules .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
