# All set-up is done by the targets themselves: they make .venv with whatever Python 3.11+ is found.

VENV   := .venv
STAMP  := $(VENV)/.installed
DEMO   := $(VENV)/.runnable
EXTRAS := test

# Most tests wait for servers and clocks, so there may be more of them at once than there are cores. They run in forks of the
# process that has collected them (tests/cluster/forkedworkers.py), not in new interpreters as those of pytest-xdist. What
# fails while the machine is busy is tried again; the summary tells of it.
PARALLEL := --forks 10 -p no:xdist --reruns 2 -r R

# The unit tests: of each module of the package, and so of all that can depend on the version of Python. The others run whole
# operators, mostly as processes.
UNIT := tests/cogs tests/core tests/kits tests/public tests/sandbox

# These only read the sources, as the linters do.
READING := tests/style tests/core/test_owners.py $(addprefix tests/docs/test_,changelog.py messages.py pages.py pictures.py \
	redirects.py references.py)

# The operators of other tests, which handle all namespaces, would change the objects of the first two on a shared control
# plane. The webhooks of the others are called for all namespaces, and the API refuses the objects of other tests while their
# operators are gone.
APART := $(addprefix tests/e2e/test_,clients.py kubectl.py webhooks.py webhook_service.py)

# These measure how soon something happens, so nothing else may run.
TIMED := $(addprefix tests/e2e/test_,election.py sharding.py)

# Deferred on purpose: looked for only when .venv has to be made.
PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11 python,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(name))))

.DEFAULT_GOAL := help
.PHONY: help venv test long unit e2e e2e-together e2e-apart e2e-timed lint demo docs bench

help:  ## show this list
	@sed -n 's/^\([a-z0-9]*\):.*## \(.*\)/  make \1	\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

venv: $(STAMP)  ## make .venv with everything for development

# Pytest keeps what it has made of the assertions, when the tests are loaded first.
test long unit: export PYTHONDONTWRITEBYTECODE :=
test: $(STAMP)  ## run the tests, on the sandbox where they need a cluster
	@$(VENV)/bin/python -m compileall -q kopf
	$(VENV)/bin/python -m pytest $(PARALLEL) $(addprefix --ignore=,$(READING))

long: $(STAMP)  ## run the tests that take too long for each run
	@$(VENV)/bin/python -m compileall -q kopf
	$(VENV)/bin/python -m pytest $(PARALLEL) --long

unit: $(STAMP)  ## run the unit tests alone; on another version of Python with VENV=.venv-3.13 PYTHON=python3.13
	@$(VENV)/bin/python -m compileall -q kopf
	$(VENV)/bin/python -m pytest $(PARALLEL) $(addprefix --ignore=,$(READING)) $(UNIT)

e2e:  ## run the end-to-end tests on a real control plane: that of KUBECONFIG, or with Go one of their own
	@$(MAKE) --no-print-directory e2e-together
	@$(MAKE) --no-print-directory e2e-apart
	@$(MAKE) --no-print-directory e2e-timed

e2e-together: $(STAMP)
	$(VENV)/bin/python -m pytest --cluster=real --forks 3 --whole-files -p no:xdist --reruns 2 -r R \
		$(addprefix --ignore=,$(APART) $(TIMED)) tests/e2e

e2e-apart: $(STAMP)
	$(VENV)/bin/python -m pytest --cluster=real --reruns 2 -r R $(APART)

e2e-timed: $(STAMP)
	$(VENV)/bin/python -m pytest --cluster=real --reruns 2 -r R $(TIMED)

lint: $(STAMP)  ## check style, types and layers, also by the tests that only read the sources
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/python -m pytest -q -p no:xdist $(READING)

demo: $(DEMO)  ## run the first example in a sandbox: needs no cluster
	@$(VENV)/bin/python scripts/demo.py

bench: $(STAMP)  ## compare CPU and memory with upstream kopf, and the ratios with the recorded ones; needs Go
	@scripts/bench.sh

docs: $(DEMO)  ## render docs/ into docs/_build; fails if a link leads nowhere
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	$(VENV)/bin/python -m sphinx -E -W --keep-going -q docs docs/_build  # -E: else, its index forgets the unchanged pages

# An interrupted attempt leaves a .venv without pip behind, which is then completed.
$(DEMO): pyproject.toml
	@test -x $(VENV)/bin/pip || test -n '$(PYTHON)' || { \
		echo "make: Python 3.11 or later is needed; found only: $$(python3 --version 2>&1)" >&2; \
		echo '      install one, or name it: make PYTHON=/path/to/python3' >&2; exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "make: $(PYTHON) cannot make a venv: install what is missing (on Debian and Ubuntu: apt install python3-venv)" >&2; \
		exit 1; }
	@test -x $(VENV)/bin/pip || $(PYTHON) -m venv $(VENV)
	@echo 'Installing kopf into $(VENV)'
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' || { \
		echo 'make: pip has failed, see above; it needs a package index that it can reach' >&2; exit 1; }
	@touch $@

# The demo does not wait for the tools, which are ten times as much.
$(STAMP): pyproject.toml | $(DEMO)
	@echo 'Installing its tools into $(VENV)'
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]' || { \
		echo 'make: pip has failed, see above; it needs a package index that it can reach' >&2; exit 1; }
	@$(VENV)/bin/python -m compileall -q kopf  # also where PYTHONDONTWRITEBYTECODE is set: it halves the time to start
	@PYTHONDONTWRITEBYTECODE= $(VENV)/bin/python -m pytest --collect-only -q >/dev/null || true  # compiles the tests
	@touch $@
