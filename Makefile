# Every target sets itself up: a fresh clone needs Python >= 3.11, make and the package registry.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
JOBS   ?= 2
READY  := $(VENV)/ready
OLDEST ?= .venv-oldest
OLDEST_TORCH := 2.6.0
# Without the tests of training and of torch.compile, which need more than the losses do.
OLDEST_TESTS := not lightly and not sentence_transformers and not training_with_labels and not unlabelled_data_set and not explain and not onednn and not cpu_cannot and not when_compiled
# Before Python starts: OpenMP reads it once, and tests that compare weights bit for bit need one thread in each worker.
# A file's tests share a worker, so that what they share is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What `make test-all` runs; `not slow and thorough` leaves out what `make test` has run.
TESTS  ?= not slow

.PHONY: docs demo test test-all lint test-slow test-oldest promises mutants benchmark audit lock format clean

demo: $(VENV)/demo  ## the uniformity-tolerance dilemma on small digits, in five minutes on two slow cores
	$(BIN)/contrapose demo

test: $(READY)  ## check the style and test: what every commit runs, six minutes on two slow cores
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(PYTEST) -m 'not slow and not thorough'

test-all: lint  ## type-check, and run the tests of `make test` with all further cases that end within seconds
	$(PYTEST) -m '$(TESTS)'

docs: $(READY)  ## the site, with a page for each loss and a gallery that it runs, in build/docs/html; four minutes on two slow cores
	$(BIN)/python docs/site/build.py build/docs
	@echo 'open build/docs/html/index.html'

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test-slow: $(READY)  ## the whole suite, all cases
	$(BIN)/python -m pytest -m ''

test-oldest: $(OLDEST)/ready $(OLDEST)-losses/ready  ## losses, and a short training, with the oldest versions that pyproject.toml allows
	$(OLDEST)-losses/bin/python -m pytest tests/losses tests/pairs tests/temperature tests/reduce -m 'not slow and not thorough' \
		--ignore tests/losses/test_attraction.py -k '$(OLDEST_TESTS)'
	$(OLDEST)/bin/python -m pytest tests/losses tests/pairs tests/promises/test_values.py tests/lab/training/checkpoints/test_state.py \
		--ignore tests/losses/test_attraction.py -k 'not lightly and not sentence_transformers'
	rm -rf $(OLDEST)/run
	$(OLDEST)/bin/contrapose train --data digits --limit 256 --batch 64 --epochs 1 --out $(OLDEST)/run

# The page is written even if a promise is broken, and the exit status says so. All cases of one test take minutes, and a
# timeout would end all tests.
promises: $(READY)  ## all cases of every promise: promises.jsonl, and a page of them in reports/promises.html
	rm -f promises.jsonl
	HYPOTHESIS_PROFILE=full $(PYTEST) -m '' --timeout 3600 tests/promises; status=$$?; \
	$(BIN)/python tests/promises_page.py promises.jsonl -o reports/promises.html && exit $$status

COUNT  ?= 100
SEED   ?= 0
mutants: $(READY)  ## changes COUNT places of the code, drawn by SEED, and prints which ones the tests do not notice; an hour
	$(BIN)/python tests/mutants.py --count $(COUNT) --seed $(SEED)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(READY)  ## our losses beside lightly and pytorch-metric-learning
	$(BIN)/pip install --quiet -e '.[benchmark]'
	$(BIN)/python benchmarks/losses.py

# Strict: without it, a registry that has no advisories passes for one without findings.
audit: $(READY)  ## known vulnerabilities of the packages in requirements-dev.lock; needs a network
	$(BIN)/pip install --quiet 'pip-audit>=2.9'
	$(BIN)/pip-audit --strict --no-deps --disable-pip -r requirements-dev.lock

# Packages for CUDA are for Linux alone, so that the file can be used elsewhere.
lock: $(READY)  ## writes the exact versions of the development environment to requirements-dev.lock
	{ echo '# Versions that the tests pass with; written by `make lock`. To install them:'; \
	  echo "#     pip install -e '.[test,lint]' -c requirements-dev.lock"; \
	  $(BIN)/python -c 'import platform as p; print("# Made on", p.system(), p.machine(), "with Python", p.python_version())'; \
	  $(BIN)/pip freeze --exclude-editable | sed -E 's/^(nvidia|cuda|triton)[^;]*$$/&; sys_platform == "linux"/'; \
	} > requirements-dev.lock

# The command line alone, which `make test` extends.
$(VENV)/demo: pyproject.toml
	@echo 'Installing PyTorch and the command line in $(VENV), a few minutes. On Linux this includes CUDA, several GB; the README'
	@echo 'says how to use the CPU build.'
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

$(OLDEST)/ready: pyproject.toml constraints-oldest.txt
	test -x $(OLDEST)/bin/python || $(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/pip install --quiet -c constraints-oldest.txt -e '.[train]' pytest pytest-timeout hypothesis scipy
	touch $@

$(OLDEST)-losses/ready: pyproject.toml
	test -x $(OLDEST)-losses/bin/python || $(PYTHON) -m venv $(OLDEST)-losses
	$(OLDEST)-losses/bin/pip install --quiet torch==$(OLDEST_TORCH) -e . numpy pytest pytest-timeout hypothesis scipy
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) $(OLDEST)-losses .pytest_cache .mypy_cache .ruff_cache .hypothesis
