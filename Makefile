SHELL := /bin/bash
VENV ?= .venv
# Of `make check` and `make test`: what shares a cluster, or trains, stays in one process.
TEST_PROCESSES ?= 2
BIN := $(VENV)/bin
PYTHON ?= python3.11
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

# Of `make images`: the engine (docker, podman, buildah) and the tag. Of `make cluster`: its folder.
ENGINE ?= docker
TAG ?= dev
CLUSTER ?= $(HOME)/.cache/curateevo/cluster

.PHONY: help setup demo lint check test images cluster cluster-down crds chart operators lock clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(VENV)/.done  ## make the environment in .venv, everything pinned by hash

$(VENV)/.done: requirements.txt requirements.suites.txt requirements.uv.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements.uv.txt
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements.txt requirements.suites.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## one evolution on the built-in world, from nothing to a report
	$(BIN)/curateevo run examples/toolworld.yaml --dir runs/demo

lint: setup  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy core jobs operator
	$(BIN)/lint-imports

check: lint  ## lint, unit and state tests
	$(BIN)/pytest -q -n $(TEST_PROCESSES) --dist loadgroup -m "not train and not vllm and not s3 and not slow and not cluster and not node" tests

test: setup  ## everything: also real training, a real vLLM, a real S3 server, a real cluster (built first; root)
	tests/cluster/build.sh > /dev/null
	VENV=$(VENV) tests/cluster/images.sh
	$(BIN)/pytest tests -n $(TEST_PROCESSES) --dist loadgroup

images:  ## the container images, by ENGINE
	for image in operator jobs sandbox trainer; do \
	  $(ENGINE) build -f images/$$image/Containerfile -t curateevo-$$image:$(TAG) . || exit 1; \
	done

cluster: setup  ## a real one-node cluster with the images in CLUSTER, from source (root)
	tests/cluster/up.sh $(CLUSTER)
	VENV=$(VENV) tests/cluster/images.sh $(CLUSTER)

cluster-down:  ## end it
	tests/cluster/down.sh $(CLUSTER)

crds: setup  ## make crds/ from the API models, and the chart's copy
	@for kind in CurationEvolution:curationevolutions PolicyVersion:policyversions; do \
	  $(BIN)/python -c 'import sys; from curateevo.api.crd import crd_yaml; sys.stdout.write(crd_yaml(sys.argv[1]))' \
	    "$${kind%%:*}" > "crds/curateevo.io_$${kind##*:}.yaml" || exit 1; \
	done
	cp crds/*.yaml charts/curateevo/files/crds/

chart: setup  ## write the chart's snapshots anew
	$(BIN)/python -m tests.chart.rendered

operators: setup  ## write the table of operators in docs/policies.md from their docstrings
	$(BIN)/python -m tests.core.policy.operator_table

COMPILE := uv pip compile --quiet --generate-hashes --python-version 3.11 --no-emit-index-url --no-header
lock: setup  ## resolve the requirements again, of the environment and of each image
	$(BIN)/$(COMPILE) --upgrade pyproject.toml requirements.build.in --extra train --extra serve-cpu --extra bfcl --extra tau2 --extra operator --extra dev \
	  --override requirements.override.txt -o requirements.txt
	$(BIN)/$(COMPILE) --no-deps requirements.suites.in -o requirements.suites.txt
	$(BIN)/$(COMPILE) requirements.uv.in -o requirements.uv.txt
	for image in operator sandbox; do \
	  $(BIN)/$(COMPILE) --no-annotate images/$$image/requirements.in -c requirements.txt -o images/$$image/requirements.txt || exit 1; \
	done
	$(BIN)/$(COMPILE) --no-annotate pyproject.toml --extra train --extra serve-cpu --extra bfcl --extra tau2 \
	  --override requirements.override.txt -c requirements.txt -o images/jobs/requirements.txt
	$(BIN)/$(COMPILE) --no-annotate pyproject.toml --extra train --extra serve --extra bfcl --extra tau2 \
	  -c <(grep -oE '^[a-z0-9.-]+==[^ ]+' requirements.txt | grep -v '^apache-tvm-ffi=') -o images/trainer/requirements.txt
	for image in jobs trainer; do cat requirements.suites.txt >> images/$$image/requirements.txt || exit 1; done

clean:  ## remove environment, caches and runs
	rm -rf $(VENV) .cache .pytest_cache .mypy_cache .ruff_cache .import_linter_cache runs
