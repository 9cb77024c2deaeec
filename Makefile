# Every target sets itself up: the only thing needed beforehand is Python 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_STAMP := $(VENV)/.installed-bench
TEST_ARGS ?=

.PHONY: demo test test-long check bench chaos paper proto clean

demo: $(STAMP) ## Train, release, drift, retrain: the whole loop, small, with a report in demo/
	$(BIN)/fedloop simulate breast-cancer --out demo --force

test: $(STAMP) ## All tests but those of `make test-long`
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup -m "not long" $(TEST_ARGS)

test-long: $(STAMP) ## Tests over whole deployments, one after the other: what dies, comes, goes, lies and attacks
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m long $(TEST_ARGS)

check: $(STAMP) ## Style, types, layers, fresh generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate_references.py --check

bench: $(BENCH_STAMP) ## Benchmarks; add SHORT=--short for the short form
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/simulate.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/acceptance.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/round_overhead.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/aggregate.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/dpsgd.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/sizing.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/secagg.py $(SHORT)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/data.py $(SHORT)

chaos: $(STAMP) ## Kill each process of a real deployment in each phase of a run, and rehearsals at random moments; SHORT=--short for a few
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/chaos.py $(SHORT)

paper: $(STAMP) ## Published tables beside ours; DATA=folder with UCI's heart files, else they are downloaded after asking
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/paper.py $(if $(DATA),--data $(DATA)) $(SHORT)

proto: $(STAMP) ## Write the Python code of the .proto files anew
	$(BIN)/python proto/generate.py

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,bench]'
	touch $@

clean:
	rm -rf $(VENV) demo runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
