# Two commands do all the set-up: `make demo` runs the strategy comparison, `make test` all tests; both make .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RANKS ?= 4
SECONDS ?= 600
SEED ?=
# Many tests wait for something, so two at a time take half as long, also on two cores. Without the last option those
# files would be left for the end that have the fewest tests, and some of these take longest.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# The tests start hundreds of programs: their code is compiled once, also where Python is told not to keep that.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all fuzz lint docs bench fidelity picture wheel clean help

help:
	@echo "make demo      the strategy comparison on $(RANKS) local ranks: predict, train, measure; leaves report/"
	@echo "make test      all tests but the long sweeps"
	@echo "make test-all  all tests, and those of collectives once more with ranks that share no memory"
	@echo "make fuzz      random attacks for SECONDS=600, from a SEED that it prints if none is given"
	@echo "make lint      ruff, mypy, and that imports point one way"
	@echo "make docs      this documentation as a site: leaves site/index.html"
	@echo "make bench     how fast the simulator is, beside SimPy; our collectives and strategies, beside torch's"
	@echo "make fidelity  how far off predictions are here: measures for half an hour, as root for the testbed"
	@echo "make picture   the pictures in docs/"
	@echo "make wheel     builds the distributions, and tries the wheel in an environment of its own, without torch"

# What is installed is recorded in files, so that nothing is installed twice.
$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[torch]'
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/installed-docs: $(VENV)/installed
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

demo: $(VENV)/installed
	$(BIN)/torchrun --standalone --nproc-per-node $(RANKS) scripts/train_ring.py --output report

test: $(VENV)/installed-dev
	$(PYTEST) -m "not slow"

test-all: $(VENV)/installed-dev
	$(PYTEST)
	COLLECTIVES_TRANSPORT=gloo $(PYTEST) tests/collectives

fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: $(VENV)/installed-dev
	$(BIN)/python scripts/bench_simulator.py --large
	$(BIN)/python scripts/bench_collectives.py
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 4 scripts/bench_polling.py
	OMP_NUM_THREADS=1 $(BIN)/torchrun --nproc-per-node 2 scripts/bench_steps.py
	OMP_NUM_THREADS=1 $(BIN)/python scripts/bench_trainers.py

fidelity: $(VENV)/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python scripts/fidelity.py -o fidelity --write docs/accuracy.md

picture: $(VENV)/installed
	$(BIN)/ringsim plot --ranks 4 --size 1MiB --reduce-bandwidth 5GB/s -o docs/ring.png
	$(BIN)/ringsim animate --ranks 4 --size 1MiB --reduce-bandwidth 5GB/s -o docs/ring.gif
	$(BIN)/ringsim sweep --network gbe --network dgx-h100-cluster --ranks 2:32 --sizes 4KiB:1GiB -o docs/sweep.png
	$(BIN)/ringsim ddp --layers docs/models/transformer.toml --network ib-100g --ranks 8 --bucket-cap-mb 1:128 \
	  --scaling 2:32 -o docs/ddp.png
	mkdir -p build
	sed -n '/<!-- file: train.py -->/,/^```$$/p' docs/tutorials/my-script.md | sed '1,2d;$$d' > build/train.py
	$(BIN)/ringsim trace --fake --ranks 128 -o build/step.trace.json build/train.py
	$(BIN)/ringsim step build/step.trace.json --network dgx-h100-cluster --gpu h100 -o docs/step.png

wheel: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m build -o dist
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt dist/*.whl
	cd dist && venv/bin/ringsim verify --ranks 8 && venv/bin/ringsim plot --ranks 4 -o ring.png
	cd dist && venv/bin/ringsim animate --ranks 4 -o ring.html && venv/bin/python -m ringsim networks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis report site
