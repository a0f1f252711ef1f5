# Two commands are enough on a fresh machine with Python >= 3.11 and make:
#   make demo    from a historian's file to an answer; then a plant of named units, fitted from its log, with a report
#                (then: .venv/bin/counterflow console demo-output/fit)
#   make test    the whole test suite (make test-quick: what one runs between two edits, within a minute)
# Also: make check (lint, types, import rules, docs examples), make bench (benchmarks), make screenshots
# (of the console, for the docs), make clean.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_OUT ?= demo-output
# one more than there are cores: tests between machines, and in a browser, wait
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2) + 1)
# one BLAS thread a worker: small matrices, and results that do not depend on the number of cores; kernels that all
# processors have, so that stored numbers are the same to 1e-9 everywhere
SINGLE := OPENBLAS_CORETYPE=Haswell OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: demo test test-quick check bench screenshots clean install

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Counterflow needs Python >= 3.11, $(PYTHON) is $$($(PYTHON) --version 2>&1). Run: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[plots,console]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.run $@

$(VENV)/.bench: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@touch $(VENV)/.run $(VENV)/.dev $@

install: $(VENV)/.dev

demo: $(VENV)/.run
	$(BIN)/counterflow demo --out $(DEMO_OUT) --force

# a file's tests share one worker: those between machines share one federation
test: $(VENV)/.dev
	$(SINGLE) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# kernels, messages, data, commands and the console's guard: no fits over many seeds, no browser, no federation
QUICK ?= tests/unit/cli tests/unit/plant tests/unit/filtering tests/unit/identification tests/unit/protocol \
  tests/unit/questions tests/unit/sufficient/test_equality.py tests/unit/checks tests/unit/storage tests/unit/data \
  tests/unit/privacy/test_accounting.py tests/unit/privacy/test_ledger.py tests/unit/federation \
  tests/unit/console/test_console_guard.py tests/e2e/test_privacy_commands.py
test-quick: $(VENV)/.dev
	$(SINGLE) $(BIN)/python -m pytest -q -n $(WORKERS) --dist loadfile -m 'not slow' $(QUICK)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(SINGLE) $(BIN)/python -m pytest -q --doctest-modules src
	$(SINGLE) $(BIN)/python -m pytest -q --doctest-glob='*.md' README.md docs

bench: $(VENV)/.bench
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# the console's tests, which leave pictures of what they see
screenshots: $(VENV)/.dev
	COUNTERFLOW_SCREENSHOTS=docs/images COUNTERFLOW_BROWSER_TESTS=required $(SINGLE) $(BIN)/python -m pytest -q \
	  tests/e2e/test_console_page.py tests/e2e/test_console_troubles.py

clean:
	rm -rf $(VENV) $(DEMO_OUT) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
