# Every command of the project. The first run of each makes .venv and installs from constraints.txt.
PYTHON := $(or $(shell command -v python3.11 2>/dev/null),/usr/bin/python3.11)
RUN := .venv/bin/python
WORKER = @[ -x $(PYTHON) ] || { echo "python3.11 is missing: apt-get install python3.11 python3-pip" >&2; exit 1; }; $(PYTHON) scripts/bootstrap.py worker
DEV = @[ -x $(PYTHON) ] || { echo "python3.11 is missing: apt-get install python3.11 python3-pip" >&2; exit 1; }; $(PYTHON) scripts/bootstrap.py dev
SECONDS = 60

.PHONY: up test cover lint types check bench sim mutate fuzz faults clean

up: ; $(WORKER) && exec $(RUN) manage.py up
test: ; $(DEV) && exec $(RUN) -m pytest
cover: ; $(DEV) && $(RUN) -m coverage run -m pytest -q tests/policy && exec $(RUN) -m coverage report
lint: ; $(DEV) && $(RUN) -m ruff format --check . && $(RUN) -m ruff check . && .venv/bin/lint-imports
types: ; $(DEV) && exec $(RUN) -m mypy .
check: ; @exec .ci/run
bench: ; $(DEV) && exec $(RUN) scripts/suite.py bench "$(SUITE)"
sim: ; $(DEV) && exec $(RUN) scripts/suite.py sim "$(SCENARIO)"
mutate: ; $(DEV) && exec $(RUN) scripts/suite.py mutate "$(SUITE)"
fuzz: ; $(DEV) && exec $(RUN) scripts/suite.py fuzz "$(SUITE)" --seconds "$(SECONDS)"
faults: ; $(DEV) && exec $(RUN) scripts/suite.py faults "$(SUITE)" --seconds "$(SECONDS)"
clean: ; rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
