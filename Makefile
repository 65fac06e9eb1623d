# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs in .venv first.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-long test-kernels lint format site clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

demo: .venv/demo-ready ## meta-train on embedded data, test on unseen classes, write demo/report.html
	$(BIN)/gpldla demo -o demo

test: lint ## lint, check types and run the tests
	$(BIN)/pytest -n 2 -m "not long"

test-long: .venv/dev-ready ## the slower tests as well
	$(BIN)/pytest -n 2

test-kernels: .venv/triton ## the GPU kernels, in Triton's interpreter, where there is no GPU
	PYTHONPATH=.venv/triton $(BIN)/pytest -n 2 tests/kernels/test_kernels.py

lint: .venv/dev-ready ## ruff, mypy and the layers of the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/dev-ready ## let ruff rewrite the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

site: .venv/site-ready ## build the documentation site in site/, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# constraints.txt pins the versions that the tests have seen; pyproject.toml says what is allowed.
.venv/demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

.venv/dev-ready: .venv/demo-ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

.venv/site-ready: .venv/dev-ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

# Large, and needed for one file of tests only: so not among the others.
.venv/triton: .venv/dev-ready
	$(BIN)/pip install --quiet --no-deps --upgrade --target $@ triton==3.9.0 || { rm -rf $@; exit 1; }
	touch $@

clean: ## remove the set-up and what the demo wrote
	rm -rf .venv demo site
