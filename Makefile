SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= python3.11
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: help setup demo check test crds lock clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

setup: $(VENV)/.done  ## make the environment in .venv, everything pinned by hash

$(VENV)/.done: requirements.txt requirements.uv.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.uv.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## one evolution on the built-in world, from nothing to a report
	$(BIN)/curateevo run examples/toolworld.yaml --dir runs/demo

check: setup  ## format, lint, types, import contracts, unit and state tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy core jobs operator
	$(BIN)/lint-imports
	$(BIN)/pytest -q -m "not train and not vllm and not s3 and not slow and not cluster and not node" tests

test: setup  ## everything: also real training, a real vLLM and a real S3 server
	$(BIN)/pytest tests

crds: setup  ## make crds/ from the API models
	@for kind in CurationEvolution:curationevolutions PolicyVersion:policyversions; do \
	  $(BIN)/python -c 'import sys; from curateevo.api.crd import crd_yaml; sys.stdout.write(crd_yaml(sys.argv[1]))' \
	    "$${kind%%:*}" > "crds/curateevo.io_$${kind##*:}.yaml" || exit 1; \
	done

lock: setup  ## resolve the requirements again
	$(BIN)/uv pip compile --quiet --upgrade pyproject.toml requirements.build.in --all-extras --no-extra serve \
	  --override requirements.override.txt --generate-hashes --python-version 3.11 --no-emit-index-url --no-header -o requirements.txt
	$(BIN)/uv pip compile --quiet requirements.uv.in --generate-hashes --python-version 3.11 --no-emit-index-url --no-header -o requirements.uv.txt

clean:  ## remove environment, caches and runs
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache runs
