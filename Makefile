# `make demo` and `make test` are all a newcomer needs; both set up `.venv` first.
# With a GPU: make clean setup TORCH=torch CPU_INDEX=   (pip then takes torch's own build, with CUDA)

PYTHON ?= python3
VENV ?= .venv
TORCH ?= torch==2.13.0
BIN := $(VENV)/bin
# The index of CPU builds is taken where it can be reached, and skipped fast where it cannot.
CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: setup demo chromium test pytest coverage test-slow test-gpu baselines lint format bench bench-nnls bench-sweep bench-paper bench-memory bench-training \
	bench-variants bench-streaming bench-gpu bench-estimators bench-init bench-robust bench-refit bench-constraints \
	bench-regression bench-beyond figures clean

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

bench: bench-nnls bench-sweep

bench-nnls: setup
	$(BIN)/python -m experiments.nnls

bench-sweep: setup
	$(BIN)/python -m experiments.sweep

bench-paper: setup
	$(BIN)/python -m experiments.paper_model

bench-memory: setup
	$(BIN)/python -m experiments.memory

bench-training: setup
	$(BIN)/python -m experiments.training

bench-variants: setup
	$(BIN)/python -m experiments.variants

bench-streaming: setup
	$(BIN)/python -m experiments.streaming

bench-gpu: setup
	$(BIN)/python -m experiments.gpu
	$(BIN)/python -m experiments.training cuda

bench-estimators: setup
	$(BIN)/python -m experiments.estimators

bench-init: setup
	$(BIN)/python -m experiments.initialisation

bench-robust: setup
	$(BIN)/python -m experiments.robust

bench-refit: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.refit

bench-constraints: setup
	$(BIN)/python -m experiments.constraints

bench-regression: setup
	OMP_NUM_THREADS=1 $(BIN)/python -m experiments.regression

# What standard networks find hard: all evidence tables, from what is stored where it is.
bench-beyond: bench-robust bench-refit bench-constraints bench-regression

figures: setup
	$(BIN)/python -m experiments.figures

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
