# The commands for contributors. `make help` lists them; each target sets up what it needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

BIN := .venv/bin
PYTHON := $(BIN)/python
ENVIRONMENT := .venv/.complete
unexport PYTHONDONTWRITEBYTECODE # otherwise each of the hundreds of programs that tests start compiles its imports
C_SOURCES := $(sort $(wildcard interposer/*/*.[ch] simgpu/*/*.[ch] simgpu/cuda/*/*.[ch] lab/image/*.[ch] tests/interposer/*.[ch] tests/simgpu/*/*.[ch] simgpu/cuda/*/*.[ch] tests/deviceplugin/*/*.[ch] tests/e2e/*/*.[ch] tests/clock/*.[ch] tests/frameworks/*/*.[ch] tests/fuzz/*/*.[ch] bench/launches/*.[ch] bench/gpu/*.[ch] bench/gpu/programs/*.[ch]))
SHELL_SOURCES := install.sh config/components.sh config/uninstall.sh .ci/run $(sort $(wildcard lab/*.sh tests/releases/*.sh))
BENCH_PACKAGES := bench.gpu bench.handover
BENCH_SCRIPTS := $(filter-out bench/gpu/ bench/handover/ bench/results/ bench/__pycache__/,$(sort $(wildcard bench/*.py bench/*/)))
TEST_HELPERS = $(shell find tests -name '*.py' ! -name 'test_*')
QUICK := not slow and not apiserver and not lab
WORKERS := 5 # more than the cores of a small machine: tests of labs and API servers mostly wait
TEST_OPTIONS ?= # additional pytest options for `make test`

##@ Set up

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: env
env: $(ENVIRONMENT) ## Create .venv with the locked dependencies, and install its prerequisites

# Without dependencies and build isolation, so that nothing is installed that is not in the lock.
$(ENVIRONMENT): requirements.lock pyproject.toml install.sh
	@./install.sh --prerequisites
	@[[ -x $(BIN)/pip ]] || "$$(./install.sh --python)" -m venv .venv
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: build
build: ## Build the C parts: interposer, simulated drivers, the samples' probe
	@for part in $(sort $(wildcard interposer/Makefile simgpu/Makefile lab/image/Makefile)); do \
	  $(MAKE) --silent -C "$${part%/Makefile}"; \
	done

.PHONY: lock
lock: env ## Pin the newest allowed versions in requirements.lock
	@{ echo '# Made by `make lock` from pyproject.toml: all extras and groups, for every platform, with hashes.'; \
	  $(PYTHON) -m uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --group dev --group bench --group clients --group docs \
	    --generate-hashes --no-header --no-annotate pyproject.toml; } > requirements.lock.new
	@if grep -nE '://|--(extra-)?index|--find-links' requirements.lock.new; then \
	  echo 'error: the lock names a host; see above' >&2; rm requirements.lock.new; exit 1; fi
	@mv requirements.lock.new requirements.lock

