# Two commands for a fresh clone: `make demo` and `make test`. Each sets up what it needs in
# .venv; a second call finds that done. Another interpreter: make PYTHON=python3.12 demo

NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p $(NEW_ENOUGH) && echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt
# On all cores; pip has one, for 200 MB. Some packages have files that are no Python of today.
COMPILE := $(BIN)/python -m compileall -qq -j 0 .venv || true
PYTEST := --numprocesses auto --dist worksteal
INPUTS := pyproject.toml methods/pyproject.toml constraints.txt

.PHONY: demo test fuzz lint coverage notebooks docs release clean

demo: .venv/demo.stamp
	rm -rf demo-output
	$(BIN)/maxslices demo demo-output

test: .venv/test.stamp
	@# At once, as each needs one core: together 63 s of processor time (2026-11-27).
	$(MAKE) --jobs 2 lint docs
	@# Everything else is tested with the folder of networks away, then the networks.
	$(BIN)/python -m tests.without_networks $(PYTEST)
	$(BIN)/python -m pytest tests/nn tests/test_*.py src/maxslices/nn $(PYTEST)

# Seconds of the attack with damaged input, under a new seed, which it prints.
FUZZ_SECONDS ?= 3600

fuzz: .venv/test.stamp
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

lint: .venv/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/codespell
	$(BIN)/codespell --dictionary docs/avoided_words.txt *.md docs/*.md docs/*/*.md
	$(BIN)/mypy

# Lines that the suite runs without a GPU, in percent, at least. On 2026-11-24 folders were measured one by one: 85.1
# without tests/methods, demo, cluster, system, fuzz and two thirds of tests/nn, for which the time was short; 90 without
# networks. 1.2 of these are lines that run before --cov begins, as pytest imports maxslices, which is a plugin.
FLOOR ?= 83

coverage: .venv/test.stamp
	@# Without a tracer, which disturbs tests of time and memory: Python 3.12 and newer.
	COVERAGE_CORE=sysmon $(BIN)/python -m pytest $(PYTEST) --cov --cov-fail-under=$(FLOOR)

# Executes the tutorials; `make docs` then shows what they printed.
notebooks: .venv/notebooks.stamp
	$(BIN)/python docs/scripts/notebooks.py

# What the tests need has it all; alone, the docs need neither torch nor httomo.
docs: $(or $(wildcard .venv/test.stamp),.venv/docs.stamp)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

# Checks and builds what is committed, and stops before uploading: dist has the files for twine.
release: .venv/test.stamp
	@git diff-index --quiet HEAD || { echo "commit or put away what has changed first" >&2; exit 1; }
	@test -z "$$(find changes -name '*.md' ! -name README.md)" || { \
		echo "write the changelog first: towncrier build --version X.Y.Z" >&2; exit 1; }
	$(MAKE) test
	$(PIP) build twine
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m build --outdir dist methods
	$(BIN)/python -m twine check --strict dist/*
	@echo "to upload: $(BIN)/python -m twine upload dist/*"

clean:
	rm -rf .venv docs/_build demo-output dist

.venv/bin/python:
	@$(or $(PYTHON),false) $(NEW_ENOUGH) || { echo "Python 3.11 or newer is needed," \
		"and $(if $(PYTHON),$(PYTHON) is older or missing,none was found); name one:" \
		"make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv .venv || { rm -rf .venv; exit 1; }

.venv/demo.stamp: .venv/bin/python $(INPUTS)
	@echo "installing maxslices with what the demo needs into .venv (once)"
	$(PIP) --editable '.[demo]' --editable ./methods
	@$(COMPILE)
	@touch $@

.venv/docs.stamp: .venv/bin/python $(INPUTS)
	@echo "installing maxslices with what its docs need into .venv (once)"
	$(PIP) --editable '.[docs]' --editable ./methods
	@$(COMPILE)
	@touch $@

.venv/notebooks.stamp: .venv/test.stamp
	@echo "installing what executes notebooks into .venv (once)"
	$(PIP) --editable '.[notebooks]' --editable ./methods
	@$(COMPILE)
	@touch $@

.venv/test.stamp: .venv/bin/python $(INPUTS)
	@echo "installing maxslices with what its tests need into .venv (once)"
	@# The CPU's build, where torch's own index can be reached: others are several GB larger.
	$(PIP) --retries 0 --extra-index-url https://download.pytorch.org/whl/cpu 'torch>=2.6,<3'
	$(PIP) --editable '.[dev,torch]' --editable ./methods loguru tqdm
	@# Its networks are tested; it asks for torchvision, torchaudio and tensorboard too.
	$(PIP) --no-deps spikingjelly
	@# Beside the environment: their own requirements (CuPy, one NumPy) must not be met here.
	$(PIP) --no-deps --upgrade --target .venv/httomo \
		httomo-backends httomolib httomolibgpu
	@$(COMPILE)
	@touch $@
