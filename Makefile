# make run    start the app            make test   everything that CI runs (sets itself up)
# make check  format, lint, types, tests            make bench  benchmarks    make shots  pictures
# make parity compare with vLLM 0.26.0's own scheduler, live (installs it, 2.2 GB)
VENV ?= .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
JOBS ?= 2
# Packages are compiled to bytecode when they are first imported, not all of them when installed: that
# would take minutes. It is kept, whatever the shell says: a run of the tests starts many interpreters.
PIP := -m pip install --quiet --disable-pip-version-check --no-compile
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run check test lint types format bench shots clean setup warm-up parity parity-setup bench-vllm

setup: $(STAMP)

$(STAMP): requirements.txt requirements-dev.txt requirements-ray.txt
	test -x $(PY) || python3 -m venv $(VENV)
	$(PY) $(PIP) -r requirements-dev.txt
	touch $(STAMP)

run: setup
	$(VENV)/bin/streamlit run app.py

format: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

lint: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .

types: setup
	$(VENV)/bin/mypy

# The core is compiled once and cached before the workers start, so that they do not all compile it.
warm-up: setup
	$(PY) -m engine warm-up

# Browser tests come first by name, and are left there: they take longest, and would else be the tail.
# WITH_PARITY=1 adds those of make parity: in one run the tests are collected once, and no process waits
# for another's last test in between.
ifdef WITH_PARITY
test: parity-setup
test: export KV_REPLAY_REQUIRE_PARITY := 1
endif
test: warm-up
	$(PY) -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(if $(WITH_PARITY),,-m "not parity")

# vLLM's scheduler in an environment of its own, unless KV_REPLAY_VLLM_PYTHON names an interpreter that
# has it. vLLM goes in without its needs, which would bring several GB of CUDA packages. torch comes in
# the build that pip finds: set PIP_INDEX_URL or PIP_EXTRA_INDEX_URL to where its CPU builds are.
VLLM_VENV := .venv-vllm
VLLM_PIP := $(VLLM_VENV)/bin/python $(PIP)
ifndef KV_REPLAY_VLLM_PYTHON
VLLM_STAMP := $(VLLM_VENV)/.installed
endif

$(VLLM_VENV)/.installed: requirements-parity.txt
	test -x $(VLLM_VENV)/bin/python || python3 -m venv $(VLLM_VENV)
	$(VLLM_PIP) torch==2.13.0
	$(VLLM_PIP) --no-deps vllm==0.26.0 xgrammar==0.2.9
	$(VLLM_PIP) --no-warn-conflicts -r requirements-parity.txt
	touch $@

parity-setup: $(VLLM_STAMP)

parity: warm-up parity-setup
	KV_REPLAY_REQUIRE_PARITY=1 $(PY) -m pytest -n $(JOBS) --dist worksteal -m parity

check: lint types test

bench: setup
	for script in simulator_speed cost_model_error measured_runs cheapest_vs_pure stat_logger_cost torch_overheads calibration_cpu; do \
	  $(PY) benchmarks/$$script.py || exit 1; \
	done

bench-vllm: setup $(VLLM_STAMP)
	$(PY) benchmarks/scheduler_vs_vllm.py
	$(PY) benchmarks/recording_overhead.py

shots: setup
	$(PY) -m docs.make_pictures

clean:
	rm -rf $(VENV) $(VLLM_VENV) artifacts .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The bundled recordings: the pair that the app opens with, one sample under both modes on one 24 GB card;
# and a pair that the torch engine measures (`make samples-measured`, some ten minutes on a quiet machine).
SAMPLE := traces/samples/recordings
.PHONY: samples
samples: setup
	for mode in recompute swap; do \
	  $(PY) -m engine simulate sample:chat --out $(SAMPLE)/chat-$$mode --overwrite --preemption $$mode \
	    --model llama-3.1-8b --device rtx-4090 --kv-tokens 41408 --max-model-len 16384 --blocks || exit 1; \
	done

.PHONY: samples-measured
samples-measured: setup
	for mode in recompute swap; do \
	  rm -rf artifacts/smollm2-$$mode $(SAMPLE)/smollm2-$$mode; \
	  $(PY) -m engine run sample:smollm2 --out artifacts/smollm2-$$mode --preemption $$mode \
	    --model smollm2-135m-instruct --torch-device cpu --threads 1 --kv-tokens 1024 --max-num-seqs 16 \
	    --max-num-batched-tokens 512 --num-host-blocks 128 --blocks || exit 1; \
	  $(PY) -m traces pack artifacts/smollm2-$$mode $(SAMPLE)/smollm2-$$mode || exit 1; \
	done

# The table of the bundled sweep (a few minutes on two cores).
.PHONY: samples-sweep
samples-sweep: setup
	$(PY) -m engine sweep traces/samples/sweeps/chat.toml --out artifacts/sweep-chat
	cp artifacts/sweep-chat/sweep.parquet traces/samples/sweeps/chat.parquet
