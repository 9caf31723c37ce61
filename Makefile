# make demo   the main job: a local control plane, the example jobs, a live table
# make test   every check and every test, the control-plane tests included
# Both do all of their own set-up. Other targets: setup kube check unit e2e lock clean.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test setup kube check unit e2e lock clean

demo: kube
	$(BIN)/coda demo

test: check unit e2e
	@echo "==> all checks and tests passed"

setup: $(READY)

$(READY): requirements-dev.lock pyproject.toml
	@echo "==> setting up $(VENV) from requirements-dev.lock (about a minute the first time)"
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

kube: $(READY)
	@$(BIN)/python -m coda_lab.binaries

check: $(READY)
	@echo "==> ruff, mypy, import contracts"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	@echo "==> unit tests"
	$(BIN)/pytest

e2e: kube
	@echo "==> tests on a local control plane"
	$(BIN)/pytest -m e2e -v

lock: $(READY)
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --extra cli pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11 --extra cli --group dev pyproject.toml -o requirements-dev.lock

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