CLIENT_LOCKS := $(patsubst %.in,%.lock,$(wildcard $(addsuffix /*.in,tests/clients/cuda tests/deviceplugin/hardware/pynvml tests/frameworks)))
CLIENTS_FOR := --python-version 3.11 --python-platform x86_64-manylinux_2_28 --no-emit-package triton --no-emit-package setuptools

.PHONY: lock-clients
lock-clients: env ## Pin the newest allowed versions of third-party programs that tests run, in *.lock next to *.in
	@for lock in $(CLIENT_LOCKS); do \
	  { echo '# Made by `make lock-clients` from the file beside it: packages for x86-64 and Python 3.11, with hashes.'; \
	    $(PYTHON) -m uv pip compile --quiet --upgrade $(CLIENTS_FOR) --generate-hashes --no-header --no-annotate \
	      "$${lock%.lock}.in"; } > "$$lock.new"; \
	  if grep -nE '://|--(extra-)?index|--find-links' "$$lock.new"; then \
	    echo 'error: the lock names a host; see above' >&2; rm "$$lock.new"; exit 1; fi; \
	  mv "$$lock.new" "$$lock"; \
	done

.PHONY: packages
packages: env ## Build the wheel and the source archive into dist/
	$(PYTHON) -m hatchling build -d dist

# ARCHITECTURES="amd64 arm64" builds images for both processors; REVISION= is written to a label; PUSH_OPTIONS= are passed
# to skopeo; KUBECTL= names the kubectl of the image plugin, one path per architecture.
ARCHITECTURES ?=
REVISION ?=
PUSH ?=
PUSH_OPTIONS ?=
KUBECTL ?=

.PHONY: images
images: env ## Build the container images into build/images; PUSH=REGISTRY/PREFIX pushes them
	$(PYTHON) -m config.images --architectures "$(ARCHITECTURES)" --revision "$(REVISION)" --kubectl "$(KUBECTL)" \
	  --push "$(PUSH)" --push-options="$(PUSH_OPTIONS)"

.PHONY: images-lock
images-lock: env ## Pin the newest versions of the images' Debian packages
	$(PYTHON) -m config.images --lock

.PHONY: chart
chart: env ## Update the copies and the table in charts/gpushare, and package it into dist/ if helm is installed
	$(PYTHON) charts/make.py
	@if command -v helm > /dev/null; then \
	  helm lint --strict --quiet charts/gpushare && helm package charts/gpushare --destination dist; \
	else echo "helm is not on PATH: charts/gpushare is up to date, but not packaged into dist/"; fi

# The URL of the released archive. Without it, only `krew install --manifest=… --archive=…` can use the manifest.
BASE ?= https://not-released.invalid
HOMEPAGE ?= https://not-released.invalid

.PHONY: krew
krew: env ## Create the archive and manifest for krew in dist/krew (BASE= and HOMEPAGE= are URLs of a release)
	$(PYTHON) config/krew/make.py dist/krew --base "$(BASE)" --homepage "$(HOMEPAGE)"

##@ Check and test

CHECKS := check-types check-compilers check-page check-style # the longest first
AT_ONCE := --output-sync=target -j$(shell nproc)

.PHONY: check
check: env build ## Check formats, lints, types, import rules, layers, shell scripts, wording, warnings of other C compilers
	@$(MAKE) $(AT_ONCE) $(CHECKS)

PAGE_PACKAGES := ui/node_modules/.complete
NPM := PATH="$(abspath $(BIN)):$$PATH" npm

.PHONY: page
page: $(PAGE_PACKAGES) ## Build the page of `kubectl gpushare ui` from ui/ into kubectl_gpushare/ui/page.html
	cd ui && $(NPM) run --silent build

# Only what the lock names, and no package's own install script.
$(PAGE_PACKAGES): ui/package.json ui/package-lock.json ui/.npmrc requirements.lock | $(ENVIRONMENT)
	cd ui && $(NPM) ci --silent --ignore-scripts
	@touch $@

.PHONY: check-page
check-page: $(PAGE_PACKAGES) ## Check the types and lints of the page, and that the committed one is what ui/ builds
	cd ui && $(NPM) run --silent check

.PHONY: check-style
check-style: env ## Check formats, lints, import rules, layers, shell scripts, wording
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/lint-imports --no-logo >/dev/null || $(BIN)/lint-imports --no-logo
	$(PYTHON) layers.py
	$(if $(C_SOURCES),$(BIN)/clang-format --dry-run -Werror $(C_SOURCES))
	$(BIN)/shellcheck $(SHELL_SOURCES)
	$(BIN)/pytest -q tests/contract/test_plain_words.py

.PHONY: check-types
check-types: env ## Check the types of the Python code
	$(BIN)/mypy
	MYPYPATH=bench $(BIN)/mypy --explicit-package-bases $(BENCH_SCRIPTS)
	$(BIN)/mypy $(addprefix -p ,$(BENCH_PACKAGES))
	@echo '$(BIN)/mypy --explicit-package-bases (helpers of tests)'
	@$(BIN)/mypy --explicit-package-bases $(TEST_HELPERS)

.PHONY: check-compilers
check-compilers: env ## Compile the C code as other distributions do, and with clang
	@command -v clang >/dev/null || $(PYTHON) -m lab.prerequisites clang
	$(MAKE) --silent -C tests/compilers

.PHONY: test-quick
test-quick: env build ## Run the quick tests, which need no cluster: less than a minute
	$(BIN)/pytest -q -n 2 -m '$(QUICK)'

.PHONY: test
test: env build ## Run all checks and tests, on a real Kubernetes with simulated GPUs (root; the first run builds it, about five minutes)
	@$(MAKE) $(AT_ONCE) $(CHECKS) ready-lab ready-tests ready-libraries
	$(BIN)/pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(TEST_OPTIONS)

# What tests need, made on the cores that the checks leave idle.
.PHONY: ready-lab ready-tests ready-libraries lab-packages
ready-lab: env build
	@$(MAKE) --output-sync=none lab-packages # says at once that it builds Kubernetes

lab-packages:
	@$(PYTHON) -c 'from lab import build, gpushare, prerequisites; prerequisites.ensure(); build.ensure(); gpushare.built_images()'

# One process compiles the tests, before each worker would do it; the workers report a file that cannot be imported.
ready-tests: env build
	@$(BIN)/pytest -q --collect-only >/dev/null || true

ready-libraries: env build
	@$(MAKE) --silent -C interposer tests sanitized

.PHONY: test-frameworks
test-frameworks: env build ## Test PyTorch on simulated GPUs and in shares of them (root; the first run downloads 3 GB)
	GPUSHARE_TEST_FRAMEWORKS=1 $(BIN)/pytest -q tests/frameworks

.PHONY: test-integrations
test-integrations: env build ## Test gpushare with Kueue, Karpenter, NVIDIA's plugin and autoscalers (root; the first run builds them, ten minutes)
	@$(MAKE) lab-packages
	@$(PYTHON) -c 'from lab import integration; integration.ensure_all()'
	GPUSHARE_TEST_INTEGRATIONS=1 $(BIN)/pytest -q -m integration tests/integrations

.PHONY: gpu-rehearsal
gpu-rehearsal: env build ## Rehearse the complete run of bench/gpu on simulated GPUs (root; the first run downloads 3 GB)
	$(PYTHON) -m bench.gpu.rehearsal

MINUTES ?= 10
TARGETS ?=
TARGET ?=
INPUT ?=

.PHONY: fuzz
fuzz: env build ## Fuzz all parsers, for MINUTES=10 in total (TARGETS= selects some)
	$(PYTHON) -m tests.fuzz --minutes $(MINUTES) $(TARGETS)

.PHONY: fuzz-replay
fuzz-replay: env ## Replay one INPUT= with a TARGET=
	$(PYTHON) -m tests.fuzz --replay $(INPUT) $(TARGET)

FOR ?= 10

.PHONY: sanitize
sanitize: env build ## Run the library with the compiler's sanitizers, FOR=10 seconds each (root)
	GPUSHARE_SANITIZE_SECONDS=$(FOR) $(BIN)/pytest -q --timeout=0 tests/interposer/test_sanitized.py

.PHONY: scale
scale: env build ## Measure the webhook with 20,000 pods on 1,000 nodes, and 120,000 on 5,000; half an hour
	$(PYTHON) bench/scale.py --pods 20000
	$(PYTHON) bench/scale.py --nodes 5000 --pods 100000 --shares 20000 --rounds 1

.PHONY: soak
soak: env build ## Check that webhook and agent do not grow under ordinary faults; MINUTES=600 for longer
	$(PYTHON) bench/soak.py --minutes $(or $(MINUTES),15)

.PHONY: bench
bench: env build ## Run the benchmarks that need no GPU
	@for one in $(filter-out $(addprefix bench/,bad_days.py idle_agents.py scale.py scaling.py soak.py),$(wildcard bench/*.py)); do $(PYTHON) "$$one"; done

##@ Try

.PHONY: demo
demo: env build ## Run the demo of ./install.sh --local: a cluster in memory, the real webhook
	@$(PYTHON) -m lab.demo

.PHONY: lab
lab: env build ## Start a local Kubernetes with simulated GPUs and gpushare (root)
	$(PYTHON) -m lab up
	$(PYTHON) -m lab install
	@echo 'Next:'
	@echo '  eval "$$($(PYTHON) -m lab env)"; export PATH="$$PWD/$(BIN):$$PATH"'
	@echo '  kubectl apply -f config/samples/half-gpu.yaml && kubectl gpushare top'

.PHONY: lab-down
lab-down: env ## Remove that cluster and its files
	$(PYTHON) -m lab down

##@ Tidy

.PHONY: docs
docs: env ## Generate docs/cli, docs/compatibility.md, docs/coexistence.md, drawings in docs/images, Grafana's dashboards, the PrometheusRule
	$(PYTHON) docs/cli/make.py docs/cli
	$(PYTHON) docs/images/make.py docs/images
	$(PYTHON) -m tests.clients.document docs/compatibility.md
	$(PYTHON) -m tests.webhook.coexistence.document docs/coexistence.md
	$(PYTHON) config/components/monitoring/make.py

.PHONY: pictures
pictures: env ## Draw the dashboards for docs/images, with a real Prometheus, and take the screenshot of the page
	$(PYTHON) docs/images/dashboards.py docs/images
	PYTHONPATH=. $(PYTHON) docs/images/page.py docs/images

.PHONY: docs-site
docs-site: env ## Build the manual as a site in build/site; broken links are errors
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict
	@echo 'build/site/index.html; to see it in a browser: $(PYTHON) -m http.server --bind localhost --directory build/site'

.PHONY: format
format: env ## Format Python and C
	$(BIN)/ruff format --quiet
	$(BIN)/ruff check --fix --quiet
	$(if $(C_SOURCES),$(BIN)/clang-format -i $(C_SOURCES))

.PHONY: clean
clean: ## Remove build outputs and caches, except .venv
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
