# On a machine with Python 3.11 or newer, `make run` runs the example and `make test` runs the tests.
# `make cluster` runs jobs on a Dask cluster of this machine. `make matrix` runs the tests with other versions of everything
# (needs uv and npm). `make chaos` injects faults, `make screenshots` takes the pictures of the docs. The environment is
# created in .venv by uv, or by venv and pip if uv is not installed.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := pyproject.toml
# What the environment for development is installed from, with hashes; `make test LOCK=` installs the newest versions instead.
LOCK ?= requirements/dev.txt

.PHONY: run cluster test matrix chaos lint bench screenshots docs lock clean

run: .venv/ready
	@sh docs/demo.sh $(BIN)/yamlsched

cluster: .venv/ready examples/dask/.venv/ready
	@sh examples/dask/cluster.sh $(BIN)

test: .venv/ready-dev
	$(BIN)/python -m pytest -n auto $(ARGS)

matrix: .venv/ready-dev
	$(BIN)/python -m tests.matrix --record $(ARGS)

chaos: .venv/ready-dev
	$(BIN)/python -m tests.chaos $(ARGS)

lint: .venv/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: .venv/ready-dev
	$(BIN)/python -m benchmarks $(ARGS)

screenshots: .venv/ready-dev
	$(BIN)/python -m tests.screenshots $(ARGS)

docs: .venv/ready-dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "the documentation is in var/site"

lock:
	uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes --no-emit-index-url --no-header \
		pyproject.toml -o requirements/dev.txt $(ARGS)
	uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
		-c requirements/dev.txt pyproject.toml requirements/action.in -o requirements/action.txt

clean:
	rm -rf .venv .yamlsched var examples/dask/.venv examples/dask/.yamlsched

.venv/python: $(SOURCES)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "yamlsched needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make run PYTHON=python3.12")'
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) .venv; else $(PYTHON) -m venv .venv; fi
	@touch $@

.venv/ready: .venv/python
	@if command -v uv >/dev/null; then VIRTUAL_ENV=.venv uv pip install -q -e '.[embedded,web]'; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[embedded,web]'; fi
	@touch $@

# what starts workers on Dask, and the cluster of the example and of the tests: apart from yamlsched
examples/dask/.venv/ready: examples/dask/requirements.txt
	@if command -v uv >/dev/null; then uv venv -q --allow-existing --python $(PYTHON) $(@D) && VIRTUAL_ENV=$(@D) uv pip install -q -r $<; \
	else $(PYTHON) -m venv $(@D) && $(@D)/bin/python -m pip install -q --disable-pip-version-check -r $<; fi
	@touch $@

# first what the lock file has, then yamlsched itself, and what pyproject.toml has and the lock file lacks
.venv/ready-dev: .venv/python $(LOCK)
	@if command -v uv >/dev/null; then export VIRTUAL_ENV=.venv; \
		$(if $(LOCK),uv pip install -q --require-hashes -r $(LOCK) &&) \
		uv pip install -q $(if $(LOCK),--no-build-isolation) -e '.[embedded,dev]'; \
	else \
		$(if $(LOCK),$(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r $(LOCK) &&) \
		$(BIN)/python -m pip install -q --disable-pip-version-check $(if $(LOCK),--no-build-isolation) -e '.[embedded,dev]'; fi
	@$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null; touch .venv/ready $@
