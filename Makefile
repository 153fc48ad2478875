# Every target sets up what it needs by itself; a second call reuses the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test lint docs bench figures robustness mutation dist clean

# The paper's comparison on 5,000 digits, in minutes; a second call skips the runs that are complete.
demo: $(INSTALLED)
	$(BIN)/torchdcls compare digits --variants stock bilinear triangle gauss --seeds 0 1 --jobs 2 --folder runs/demo trainer.epochs=3

# Two workers of one thread each suit small tensors better than one worker of two threads.
test: $(INSTALLED) lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -q

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site, in site/; whatever is wrong with a page stops it.
docs: $(INSTALLED)
	$(BIN)/python -m docs.tools.build

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

# Those in docs/figures/cifar10 come from the comparison that docs/compare.md describes.
figures: $(INSTALLED)
	$(BIN)/python docs/figures/draw.py
	$(BIN)/python docs/figures/draw_convolution.py
	$(BIN)/python docs/figures/draw_mathematics.py
	$(BIN)/python docs/figures/draw_cost.py
	$(BIN)/python docs/figures/draw_delays.py
	$(BIN)/python -m docs.figures.draw_fit_error
	$(BIN)/torchdcls plot paper --output docs/figures/paper

# Thousands of random configurations, valid and invalid, against the oracles.
robustness: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.robustness

# Faults put into the code, and how many of them the tests find.
mutation: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation interpolation kernel convolution/spectral surgery --write

# sdist and wheel in dist/, checked, installed elsewhere and used there.
dist: $(INSTALLED)
	$(BIN)/python -m tests.distribution

clean:
	rm -rf $(VENV) build dist site .cache src/*.egg-info

# The stamp is newer than the two files that say what to install, or the install runs again.
$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@
