# Everything that is done with a checkout. Needs Debian's or Ubuntu's make and Python; the rest is fetched.
#
#   make PYTHON=python3.12 …    another interpreter          make APT=no …    install no system packages
#   make test ARGS="-k ring"    arguments for pytest

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
export PYTHON APT

BIN := $(VENV)/bin
# What is imported is compiled then: all of it would take longer than to unpack it.
PIP := $(BIN)/pip install -q --disable-pip-version-check --no-compile
TOOLS := $(VENV)/.tools
PACKAGES := $(VENV)/.packages
ENGINE := $(VENV)/.engine
READY := $(VENV)/.ready
FRAMEWORKS := $(VENV)/.frameworks
BUILD_TOOLS := $(shell sed -n 's/^requires = \[\(.*\)\].*/\1/p' pyproject.toml | tr ',' ' ') cmake ninja
NATIVE := CMakeLists.txt pyproject.toml $(shell find native/src -type f 2>/dev/null)
IN_VM = PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 LIMIT=$${LIMIT:-2400} tests/verbs/run.sh \
	$(BIN)/pytest -rs -p pytest_timeout -p no:cacheprovider
FORMATTED := $(shell find native/src tests/native tests/stand_in tests/warm -name '*.[ch]pp' 2>/dev/null)

.DELETE_ON_ERROR:
.PHONY: help demo test test-long check format lint types native-tests bench dev frameworks docs build package tensorflow
.PHONY: launchers transports test-gpu test-verbs test-verbs-short
.PHONY: clean

help: ## Say what there is to make.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## Train on real data with 4 processes, then measure. Installs what it needs.
	@tools/need.sh --optional redis
	@echo; echo "== Training with 4 processes, no server"
	@$(BIN)/collectives run -n 4 examples/train_digits.py
	@echo; echo "== The same, meeting through Redis"
	@$(BIN)/python tools/with_redis.py $(BIN)/collectives run -n 4 examples/train_digits.py
	@echo; echo "== Allreduce between 2 processes"
	@$(BIN)/collectives bench allreduce -n 2 -b 8 -e 4M -f 8 -c 1

test: $(READY) $(FRAMEWORKS) ## Run the tests. Fetches TensorFlow, PyTorch and JAX, which the hooks are tested with.
	@tools/need.sh redis openssl iproute2
	$(BIN)/pytest -n auto --dist loadfile --again $(ARGS)

test-long: export COLLECTIVES_TESTS = long
test-long: test ## Run the tests with all combinations of their parameters.

test-gpu: $(READY) ## Run the tests that need a GPU, and print device, driver and versions (ARGS for pytest).
	$(BIN)/python -m tools.check_gpu $(ARGS)

# COLLECTIVES_TESTS=long: all combinations, and 10 000 operations on arrays that come and go.
test-verbs: $(READY) ## Run the tests of RDMA verbs in a VM with soft-RoCE devices. Root only; fetches 92 MB from Debian.
	@tools/need.sh doctest
	PATH="$(CURDIR)/$(BIN):$$PATH" VERBS_HEADERS="$$(tests/verbs/run.sh)/guest/usr/include" BUILD_ONLY=native_tests \
		tests/native/run.sh
	$(BIN)/python -m tests.warm.parents
	$(IN_VM) tests/verbs $(ARGS)

test-verbs-short: $(READY) ## Of these, run the conformance tests: two to five minutes.
	$(BIN)/python -m tests.warm.parents
	$(IN_VM) tests/verbs/test_conformance.py $(ARGS)

check: format lint types native-tests ## Check format, style, types, and the C++ under sanitizers.

format: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(FORMATTED)

lint: $(READY)
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

native-tests: $(READY)
	@tools/need.sh doctest
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/native/run.sh $(ARGS)

bench: $(READY) ## Measure allreduce over all sizes (ARGS="-n 4 --transport tcp" for more).
	$(BIN)/collectives bench allreduce -n 2 -c 1 $(ARGS)

dev: $(READY) ## Only set up .venv, with this folder installed so that Python changes take effect at once.
	@echo "Ready. Use $(BIN)/python, or: . $(BIN)/activate"

frameworks: $(FRAMEWORKS) ## Only fetch TensorFlow, PyTorch and JAX.

docs: $(READY) ## Write the pages of docs/ that are generated.
	$(BIN)/python -m tools.api_reference
	$(BIN)/python -m tools.decision_index
	$(BIN)/python -m tools.performance_page
	$(BIN)/python -m tools.layers_drawing

build: $(READY) ## Make the source archive and the wheel, in dist/.
	$(BIN)/python -m build --outdir dist .

package: $(READY) ## Make both, install the wheel elsewhere, and use it.
	$(BIN)/python tools/check_package.py

tensorflow: $(READY) ## Test one wheel with the oldest and the newest TensorFlow. Fetches both.
	$(BIN)/python -m tools.check_tensorflow

transports: $(READY) ## Build without each transport in turn, and run the conformance suite with the others.
	$(BIN)/python -m tools.check_transports $(ARGS)

launchers: $(READY) ## Start a job with every launcher of docs/launchers.md. Fetches three MPIs.
	$(BIN)/python -m tools.check_launchers $(ARGS)

clean: ## Remove everything that was made, .venv too.
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The requirements of lists in pyproject.toml, for what is installed while this folder is compiled.
listed = sed -n '/^\($(1)\) = \[/,/^\]/s/^ *"\(.*\)",.*/\1/p' pyproject.toml

$(FRAMEWORKS): pyproject.toml | $(PACKAGES)
	$(call listed,frameworks\|integrations) >$@.txt
	$(PIP) -r $@.txt
	@touch $@

$(BIN)/python:
	@tools/need.sh python compiler
	$(PYTHON) -m venv $(VENV)

# The engine compiles while the other packages are fetched, so these must not replace what it is built with.
$(TOOLS): pyproject.toml | $(BIN)/python
	@tools/need.sh python compiler
	$(call listed,dependencies\|test\|dev) >$@.txt
	$(PIP) --constraint $@.txt $(BUILD_TOOLS)
	@touch $@

$(PACKAGES): pyproject.toml | $(TOOLS)
	$(call listed,dependencies\|test\|dev) >$@.txt
	$(PIP) -r $@.txt
	@touch $@

# Built without isolation, in a folder that stays: a change in one C++ file compiles that file alone.
$(ENGINE): $(NATIVE) | $(TOOLS)
	$(PIP) --no-build-isolation --no-deps -e .
	@touch $@

$(READY): $(ENGINE) $(PACKAGES)
	@touch $@
