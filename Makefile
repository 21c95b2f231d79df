# `make demo` and `make test` are all a newcomer needs; both set up `.venv` first.
# With a GPU: make clean setup TORCH=torch CPU_INDEX=   (pip then takes torch's own build, with CUDA)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# The index of CPU builds is taken where it can be reached, and skipped fast where it cannot.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Containers often set this: every worker, and every process that a test starts, would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup demo chromium test pytest coverage test-slow test-gpu baselines lint format experiment experiments figures clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --retries 1 $(if $(CPU_INDEX),--extra-index-url $(CPU_INDEX)) "$(TORCH)"
	$(PIP) -e ".[dev]" -c constraints.txt
	touch $@

demo: setup
	$(BIN)/python -m experiments demo

# For the test of the report page in a browser, which is skipped without one.
chromium:
	tests/chromium.sh

# Lint and types run beside the tests: one process leaves a core idle.
test: setup
	$(MAKE) --no-print-directory -j 2 --output-sync=target lint pytest

pytest: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal

# The same tests, more slowly, and what they reach.
coverage: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal --cov --cov-report=term:skip-covered

test-slow: setup
	$(BIN)/python -m pytest -m slow

test-gpu: setup
	$(BIN)/python -m pytest -m gpu

# Short runs of every part, compared with stored results: before and after a refactoring.
baselines: setup
	$(BIN)/python -m tests.baselines

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One experiment: make experiment NAME=nnls, or NAME="table1 --device cuda". Their names: python -m experiments --help
experiment: setup
	$(BIN)/python -m experiments $(NAME)

# All of them, small, to see that they run.
experiments: setup
	$(BIN)/python -m pytest -m "slow or not slow" tests/test_experiments_quick.py

# Every table and picture of README and docs, from the stored results.
figures: setup
	$(BIN)/python -m experiments figures

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
