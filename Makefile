# Every target sets itself up: a fresh clone needs Python >= 3.11, make and the package registry.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
READY  := $(VENV)/ready

.PHONY: demo test lint test-slow promises benchmark audit format clean

demo: $(VENV)/demo  ## the uniformity-tolerance dilemma on the built-in digits, in a few minutes
	$(BIN)/contrapose demo

test: lint  ## lint, type-check and run the ordinary suite
	$(BIN)/python -m pytest -n $(JOBS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: $(READY)  ## the whole suite, full counts
	$(BIN)/python -m pytest -m ''

# The page is written even if a promise is broken, and the exit status says so. One process: seconds are measured.
promises: $(READY)  ## the full counts of every promise: promises.jsonl, and a page of them in reports/promises.html
	rm -f promises.jsonl
	HYPOTHESIS_PROFILE=full $(BIN)/python -m pytest -m '' tests/promises; status=$$?; \
	$(BIN)/python tests/promises_page.py promises.jsonl -o reports/promises.html && exit $$status

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(READY)  ## our losses beside lightly and pytorch-metric-learning
	$(BIN)/pip install --quiet -e '.[benchmark]'
	$(BIN)/python benchmarks/losses.py

audit: $(READY)  ## known vulnerabilities of the installed packages; needs a network
	$(BIN)/pip install --quiet 'pip-audit>=2.9'
	$(BIN)/pip-audit --skip-editable

$(VENV)/demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[train]'
	touch $@

# Installed again only when the list of dependencies changes.
$(READY): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -e '.[test,lint]'
	touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
