.DEFAULT_GOAL := help
SHELL := /bin/bash
MAKEFLAGS += --no-print-directory
PYTHON_IN_VENV := .venv/bin/python
READY := .venv/.ready

.PHONY: help setup demo test test-e2e test-rest test-unit test-long test-clients test-kubernetes sim sim-long chaos fuzz mutants lint lock docs reference screenshots bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## all that is needed: .venv with the packages of requirements.lock, gRPC stubs, Java 17+ (the others do it first)

# Generates stubs that were removed.
ifeq ($(wildcard firesteel/_proto/common_pb2.py),)
.PHONY: $(READY)
endif
ARCHIVED := taskexecutor/executor/columnar/warm_up.py $(addprefix taskexecutor/executor/columnar/jvm/,archive.py code.py) \
	$(wildcard taskexecutor/executor/columnar/jvm/java/org/apache/spark/unsafe/*.java) \
	$(addprefix firesteel/spark_connect/,archive.py java_options.py recording.py)
KAFKA := $(addprefix tests/kafka/,pom.xml jars.sha256 distribution.py)
$(READY): pyproject.toml requirements.lock setup.py scripts/setup.sh $(wildcard proto/*.proto) $(ARCHIVED) $(KAFKA)
	@PYTHON="$(PYTHON)" scripts/setup.sh

demo: $(READY) ## daily departure delays of 336,776 real flights on an embedded cluster
	@.venv/bin/firesteel run -t local examples/daily_delays.py

test: $(READY) ## all tests but those of test-long, in two halves side by side
	@$(MAKE) --keep-going --jobs=2 test-e2e test-rest

# Both take about equally long: OPERATORS are in the first half for this reason alone. They share the output: sed forwards whole lines, including the last ones of pytest after a Ctrl-C.
PROGRAMS := tests/e2e/spark_connect
CLUSTERS := tests/e2e tests/kubernetes tests/scenarios tests/simulation
OPERATORS := tests/unit/operators
WHOLE_LINES := (trap '' INT; exec sed --unbuffered '')

test-e2e: $(READY) ## those on clusters, real and simulated, except those of PySpark programs; and those of operators
	@set -o pipefail; $(PYTHON_IN_VENV) -m pytest $(CLUSTERS) $(OPERATORS) --ignore $(PROGRAMS) | $(WHOLE_LINES)

test-rest: $(READY) ## the other half of the tests
	@set -o pipefail; $(PYTHON_IN_VENV) -m pytest $(filter-out $(CLUSTERS:=/) tests/__pycache__/,$(wildcard tests/*/)) $(PROGRAMS) --ignore $(OPERATORS) | $(WHOLE_LINES)

test-unit: $(READY) ## the fast ones
	@$(PYTHON_IN_VENV) -m pytest tests/unit

test-long: $(READY) ## additional seeds, examples, rounds and combinations of the same tests
	@$(PYTHON_IN_VENV) -m pytest -m long; failed=$$?; \
	HYPOTHESIS_PROFILE=explore $(PYTHON_IN_VENV) -m pytest $$(grep -rl --include='test_*.py' hypothesis tests) && exit $$failed

test-clients: $(READY) ## Flink's command line, dashboard and deployer, other clients of the REST API, Helm and kubectl; screenshots in build/flink-dashboard
	@$(PYTHON_IN_VENV) -m pytest -m clients tests/clients

test-kubernetes: $(READY) ## the contract with Kubernetes on a real API server, which Go builds once in an hour
	@$(PYTHON_IN_VENV) -m tests.kubernetes.real >/dev/null
	@$(PYTHON_IN_VENV) -m pytest -m kubernetes tests/kubernetes/contract

sim: $(READY) ## the cluster on virtual time under random faults: one seed, SEED=17; or that many from it, COUNT=100
	@$(PYTHON_IN_VENV) -m tests.simulation.run --seed $(or $(SEED),0) --count $(or $(COUNT),$(if $(SEED),1,100))

sim-long: $(READY) ## the same for 50000 seeds, about two hours of two cores
	@$(PYTHON_IN_VENV) -m tests.simulation.run --seed $(or $(SEED),0) --count $(or $(COUNT),50000)
	@$(PYTHON_IN_VENV) -m pytest -q -m "" tests/simulation/test_pods.py

chaos: $(READY) ## random deaths and cuts in a real cluster, KILLS=20, or for MINUTES=60, from a SEED=17; under one kind of job, ONLY=triggers; of elected masters, MASTERS=10
	@$(PYTHON_IN_VENV) -m tests.e2e.run_chaos --kills $(or $(KILLS),20) --minutes $(or $(MINUTES),0) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY)) $(if $(MASTERS),--masters $(MASTERS))

fuzz: $(READY) ## random programs on random tables, compared with Spark's results: COUNT=100 seeds, or one: SEED=17
	@$(PYTHON_IN_VENV) -m tests.fuzz.run $(if $(SEED),--seed $(SEED)) --count $(or $(COUNT),$(if $(SEED),1,100))

mutants: $(READY) ## mistakes made on purpose, each of which its tests must find; only some: WORD=barrier
	@$(PYTHON_IN_VENV) -m tests.mutants.run "$(WORD)"

lint: $(READY) ## ruff, import contracts, strict mypy, no decisions by the words of errors, form and links of pages
	@$(PYTHON_IN_VENV) -m ruff check .
	@$(PYTHON_IN_VENV) -m ruff format --check .
	@.venv/bin/lint-imports --no-cache
	@$(PYTHON_IN_VENV) scripts/message_tests.py benchmarks dispatcher firesteel jobmaster resourcemanager scripts taskexecutor
	@$(PYTHON_IN_VENV) -m mypy
	@$(PYTHON_IN_VENV) -m pytest -q tests/unit/test_pages.py

docs: $(READY) ## the site of the documentation, with search and the API reference, in build/site
	@scripts/docs.sh

reference: $(READY) ## the generated pages of docs/reference (command line, configuration, metrics), boards of Grafana, manifests of Kubernetes
	@PYTHONPATH=. $(PYTHON_IN_VENV) scripts/reference_pages.py
	@$(PYTHON_IN_VENV) -m scripts.boards
	@$(PYTHON_IN_VENV) -m scripts.kubernetes_manifests

lock: ## resolve the dependencies into requirements.lock and requirements-docs.lock
	@scripts/lock.sh

screenshots: $(READY) ## take the pictures of the dashboard in docs/images
	@$(PYTHON_IN_VENV) -m tests.e2e.run_screenshots

bench: $(READY) ## all benchmarks, also beside Spark and Flink (an hour); one: make bench ONLY=nexmark
	@$(PYTHON_IN_VENV) -m benchmarks $(ONLY) $(if $(ROWS),--rows $(ROWS))

clean: ## remove what was built, downloaded and written here
	rm -rf .venv .bench-venv .clients-venv .docs-venv build dist out *.egg-info firesteel/_proto .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
