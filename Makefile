.DEFAULT_GOAL := help
.PHONY: demo test test-gpu test-newest check docs bench bench-gpu deb dist format lock clean help

BIN := .venv/bin
SETUP := @sh tools/bootstrap.sh

demo: ## boxes around blood cells (build/cells.png); a network answers in less memory than its weights take, beside others (build/memory.svg); ARGS=detect or memory: one of the two
	$(SETUP) run
	$(BIN)/python -m benchmarks.demo $(ARGS)

test: ## run the tests (more: make test ARGS="-m slow")
	$(SETUP) dev
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

test-gpu: ## run the tests of device, kernels and engine on the GPU of this machine
	@LAYERSTREAM_KERNELS=gpu sh tools/gpu.sh -m pytest -q -m "gpu or not (gpu or browser or slow)" tests/pipeline/devices/cuda $(ARGS)

test-newest: ## run the tests with the newest versions that pyproject.toml allows, in build/newest
	@sh tools/bootstrap.sh newest
	build/newest/bin/python -m pytest -n 2 --dist worksteal $(ARGS)

check: ## formatting, lint, types, import rules and words
	$(SETUP) dev
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.words

docs: ## the pages of docs/ as a site, build/site/index.html
	$(SETUP) docs
	NO_MKDOCS_2_WARNING=1 build/docs/bin/python -m mkdocs build --strict --quiet

bench: ## run the benchmarks
	$(SETUP) dev
	$(BIN)/python -m benchmarks $(ARGS)

bench-gpu: ## measure kernels and pipelines on the GPU of this machine: build/gpu.json and .md
	@sh tools/gpu.sh -m benchmarks.gpu $(ARGS)

deb: ## the Debian package of this checkout in build/ (for another architecture: make deb ARCH=arm64)
	$(SETUP) run
	@sh deploy/debian/build.sh $(ARCH)

dist: ## wheel and sdist in dist/, tried in a clean environment
	$(SETUP) run
	@sh tools/check_dist.sh

format: ## format the code and fix what ruff can fix
	$(SETUP) dev
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

lock: ## resolve requirements/*.txt, the versions that are installed, anew
	@sh tools/lock.sh

grpc-messages: ## make the messages of gRPC again from inference.proto (needs grpcio-tools)
	cd server/grpc/messages && ../../../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. inference.proto

clean: ## remove .venv, caches and build results
	rm -rf .venv build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile
