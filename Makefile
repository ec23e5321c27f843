# Every target sets up .venv by itself; see `make help`.
python = .venv/bin/python
simulate = .venv/bin/lightning-gaudi simulate
# A worker a core, up to four; tests of one file stay together, for what they share is made once.
pytest = $(python) -m pytest -n auto --maxprocesses 4 --dist loadfile
# Of a Gaudi server's environment, which has the vendor's torch: `make test-gaudi` alone uses it.
gaudi_python ?= python3

# Where it is set, each of the hundreds of processes that tests start compiles our sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-docs test-all faults test-gaudi lint types format check-wheel docs dist benchmarks clean

help:
	@echo "make demo        train BERT on real text on a simulated Gaudi 2 (about 5 minutes)"
	@echo "make test        the test suite without the slow tests"
	@echo "make test-docs   what the documents show: blocks of code, the site, links"
	@echo "make test-all    the whole test suite, and what is slow in it"
	@echo "make faults      twenty-two faults, done for real: what was measured of each"
	@echo "make test-gaudi  on a Gaudi server: the contract tests on its cards (docs/how-to/on-a-gaudi.md)"
	@echo "make lint types  ruff; mypy"
	@echo "make check-wheel train with the built wheel in fresh environments, with each extra alone"
	@echo "make dist        the same, and keep sdist and wheel in dist/"
	@echo "make benchmarks  what the simulator, the plugin and the recipes cost or gain, measured anew"
	@echo "make docs        the site, in build/site, without a network"
	@echo "make clean       remove .venv and what runs left behind"

setup:
	@scripts/setup.sh

demo: setup
	@PT_HPU_LAZY_MODE=1 $(simulate) --cards 1 --card gaudi2 -- \
		$(python) -m recipes.bert_pretraining.demo

test: setup
	$(pytest) -m "not slow and not docs"

test-all: setup
	$(pytest) -m "not faults" --durations 25 --durations-min 5

# Of the site, in a browser, and of what pages show: what takes a moment. `make test-all` has the rest.
test-docs: setup
	$(pytest) -m "docs and not slow" tests/documentation

# One at a time: they kill processes, fill disks and count seconds.
faults: setup
	$(python) -m pytest tests/faults -m faults

# Without `setup`: its torch is stock, and the cards need the vendor's.
test-gaudi:
	@$(gaudi_python) scripts/test_gaudi.py

lint: setup
	$(python) -m ruff check .
	$(python) -m ruff format --check .

types: setup
	$(python) -m mypy

format: setup
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

check-wheel: setup
	$(python) scripts/check_wheel.py

docs: setup
	NO_MKDOCS_2_WARNING=1 $(python) -m mkdocs build --strict --quiet
	@echo "build/site/index.html"

dist: setup
	$(python) scripts/check_wheel.py --output dist

# On an idle machine: it writes benchmarks/results anew.
benchmarks: setup
	$(python) -m benchmarks

clean:
	rm -rf .venv build dist *.egg-info runs lightning_logs .mypy_cache .pytest_cache .ruff_cache
