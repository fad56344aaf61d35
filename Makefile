# Every task of this project that is done more than once. `make` alone lists them.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# The first of these that runs and is new enough. To choose another: make venv PYTHON=/path/to/python
PYTHON ?= $(shell for python in python3.11 python3; do \
	if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$python"; break; fi; done)

VENV ?= .venv
BIN := $(VENV)/bin
# The stamp is written when everything is installed, and not before: an interrupted `make venv` begins again.
STAMP := $(VENV)/.installed
# Both distributions, as editable: the provider depends on the engine by its version, and gets the one beside it.
PROJECTS := pyproject.toml hatch_build.py tools/engine/pyproject.toml tools/engine/hatch_build.py
EDITABLE = PAWNQUEUE_ENGINE=by-version $(1) -m pip install --disable-pip-version-check --progress-bar off -e tools/engine -e '.[$(2)]'
EXTRAS := messaging,spark,dev
OLD_EXTRAS := messaging,dev
COMPOSE_EXTRAS := messaging,spark
# pip's output goes into a file, and one counted line for each package to the screen. If pip fails, the end of the file is shown.
PIP = install_log=$$(mktemp) && trap 'rm -f "$$install_log"' EXIT && \
	{ $(1) 2>&1 | tee "$$install_log" | $(PIP_LINES) || { echo "== pip has failed; it said at last:" >&2; tail -n 40 "$$install_log" >&2; exit 1; }; }
PIP_LINES := awk '/^Collecting / {printf "   %3d  %s\n", ++n, $$2; fflush()} \
	/^Installing collected packages/ {printf "   now unpacking them (a minute or two)\n"; fflush()} \
	/^(WARNING|ERROR)/ {print; fflush()}'
PYTEST := $(BIN)/python -m pytest

# The published pawn-queue library, for the tests of both on one bucket. Its dependencies and ours exclude each other.
PEER := .venv-peer
PEER_PINS := tests/interop/peer-constraints.txt
PEER_STAMP := $(PEER)/.installed

# The oldest Airflow that pyproject.toml supports, and the tests that run on it.
OLD := .venv-compat
OLD_PINS := tests/compat/constraints.txt
OLD_STAMP := $(OLD)/.installed
# Without tests/cli: before 3.2 Airflow takes no commands from providers.
OLD_TESTS := tests/compat tests/hooks tests/operators tests/sensors tests/triggers tests/dags

# The newest pre-release of Airflow that was tried.
NEXT := .venv-next
NEXT_PINS := tests/compat/constraints-next.txt
NEXT_STAMP := $(NEXT)/.installed

# Each supported PySpark in an environment of its own. They have no Airflow, which goes with 4.2.0 alone. So the tests are
# those that do not import it.
SPARKS := 4.2.0 4.2.1 4.3.0
SPARK_VENV := .venv-spark
SPARK_STAMPS := $(SPARKS:%=$(SPARK_VENV)-%/.installed)
SPARK_NEEDS := tests/compat/requirements-spark.txt
SPARK_TESTS = $(shell grep -LE '^ *(from|import) (airflow[. ]|tests\.(spark\.submitted|support\.airflow))' tests/spark/test_*.py)

# The packages of docker-compose.yaml's image, installed without an image, and Debian's packages for its tests.
COMPOSE := .venv-compose
COMPOSE_PINS := tools/compose/requirements.txt
COMPOSE_STAMP := $(COMPOSE)/.installed
COMPOSE_PACKAGES := docker-compose postgresql socat

# The programs that the Ceph tests start, each with its Debian package.
CEPH := ceph-mon=ceph-mon ceph-osd=ceph-osd ceph-mgr=ceph-mgr radosgw=radosgw ceph=ceph-common

.PHONY: help demo demo-queue venv peer lint test test-fast test-spark test-airflow test-compat test-pyspark test-compose test-full test-servers test-store sim bench docs dist release-check constraints clean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s%s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP)  ## two minutes: 2,000 orders through S3, Airflow and Spark, and a check of the result (KEEP=1: leave it running)
	@$(BIN)/python -m tools.demo $(if $(filter-out 0 no,$(KEEP)),--keep)

