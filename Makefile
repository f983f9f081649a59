# Two commands do all the set-up: `make demo` runs the strategy comparison, `make test` all tests; both make .venv first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# Ranks of the demo; without it one for each core, 2 to 4: more than cores would mostly measure the wait for a core.
RANKS ?=
SECONDS ?= 600
SEED ?=
# Many tests wait for something, so two at a time take half as long, also on two cores. Without the last option those
# files would be left for the end that have the fewest tests, and some of these take longest.
WORKERS ?= 2
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# What runs once more without shared memory: calls and deaths of ranks, whose tests leave the transport to the machine.
ON_GLOO = $(patsubst %,tests/collectives/%.py,\
  $(addprefix calls/test_,async functions refusals) $(addprefix runtime/test_,faults fingerprint destroyed_groups) \
  $(addprefix integrations/test_,backend compile ddp ddp_hook fsdp))
$(foreach file,$(ON_GLOO),$(if $(wildcard $(file)),,$(error no such file: $(file))))

# The tests start hundreds of programs: their code is compiled once, also where Python is told not to keep that.
unexport PYTHONDONTWRITEBYTECODE

FIGURES ?=
LOGS ?=
# A picture of a page: $(call screenshot,PAGE,PICTURE,WIDTH,HEIGHT).
CHROMIUM ?= chromium
screenshot = $(CHROMIUM) --headless --no-sandbox --hide-scrollbars --screenshot=$(abspath $(2)) --window-size=$(3),$(4) "file://$(CURDIR)/$(1)" 2> /dev/null

.PHONY: demo test test-all gallery fuzz lint docs figures pictures wheel clean help

help:
	@echo "make demo      the strategy comparison on 2 to 4 local ranks (one a core, or RANKS=4): predict, train, measure;"
	@echo "               leaves report/"
	@echo "make test      all tests but the long sweeps"
	@echo "make test-all  all tests, with more random examples, as .ci/run has it, and the calls of collectives once more"
	@echo "               with ranks that share no memory"
	@echo "make gallery   programs on transformers, Lightning, DeepSpeed and others, which it installs, recorded unchanged"
	@echo "make fuzz      random attacks for SECONDS=600, from a SEED that it prints if none is given"
	@echo "make lint      ruff, mypy, that imports point one way, words and names, and that no published figure is"
	@echo "               older than the code"
	@echo "make docs      this documentation as a site: leaves site/index.html"
	@echo "make figures   measures the published figures again (130 minutes, as root for the testbed), draws the pictures;"
	@echo "               FIGURES='steps training' measures these; LOGS=FOLDER those of public logs, too"
	@echo "make pictures  the pictures in docs/"
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
	@cores=$$($(BIN)/python -c 'from ringsim.limits import available_cores; print(int(available_cores()))') && \
	ranks=$(if $(RANKS),$(RANKS),$$((cores < 2 ? 2 : cores > 4 ? 4 : cores))) && \
	echo "make demo: $$ranks ranks; cores: $$cores; RANKS=4 make demo starts 4 ranks" && \
	$(BIN)/torchrun --standalone --nproc-per-node $$ranks scripts/train_ring.py --output report

test: $(VENV)/installed-dev
	$(PYTEST) -m "not slow" --fail-over-budget

test-all: $(VENV)/installed-dev
	$(PYTEST) --hypothesis-profile=all
	COLLECTIVES_TRANSPORT=gloo $(PYTEST) -m "not slow" $(ON_GLOO)

gallery: $(VENV)/installed-dev
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
	  'transformers>=5.24,<6' 'accelerate>=1.15,<2' 'lightning>=2.6,<3' triton 'deepspeed>=0.19,<1'
	$(PYTEST) tests/gallery

fuzz: $(VENV)/installed-dev
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python scripts/lint.py
	$(BIN)/python scripts/figures.py --check

docs: $(VENV)/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

figures: $(VENV)/installed-dev
	$(BIN)/python scripts/figures.py $(FIGURES) $(if $(LOGS),--logs $(LOGS))
	$(if $(FIGURES),,rm -rf build/ladder)
	$(MAKE) pictures

build/ladder/memory.png: $(VENV)/installed
	$(BIN)/torchrun --standalone --nproc-per-node 4 scripts/train_ring.py --steps 40 --output build/ladder \
	  --strategies none,ddp,zero1,zero2,zero3,fsdp

# The figure "strategies" leaves build/strategies-4; without it the pictures of that run stay as they are.
pictures: $(VENV)/installed build/ladder/memory.png
	$(BIN)/ringsim plot --ranks 4 --size 1MiB --reduce-bandwidth 5GB/s -o docs/ring.png
	$(BIN)/ringsim sweep --network dgx-h100-cluster --ranks 2:16 --sizes 4KiB:1GiB -o docs/sweep.png
	mkdir -p build
	$(BIN)/ringsim calibrate examples/logs/*-1node.log examples/logs/*-2nodes.log -o build/synthetic-example.toml
	$(BIN)/ringsim compare examples/logs/all_reduce-8nodes.log --network build/synthetic-example.toml -o build/compared
	cp build/compared/times.png docs/compared.png
	$(BIN)/torchrun --standalone --nproc-per-node 2 scripts/draw_step.py docs/measured-step.png
	$(BIN)/ringsim plot --network docs/networks/slow-link.toml --ranks 4 --size 16MiB -o docs/slow-link.png
	$(BIN)/ringsim ddp --layers docs/models/transformer.toml --network build/synthetic-example.toml --backend nccl --ranks 16 \
	  --bucket-cap-mb 32 -o docs/ddp.png
	sed -n '/<!-- file: train.py -->/,/^```$$/p' docs/tutorials/my-script.md | sed '1,2d;$$d' > build/train.py
	$(BIN)/ringsim trace --fake --ranks 128 -o build/step.trace.json build/train.py
	$(BIN)/ringsim step build/step.trace.json --network dgx-h100-cluster --gpu h100 --roofline --tokens 8192 -o docs/step.png
	$(BIN)/python scripts/draw_idea.py docs/idea.svg
	$(BIN)/python scripts/draw_accuracy.py docs/accuracy.png
	$(BIN)/ringsim animate --ranks 4 --size 1MiB --reduce-bandwidth 5GB/s -o build/ring.html
	$(call screenshot,build/ring.html#t=0.4,docs/animation.png,1280,980)
	$(BIN)/python scripts/draw_ring.py build/ring.html docs/ring.gif --chromium $(CHROMIUM)
	cp build/ladder/memory.png docs/zero.png
	test ! -e build/strategies-4/report.png || cp build/strategies-4/report.png docs/report.png
	test ! -e build/strategies-4/report.html || $(call screenshot,build/strategies-4/report.html,docs/report-page.png,1100,1000)

wheel: $(VENV)/installed-dev
	rm -rf dist
	$(BIN)/python -m build -o dist
	$(PYTHON) -m venv dist/venv
	dist/venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt dist/*.whl
	cd dist && venv/bin/ringsim verify --ranks 8 && venv/bin/ringsim plot --ranks 4 -o ring.png
	cd dist && venv/bin/ringsim animate --ranks 4 -o ring.html && venv/bin/python -m ringsim networks

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis report site
