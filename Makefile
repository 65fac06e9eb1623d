# Two commands for a newcomer: `make demo` and `make test`. Each sets up what it needs in .venv first.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-long test-kernels lint format site browser-runtime dist lock clean

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

dist: .venv/release-ready ## build sdist and wheel in dist/, and try the wheel in an environment of its own
	rm -rf dist .venv/alone
	$(BIN)/hatchling build -d dist
	$(PYTHON) -m venv .venv/alone
	.venv/alone/bin/pip install --quiet -c constraints.txt dist/*.whl
	cd .venv/alone && bin/gpldla demo --fast -o demo && bin/gpldla tables > /dev/null

lock: .venv/release-ready ## write dist/lock.txt: every package of the extras for users, with version and hashes
	mkdir -p dist
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header -c constraints.txt $(LOCKED:%=--extra %) \
		pyproject.toml -o dist/lock.txt

LOCKED := vision text hf heic tables fast export conformal serve postgres

# constraints.txt pins the versions that the tests have seen; pyproject.toml says what is allowed.
.venv/demo-ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -c constraints.txt -e .
	touch $@

.venv/dev-ready: .venv/demo-ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

.venv/release-ready: .venv/demo-ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[release]'
	touch $@

.venv/site-ready: .venv/dev-ready
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	touch $@

# Large, and needed for one file of tests only: so not among the others.
.venv/triton: .venv/dev-ready
	$(BIN)/pip install --quiet --no-deps --upgrade --target $@ triton==3.9.0 || { rm -rf $@; exit 1; }
	touch $@

# 14 MB, so not in the repository; a wheel that is built afterwards holds it.
RUNTIME := src/gpldla/export/page/runtime
ORT := 1.30.0
ORT_SHA512 := ab4cbe26baedba45d2cec05610c71c55fa97db92d19a8b171c5f8269126683ca590a5cdc57bb2f35ce2b298de32f4d956fb42644c0ecd528a0a91e025c07ca61

browser-runtime: $(RUNTIME)/VERSION ## fetch ONNX Runtime for browsers (npm), for `gpldla export -o PAGE.html`

$(RUNTIME)/VERSION: Makefile
	rm -rf $(RUNTIME) && mkdir -p $(RUNTIME)
	npm pack --silent --pack-destination $(RUNTIME) onnxruntime-web@$(ORT)
	cd $(RUNTIME) && echo "$(ORT_SHA512)  onnxruntime-web-$(ORT).tgz" | shasum -a 512 --check --quiet
	tar -xzf $(RUNTIME)/onnxruntime-web-$(ORT).tgz -C $(RUNTIME) --strip-components 2 \
	  package/dist/ort.wasm.bundle.min.mjs package/dist/ort-wasm-simd-threaded.wasm
	rm $(RUNTIME)/*.tgz
	echo $(ORT) > $@

clean: ## remove the set-up and what the demo wrote
	rm -rf .venv demo site dist