demo-queue: $(STAMP)  ## half a minute: the queue alone, four consumers, one killed and one frozen
	@$(BIN)/python -m tools.demo.queue

venv: $(STAMP)  ## .venv with the project and all that its tests need; runs again only after a pyproject.toml or constraints.txt changed

$(STAMP): $(PROJECTS) constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "No Python 3.11 or newer was found: install one, or name it: make venv PYTHON=/path/to/python" >&2; exit 1; fi
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) does not run, or is older than Python 3.11: name another: make venv PYTHON=/path/to/python" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
		version=$$("$(PYTHON)" -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
		echo "$(PYTHON) cannot make a virtual environment. On Debian or Ubuntu: apt-get install python$$version-venv" >&2; exit 1; }
	@same='import sys; print(sys.version)'; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1 \
			|| { [ "$(origin PYTHON)" != file ] && [ "$$($(BIN)/python -c "$$same")" != "$$("$(PYTHON)" -c "$$same")" ]; }; then \
		echo "== $(VENV): a new virtual environment, with $$("$(PYTHON)" --version)"; "$(PYTHON)" -m venv --clear $(VENV); fi
	@echo "== $(VENV): installing the project and what its tests need: some 250 packages, 2 GB on disk, Spark and a Java among them; some minutes"
	@rm -f $(STAMP)
	@$(call PIP,$(call EDITABLE,$(BIN)/python,$(EXTRAS)) -c constraints.txt)
	@touch $(STAMP)
	@echo "== $(VENV): ready"

peer: $(PEER_STAMP)  ## .venv-peer: the published pawn-queue library, for the tests that run it beside ours

$(PEER_STAMP): $(PEER_PINS) | $(STAMP)
	@echo "== $(PEER): the published pawn-queue library, for the tests of interoperability"
	@$(BIN)/python -m venv --clear $(PEER)
	@$(call PIP,$(PEER)/bin/python -m pip install --disable-pip-version-check --progress-bar off -c $(PEER_PINS) pawn-queue)
	@touch $(PEER_STAMP)

lint: $(STAMP)  ## ruff (check and format), mypy --strict on the package, import-linter, phrases that stop a reader
	@echo "== ruff check";    $(BIN)/ruff check .
	@echo "== ruff format";   $(BIN)/ruff format --check .
	@echo "== mypy";          $(BIN)/mypy
	@echo "== import-linter"; $(BIN)/lint-imports
	@echo "== prose";         $(BIN)/python -m tools.prose

# Tests that start nothing come first, and end in some minutes. Tests that start servers, Spark or Airflow spend half of
# their time waiting for them, so that two cores have work for three.
STARTS := servers or peer or spark or airflow
NOT_HERE := ceph or compose or own_store or full
TWO := -n 2
THREE := -n 3

test: $(STAMP) $(PEER_STAMP)  ## every test that needs neither Debian packages nor an account
	@echo "== tests that start nothing"; $(PYTEST) $(TWO) -m "not ($(STARTS) or $(NOT_HERE))"
	@echo "== tests on real servers, Spark and Airflow"; $(PYTEST) $(THREE) -m "($(STARTS)) and not ($(NOT_HERE))"

test-fast: $(STAMP)  ## the inner loop: no servers, nothing slow
	@echo "== fast tests"; $(PYTEST) $(TWO) -m "not ($(STARTS) or $(NOT_HERE) or slow)"

test-spark: $(STAMP)  ## the tests that start Spark, on local[2] and on a cluster
	@echo "== tests on Spark"; $(PYTEST) -m "spark and not airflow and not full"

test-airflow: $(STAMP)  ## the tests that start a real Airflow, beside a real S3 server, with Spark too
	@echo "== tests on a real Airflow"; $(PYTEST) -m "airflow and not full"

