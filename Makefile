# `make test` and `make demo` set up all they need on a machine with make and Python 3.10 or newer.
#
#   make test      the whole suite, as .ci/run calls it: lint, types, docs, oldest, suite
#   make suite     pytest over everything, against the built wheel; one part: make suite TESTS=tests/unit
#   make oldest    unit and contract tests and a few crawls against the oldest supported dependencies
#   make lint types docs wheel
#   make demo      a crawl that is killed KILLS times and loses nothing
#   make chaos     crawls killed ROUNDS times at random moments (make test does a few of them)
#   make bench     speed against Scrapy's own queues
#   make clean
#
# PYTHON selects the interpreter (default: the first one on the PATH that is new enough).

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && { echo $$python; break; }; done)
VENV ?= .venv
OLDEST ?= .venv-oldest
TESTS ?= tests
# Whole crawls that are run against the oldest dependencies as well.
SMOKE ?= tests/functional/test_endings.py tests/functional/test_kill.py tests/functional/test_two_processes.py \
	tests/functional/test_dupefilter.py tests/functional/test_checkpoint.py
KILLS ?= 2
ROUNDS ?= 100
BENCH ?=

export PIP_DISABLE_PIP_VERSION_CHECK = 1

BIN := $(VENV)/bin
VERSION := $(shell $(PYTHON) -c 'import platform; print(platform.python_version())' 2>/dev/null)
PIP = -m pip install -qq --no-warn-script-location
# Directories count as well, so that a removed file makes the wheel anew.
SOURCES := setup.cfg pyproject.toml README.md LICENSE $(shell find scrapy_ha -not -name '*.pyc' -not -name __pycache__)

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: test suite oldest lint types docs wheel demo chaos bench clean

test: lint types docs oldest suite

# The suite comes last, so that pytest's summary closes the output.
suite: $(VENV)/.test
	SCRAPY_HA_WHEEL=1 $(BIN)/pytest $(TESTS)

oldest: $(OLDEST)/.wheel
	SCRAPY_HA_WHEEL=1 $(OLDEST)/bin/pytest -q -p no:cacheprovider --ignore=tests/unit/test_wheel.py \
		tests/unit $(wildcard tests/contract $(SMOKE))

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

docs: $(VENV)/.docs
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs: docs/_build/html/index.html"

wheel: $(VENV)/.wheel
	@ls $(VENV)/dist/*

demo: $(VENV)/.wheel
	$(BIN)/python example_project/demo/run.py --kills $(KILLS)

chaos: $(VENV)/.test
	SCRAPY_HA_WHEEL=1 CHAOS_ROUNDS=$(ROUNDS) $(BIN)/pytest -s tests/chaos

bench: $(VENV)/.wheel
	$(BIN)/python benchmarks/run.py $(BENCH)

clean:
	rm -rf $(VENV) $(OLDEST) build dist *.egg-info docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis

# --- set-up; each stamp file says that its step is done ----------------------

define make_venv
	@test -n "$(VERSION)" || { echo "No Python 3.10 or newer found: install one, or say make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "$(PYTHON) is Python $(VERSION); 3.10 or newer is needed" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { test "$$CI" = true && test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq -y python3-venv; } \
		|| { echo "$(PYTHON) cannot make virtual environments: apt-get install python3-venv" >&2; exit 1; }
	rm -rf $(1)
	$(PYTHON) -m venv $(1)
endef

# An environment of another Python version is made anew.
$(VENV)/.python-$(VERSION):
	$(call make_venv,$(VENV))
	$(BIN)/python $(PIP) build 'setuptools>=77'
	@touch $@

$(OLDEST)/.python-$(VERSION):
	$(call make_venv,$(OLDEST))
	@touch $@

# The wheel is built from the source distribution, so what the latter lacks is noticed.
$(VENV)/.wheel: $(VENV)/.python-$(VERSION) $(SOURCES)
	rm -rf $(VENV)/dist
	$(BIN)/python -m build --no-isolation --outdir $(VENV)/dist . >$(VENV)/build.log 2>&1 || { cat $(VENV)/build.log; exit 1; }
	$(BIN)/python $(PIP) $(VENV)/dist/*.whl
	$(BIN)/python $(PIP) --force-reinstall --no-deps $(VENV)/dist/*.whl
	@touch $@

$(VENV)/.test: $(VENV)/.wheel
	$(BIN)/python $(PIP) "$$(ls $(VENV)/dist/*.whl)[lint,test]"
	@command -v redis-server >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
		&& apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y redis-server; } \
		|| echo "No redis-server: tests that need one are skipped (apt-get install redis-server)" >&2
	@touch $@

$(VENV)/.docs: $(VENV)/.wheel
	$(BIN)/python $(PIP) "$$(ls $(VENV)/dist/*.whl)[docs]"
	@touch $@

$(OLDEST)/.wheel: $(OLDEST)/.python-$(VERSION) $(VENV)/.wheel tests/oldest.txt
	$(OLDEST)/bin/python $(PIP) -c tests/oldest.txt "$$(ls $(VENV)/dist/*.whl)[test]"
	$(OLDEST)/bin/python $(PIP) --force-reinstall --no-deps $(VENV)/dist/*.whl
	@touch $@
