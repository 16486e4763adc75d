.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-gpu test-long install format lint types check docs

PYTHON ?= python3
BIN := .venv/bin

help:      ## Show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk 'BEGIN {FS = ":.*## "} {printf "%-10s %s\n", $$1, $$2}'
demo: .venv/test.stamp      ## Pretrain and adapt a small model on the embedded sample, offline
	PATH="$(CURDIR)/$(BIN):$$PATH" bash scripts/demo.sh
test: .venv/test.stamp      ## Unit and quick functional tests: no network, no GPU
	$(BIN)/python -m pytest -m "not slow and not gpu" -n auto --dist loadfile --no-loadscope-reorder --durations=25
test-all: .venv/test.stamp  ## Every test that this machine can run
	$(BIN)/python -m pytest -n auto --dist loadfile --durations=25
test-gpu: .venv/test.stamp  ## Only what needs a CUDA device
	$(BIN)/python -m pytest -m gpu
test-long: .venv/test.stamp ## Kills by the hundred and loads of hours; also pytest tests/long --help
	$(BIN)/python -m pytest tests/long --kills 7
install: .venv/dev.stamp    ## Make .venv with the package, editable, and the development tools
format: .venv/dev.stamp     ## Rewrite files to the house format
	$(BIN)/ruff format . && $(BIN)/ruff check --fix .
lint: .venv/dev.stamp       ## Report style problems, change nothing
	$(BIN)/ruff format --check . && $(BIN)/ruff check .
types: .venv/dev.stamp      ## Check types
	$(BIN)/mypy transfer_cli
docs: .venv/docs.stamp      ## Build the site into site/, offline; site/index.html opens from the disk
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
check: lint types test      ## What a change must pass before it is merged

# A stamp is newer than what it was made from: a second call installs nothing.
.venv/%.stamp: pyproject.toml setup.py constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -c constraints.txt -e ".[$*]"
	@touch $@