# Warnings of an old Airflow, of its newer libraries and of a pre-release are not this project's to fix. The oldest Airflow
# starts a watcher only when it has parsed the DAG for the second time, and the tests' Airflow parses an unchanged file only
# once: so on_arrival is left out. In the newest each asset event is a run: its event trigger has a test of ten minutes.
test-compat: $(OLD_STAMP) $(NEXT_STAMP)  ## test-pyspark, and the tests of Airflow's layer, with its DAGs for real, on the oldest supported Airflow and on the newest pre-release
	@echo "== tests on $$($(OLD)/bin/python -m pip list 2>/dev/null | grep '^apache-airflow ' | tr -s ' ')"
	@$(OLD)/bin/python -m pytest -W ignore -m "not airflow" $(OLD_TESTS)
	@echo "== the example DAGs on it"; $(OLD)/bin/python -m pytest -W ignore -k "not on_arrival" tests/e2e/airflow/test_examples.py
	@echo "== tests on $$($(NEXT)/bin/python -m pip list 2>/dev/null | grep '^apache-airflow ' | tr -s ' ')"
	@$(NEXT)/bin/python -m pytest -W ignore -m "not airflow" $(OLD_TESTS)
	@echo "== the example DAGs on it"; $(NEXT)/bin/python -m pytest -W ignore tests/e2e/airflow/test_examples.py
	@echo "== runs that an event trigger starts on it"; $(NEXT)/bin/python -m pytest -W ignore tests/e2e/airflow/test_event_runs.py
	@$(MAKE) --no-print-directory test-pyspark

test-pyspark: $(SPARK_STAMPS)  ## the tests of Spark on each supported PySpark (SPARKS=4.3.0: on one)
	@for version in $(SPARKS); do echo "== tests on PySpark $$version"; \
		$(SPARK_VENV)-$$version/bin/python -m pytest -m "not full" $(SPARK_TESTS); done

$(SPARK_STAMPS): $(SPARK_VENV)-%/.installed: $(PROJECTS) constraints.txt $(SPARK_NEEDS)
	@echo "== $(@D): PySpark $* and what its tests need (some 50 packages; a minute or two)"
	@rm -f $@
	@test -x $(@D)/bin/python || "$(PYTHON)" -m venv $(@D)
	@grep -v -E '^(pyspark|pyspark-client|py4j)==' constraints.txt >$(@D)/constraints.txt
	@$(call PIP,$(@D)/bin/python -m pip install --disable-pip-version-check --progress-bar off -c $(@D)/constraints.txt -r $(SPARK_NEEDS) -e tools/engine 'pyspark[connect]==$*')
	@touch $@

$(OLD_STAMP): $(PROJECTS) $(OLD_PINS)
	@echo "== $(OLD): the oldest Airflow that is claimed (about 200 packages; a few minutes)"
	@rm -f $(OLD_STAMP)
	@test -x $(OLD)/bin/python || "$(PYTHON)" -m venv $(OLD)
	@$(call PIP,$(call EDITABLE,$(OLD)/bin/python,$(OLD_EXTRAS)) -c $(OLD_PINS))
	@touch $(OLD_STAMP)

$(NEXT_STAMP): $(PROJECTS) $(NEXT_PINS)
	@echo "== $(NEXT): the newest pre-release of Airflow that was tried (about 200 packages; a few minutes)"
	@rm -f $(NEXT_STAMP)
	@test -x $(NEXT)/bin/python || "$(PYTHON)" -m venv $(NEXT)
	@$(call PIP,$(call EDITABLE,$(NEXT)/bin/python,$(OLD_EXTRAS)) -c $(NEXT_PINS) -r tests/compat/versions-next.txt)
	@touch $(NEXT_STAMP)

test-compose: $(STAMP) $(COMPOSE_STAMP)  ## docker-compose reads docker-compose.yaml, and its services run without containers (Debian's packages)
	@if ! command -v docker-compose >/dev/null || ! command -v socat >/dev/null || ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1; then \
		install="apt-get install --no-install-recommends $(COMPOSE_PACKAGES)"; \
		if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
			echo "== the tests of docker-compose.yaml need Debian packages; running: $$install"; \
			export DEBIAN_FRONTEND=noninteractive; apt-get update; $$install -y; \
		else \
			echo "The tests of docker-compose.yaml need programs that are not there. As root, on Debian: $$install" >&2; exit 1; \
		fi; \
	fi
	@echo "== docker-compose.yaml"; $(PYTEST) tests/compose

