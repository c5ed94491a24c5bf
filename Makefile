# Two commands work from a bare checkout: `make train` and `make test`. Both make .venv first; later calls are quick.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV   := .venv
BIN    := $(VENV)/bin
# The CPU build, by name and first: an open range would pull several GB of CUDA libraries.
TORCH  := torch==2.13.0
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# verl's own transformers and tensordict; torch first here too.
VERL := .venv-verl
# Environments of their own for frameworks whose pins conflict; each has a target test-host-NAME.
HOSTS  := verl trl tunix
# What `make bench` runs. Those that compare with TRL do so where TRL_PYTHON names an interpreter that has trl and qae.
BENCHMARKS := $(filter-out benchmarks/harness.py benchmarks/entropy_curves.py,$(sort $(wildcard benchmarks/*.py)))
export TRL_PYTHON
# What `make train` trains: make train ARGS="stage steps=20"
ARGS   ?=

.PHONY: install train test test-hosts test-host-verl test-host-trl test-host-tunix check check-long bench docs study-policies study-figures clean

install: $(VENV)/.installed-core

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed-core: pyproject.toml constraints/cpu.txt | $(BIN)/python
	@echo "installing torch, then qae, into $(VENV) (a minute or two the first time)"
	$(PIP) $(TORCH)
	$(PIP) --constraint constraints/cpu.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-core
	@echo "installing what the checks and tests need"
	$(PIP) --constraint constraints/cpu.txt --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-core
	$(PIP) --constraint constraints/cpu.txt --editable '.[docs]'
	@touch $@

train: install
	$(BIN)/qae train $(ARGS)

# One thread and one worker for each processor: the tests' tensors are too small to share out.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --benchmark-disable --durations=10

check: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright

check-long: check $(VERL)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "slow and not verl" --timeout=3600 --benchmark-disable
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -m "slow and verl" -W default tests/engines --timeout=3600 -s

test-hosts: $(addprefix test-host-,$(HOSTS))
	@$(if $(HOSTS),true,echo "no host environments yet")


$(VERL)/.installed: pyproject.toml constraints/verl.txt
	@echo "installing torch, verl and qae into $(VERL) (three minutes the first time)"
	$(PYTHON) -m venv $(VERL)
	$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	$(VERL)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints/verl.txt \
	    --editable '.[verl]' beartype hypothesis pytest pytest-randomly pytest-timeout
	@touch $@

# verl and Ray warn of their own deprecations: not ours to turn into errors.
test-host-verl: $(VERL)/.installed
	OMP_NUM_THREADS=1 $(VERL)/bin/python -m pytest -m "verl and not slow" -W default tests/integrations/verl tests/engines --durations=10 -s

TRL := .venv-trl
TUNIX := .venv-tunix
HOST_TESTS := beartype hypothesis psutil pytest pytest-randomly pytest-timeout pytest-xdist

$(TRL)/.installed $(TUNIX)/.installed: .venv-%/.installed: pyproject.toml constraints/%.txt
	@echo "installing torch, $* and qae into .venv-$* (minutes the first time)"
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH)
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints/$*.txt \
	    --editable '.[$*]' $(HOST_TESTS)
	@touch $@

test-host-trl: $(TRL)/.installed
	OMP_NUM_THREADS=1 $(TRL)/bin/python -m pytest -m trl --numprocesses=auto tests/integrations/trl --durations=10

# JAX, Flax and Tunix warn of one another: not ours to turn into errors.
test-host-tunix: $(TUNIX)/.installed
	OMP_NUM_THREADS=1 $(TUNIX)/bin/python -m pytest -m tunix -W default tests/integrations/tunix --durations=10

# Goes on past a script that fails, and names it at the end. Code 77: left out, with its reason on stderr.
bench: $(VENV)/.installed-dev
	@failed=; for script in $(BENCHMARKS); do \
		echo "== $$script" >&2; $(BIN)/python $$script; code=$$?; \
		[ $$code -eq 0 ] || [ $$code -eq 77 ] || failed="$$failed $$script"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The tiny policy with other supervised seeds, for studies/knob.yaml.
study-policies: install
	@for seed in 10 20; do [ -e studies/policies/tiny-$$seed/model.safetensors ] || \
		$(BIN)/python scripts/teach_tiny.py --seed $$seed --out studies/policies/tiny-$$seed || exit 1; done

# Tables and figures of docs/study.md, from the kept summaries.
study-figures: install
	@test -n "$(wildcard studies/results/*.json)" || { echo "no summary in studies/results yet: run a study, keep its summary.json" >&2; exit 1; }
	$(BIN)/qae study --redraw $(sort $(wildcard studies/results/*.json)) --out docs/study

clean:
	rm -rf $(VENV) $(VERL) $(TRL) $(TUNIX) build dist site .pytest_cache .ruff_cache .import_linter_cache