$(COMPOSE_STAMP): $(PROJECTS) constraints.txt $(COMPOSE_PINS) | $(STAMP)
	@echo "== $(COMPOSE): what the image of docker-compose.yaml has (about 150 packages; some minutes)"
	@rm -f $(COMPOSE_STAMP)
	@test -x $(COMPOSE)/bin/python || $(BIN)/python -m venv $(COMPOSE)
	@$(call PIP,$(COMPOSE)/bin/python -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt -r $(COMPOSE_PINS) '.[$(COMPOSE_EXTRAS)]')
	@touch $(COMPOSE_STAMP)

test-full: test  ## every test, and each fault on a real Airflow and on Spark: takes an hour more
	@echo "== every fault on a real Airflow, and on Spark"; $(PYTEST) -m full

test-servers: $(STAMP) $(PEER_STAMP)  ## the tests on real S3 servers, Ceph too (as root it installs Ceph's Debian packages, and says so)
	@missing=; for pair in $(CEPH); do \
		command -v "$${pair%=*}" >/dev/null 2>&1 || missing="$$missing $${pair#*=}"; done; \
	if [ -n "$$missing" ]; then \
		install="apt-get install --no-install-recommends$$missing"; \
		if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
			echo "== the Ceph tests need Debian packages that are not there; running: $$install"; \
			export DEBIAN_FRONTEND=noninteractive; apt-get update; $$install -y; \
		else \
			echo "The Ceph tests need programs that are not there. As root, on Debian: $$install" >&2; \
			echo "Without Ceph: $(PYTEST) -m servers" >&2; exit 1; \
		fi; \
	fi
	@echo "== tests on real servers"; $(PYTEST) -m "(servers or ceph) and not airflow"

test-store: $(STAMP)  ## the conformance suite on your own bucket, named by PAWNQUEUE_S3_* variables
	@if [ -z "$${PAWNQUEUE_S3_BUCKET_NAME:-}" ]; then \
		echo "Set PAWNQUEUE_S3_BUCKET_NAME to a bucket of yours, and as it needs them PAWNQUEUE_S3_ENDPOINT_URL," >&2; \
		echo "PAWNQUEUE_S3_REGION, PAWNQUEUE_S3_ACCESS_KEY and PAWNQUEUE_S3_SECRET_KEY; then: make test-store" >&2; exit 1; fi
	@echo "== tests on bucket $$PAWNQUEUE_S3_BUCKET_NAME"; $(PYTEST) -m own_store

sim: $(STAMP)  ## 100,000 schedules of the simulation, always new ones (COUNT=1000: fewer)
	@echo "== simulation"; $(BIN)/python -m tests.sim.run $(or $(COUNT),100000)

bench: $(STAMP)  ## the benchmarks, on servers that they start themselves (ONLY="spark-growth -- 1000000": one, with its arguments)
	@echo "== benchmarks"; $(BIN)/python -m benchmarks $(ONLY)

docs: $(STAMP)  ## build/site: the documentation as a site; a dead link is an error
	@$(BIN)/python -m tools.site

dist: $(STAMP)  ## dist/: sdist and wheel of both distributions, checked as an index checks them
	@echo "== dist"; $(BIN)/python -m tools.release build dist

release-check: $(STAMP)  ## whether version, tag, changelog and dist/ agree, before they are published
	@$(BIN)/python -m tools.release check dist

constraints:  ## write constraints.txt: the newest versions that work together, from a fresh environment (FOR=compat, FOR=next: the other files)
	@PYTHON="$(PYTHON)" tools/constraints.sh $(FOR)

clean:  ## remove what the tools left behind, and the virtual environments
	rm -rf $(VENV) $(PEER) $(OLD) $(NEXT) $(COMPOSE) $(SPARK_VENV)-* build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache .run
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
