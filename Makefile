.DEFAULT_GOAL := help
.PHONY: help setup wheel check-wheels demo test quick pytest browser test-console check-monitoring check-chart chart-schema check-image dashboards trace-picture screenshots test-ocr test-torch test-engines test-sglang test-lora test-clients lint bench bench-clients prove prove-soak prove-failover prove-upgrade prove-restore prove-disk-full images prove-images prove-zero-retention prove-encryption drill docs openapi licences schemas extraction crashes lock clean
BIN := .venv/bin
# Some machines forbid bytecode: each of hundreds of processes would compile all of our code anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## say what can be made
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' Makefile | expand -t 16

setup: ## a working .venv/bin/longbatch (PYTHON=… chooses the interpreter; ENGINE=llama adds llama.cpp)
	@scripts/setup.sh

wheel: setup ## both wheels, dist/longbatch-*.whl (client, command line) and dist/longbatch_server-*.whl
	@rm -rf dist/*.whl build client/build
	@$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist ./client .
	@ls dist/*.whl

check-wheels: wheel ## install both wheels into empty environments, and summarize from one on a stack of the other (600 MB; UP='--engine llama')
	@$(BIN)/python -m scripts.release.check_wheels dist -- $(UP)

demo: setup ## the whole stack summarizes documents (DOCS=folder takes yours; ENGINE=llama a real model on the CPU, GGUF=file yours)
	@$(BIN)/longbatch demo $(if $(DOCS),--docs "$(DOCS)") $(if $(ENGINE),--engine "$(ENGINE)") $(if $(GGUF),--gguf "$(GGUF)")

# The tests run on llama.cpp too.
test pytest quick: export ENGINE = llama

test: setup ## lint, types, import contracts and every test, in two lanes (PYTEST='tests/unit/http -k x' chooses tests)
	@$(BIN)/python -m scripts.testing.run_tests -- $(PYTEST)

quick: setup ## the unit tests, types, import contracts, and style of the files that differ from main
	@$(BIN)/python -m scripts.testing.run_tests --quick

pytest: setup ## every test, without lint (PYTEST='tests/unit/http -k x' runs those alone, in one process)
	@$(BIN)/python -m scripts.testing.run_tests --without-lint -- $(PYTEST)

browser: setup ## fetch headless Chromium, Playwright and axe-core into the user's cache for the console's tests (150 MB, no root)
	@scripts/setup_browser.sh

test-console: browser ## the console's tests, in that browser too
	@$(BIN)/python -m pytest tests/integration/console $(PYTEST)

check-monitoring: ## check and test the alerts with Debian's promtool, unpacked into .prometheus (20 MB, no root)
	@scripts/check_monitoring.sh

check-chart: setup ## render and check the Helm chart: Helm's code from PyPI, the objects' schemas from PyPI and npm, Debian's promtool, into .chart and .prometheus (120 MB; no root, no cluster)
	@scripts/setup_chart.sh
	@scripts/setup_prometheus.sh
	@$(BIN)/python -m pytest tests/with_chart tests/unit/chart $(PYTEST)

chart-schema: setup ## write the settings of the code into the schema of the chart's values
	@PYTHONPATH=. $(BIN)/python tests/support/chart/settings_schema.py

check-image: setup ## check the Dockerfile with hadolint, from PyPI, in .hadolint (12 MB)
	@scripts/check_image.sh

dashboards: setup ## the dashboard's panels as docs/dashboard.png: Debian's Prometheus scrapes a stack under load and answers their queries, about 7 minutes
	@scripts/setup_prometheus.sh
	@$(BIN)/python -m bench.dashboards $(DASHBOARDS)

trace-picture: setup ## the trace of one summary, from its submission to its webhook, as docs/trace.png: a stack of its own runs, under a minute
	@$(BIN)/python -m bench.tracing $(TRACE)

screenshots: browser ## the pictures in docs/console, of the pages that tests look at (PYTEST=-k… chooses)
	@LONGBATCH_SCREENSHOTS=docs/console $(BIN)/python -m pytest tests/integration/console -k in_browser $(PYTEST)

test-ocr: setup ## the tests of OCR; adds the extra `ocr` to .venv, about 95 MB of wheels
	@scripts/setup_ocr.sh
	@$(BIN)/python -m pytest tests/unit/documents/test_ocr.py $(PYTEST)

test-torch: setup ## the transformers engine's tests; installs torch into .venv-torch, about 5 GB
	@scripts/setup_torch.sh
	@.venv-torch/bin/python -P -m pytest tests/with_torch $(PYTEST)

test-engines: setup ## the entry points over real vLLM on the CPU; installs it into .venv-vllm, about 3.5 GB
	@scripts/setup_vllm.sh
	@$(BIN)/python -m pytest tests/with_vllm $(PYTEST)

test-sglang: setup ## the entry points over SGLang's own HTTP server without a model; installs it into .venv-sglang, about 3.5 GB
	@scripts/setup_sglang.sh
	@$(BIN)/python -m pytest tests/with_sglang $(PYTEST)

test-lora: setup ## LoRA adapters over real vLLM on the CPU, which it installs as test-engines does
	@scripts/setup_vllm.sh
	@$(BIN)/python -m pytest tests/with_vllm/test_vllm_adapters.py $(PYTEST)

test-clients: export ENGINE = llama
test-clients: export CLIENTS_ENGINE := $(or $(CLIENTS_ENGINE),llama)
test-clients: setup ## well-known clients over real llama.cpp, or vLLM on the CPU: CLIENTS_ENGINE=vllm (docs/clients.md); 2 GB, vLLM 3.5 more
	@scripts/setup_clients.sh
	@[ "$$CLIENTS_ENGINE" != vllm ] || scripts/setup_vllm.sh
	@$(BIN)/python -m pytest tests/with_clients $(PYTEST)

lint: setup ## style, types and import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: setup ## print the targets, simulated and on real servers, about 12 minutes (JSON=file keeps them)
	@$(BIN)/python -m bench $(if $(JSON),--json "$(JSON)") $(BENCH)

bench-clients: export ENGINE = llama
bench-clients: setup ## AIPerf, genai-bench and `longbatch bench` against Longbatch and the llama.cpp behind it, about 9 minutes (CLIENTS='--concurrency 8'); installs both into .venv-bench-clients, 1.1 GB
	@scripts/setup_bench_clients.sh
	@$(BIN)/python -m bench.clients $(CLIENTS)

prove: setup ## the same at full length, for hours: 300 jobs of each workload, a million rows (SEEDS=3)
	@$(BIN)/python -m bench --long --json bench/results/targets.json $(if $(SEEDS),--seeds $(SEEDS)) $(BENCH)

docs: setup ## the docs as a site with search, in build/docs
	@$(BIN)/python -m scripts.docs.build

openapi: setup ## write docs/openapi.json anew, what the API describes
	@PYTHONPATH=.:tests/support $(BIN)/python tests/support/described/document.py

licences: setup ## write docs/licences.md anew, the licences of what the server's image holds
	@$(BIN)/python -m scripts.release.licences

HOURS = 1
prove-soak: setup ## hours of mixed load and random kills on a stack of its own, judged by what callers see (HOURS=1.5; SOAK='--seed 7')
	@$(BIN)/python -m bench.soak --hours $(HOURS) $(SOAK)

prove-failover: setup ## the primary database dies under load and its standby is promoted, about 3 minutes (FAILOVER='--seed 7'; --asynchronous loses, as a control)
	@$(BIN)/python -m bench.failover $(FAILOVER)

prove-upgrade: setup ## upgrade under load from the builds before the two newest migrations, about 4 minutes (needs the repository's history)
	@LONGBATCH_PROVE=1 $(BIN)/python -m pytest -s -o faulthandler_timeout=0 tests/system/endurance/test_upgrades.py $(PYTEST)

prove-restore: setup ## lose a database of a million jobs and restore it to a moment, by the commands of docs/operations.md (RESTORE='--jobs 100000')
	@$(BIN)/python -m bench.restore $(RESTORE)

prove-disk-full: setup ## the disk of a stack, logs included, fills up under load and gets room again, about 4 minutes (FULL='--full 120'); needs user namespaces or root
	@$(BIN)/python -m bench.disk_full $(FULL)

prove-zero-retention: setup ## search all stores and logs for what a tenant without retention had, before and after its delivery, about a minute
	@$(BIN)/python -m pytest -o faulthandler_timeout=0 tests/integration/tenants/test_zero_retention_stack.py $(PYTEST)

prove-encryption: setup ## search all tables and files for what was asked and answered, encrypted or not, then replace the key, about a minute
	@$(BIN)/python -m pytest -o faulthandler_timeout=0 tests/integration/sealing/test_encryption_stack.py $(PYTEST)

drill: setup ## machines whose clocks differ part from each other, in network namespaces, about 7 minutes (DRILL='--seed 7'); unpacks faketime and nft into .drill
	@scripts/setup_drill.sh
	@$(BIN)/python -m bench.drill $(DRILL)

images: check-image ## both container images on a base of Debian's packages, with their sizes (docs/images.md); unpacks podman and buildah into .images (5 GB; needs root, or newuidmap)
	@scripts/setup_images.sh
	@scripts/build_images.sh

prove-images: images ## the services of docker-compose.yml from those images, killed under load: start times and a verdict, about 5 minutes (IMAGES='--seed 7')
	@scripts/prove_images.sh $(IMAGES)

SUITE = jsonschema-4.26.0.tar.gz
schemas: export ENGINE = llama
schemas: setup ## answers by 500 schemas over real llama.cpp, about 30 minutes (SCHEMAS='--first 40' is a sample); fetches the JSON Schema test suite
	@[ -f .schemas/$(SUITE) ] || $(BIN)/python -m pip download --quiet --no-input --disable-pip-version-check \
		--no-deps --no-binary :all: --require-hashes -r bench/schemas/suite.lock -d .schemas
	@$(BIN)/python -m bench.schemas --suite .schemas/$(SUITE) $(SCHEMAS)

extraction: export ENGINE = llama
extraction: setup ## a table from 50 documents with known facts by real llama.cpp: precision and recall (EXTRACTION='--documents 10')
	@$(BIN)/python -m bench.extraction $(EXTRACTION)

crashes: setup ## the long forms of the crash tests: 2,000 webhook events and 40 kills; 500 documents and 9 kills; 300 documents x 10 questions; a table from 200; the machines of verbs
	@LONGBATCH_PROVE=1 $(BIN)/python -m pytest -s -o faulthandler_timeout=0 tests/system/test_webhook_chaos.py tests/system/test_summarize_many.py \
		tests/system/questions/test_ask_many.py tests/system/questions/test_extract_many.py \
		tests/integration/jobs/test_lifecycle_properties.py tests/integration/tenants/test_quota_properties.py \
		tests/integration/summaries/test_summary_properties.py

COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-package longbatch
# Of one extra alone, without what Longbatch itself needs.
LLAMA = import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["llama-cpp"], sep="\n")
LOCKED = $(addprefix tests/with_clients/environments/,openai3 openai2 curator) bench/clients/clients
lock: ## write the lock files anew (needs uv)
	@$(COMPILE) pyproject.toml --extra local --group dev -o requirements.lock
	@$(COMPILE) pyproject.toml --extra engine -c requirements.lock -o requirements-engine.lock
	@$(COMPILE) pyproject.toml --extra docs --extra llama --extra s3 --extra traces --extra oidc -o requirements-server.lock
	@# What the extra `ocr` adds to the server's.
	@$(COMPILE) pyproject.toml --extra docs --extra llama --extra s3 --extra traces --extra oidc --extra ocr -c requirements-server.lock -o requirements-ocr.lock \
		$$(sed -nE 's/^([A-Za-z0-9._-]+)==.*/--no-emit-package \1/p' requirements-server.lock | sort -u)
	@sed -i '/^# /d' requirements-ocr.lock
	@$(COMPILE) --no-deps --group browser -o requirements-browser.lock
	@$(COMPILE) --no-deps --group chart -o requirements-chart.lock
	@$(COMPILE) --no-deps --group image -o requirements-image.lock
	@$(COMPILE) --group release -o requirements-release.lock
	@$(BIN)/python -c '$(LLAMA)' | $(COMPILE) --no-deps - -o requirements-llama.lock
	@for each in $(LOCKED:=.in); do $(COMPILE) $$each -o $${each%.in}.lock; done

clean: ## remove what setup and the tools made
	@# Images that an ordinary user built belong to that user's other ids.
	@[ ! -d .images/state ] || [ "$$(id -u)" = 0 ] || unshare --user --map-root-user --map-auto rm -rf .images
	@rm -rf .venv .venv-torch .venv-vllm .venv-sglang .venv-clients .venv-bench-clients .schemas .prometheus .chart .hadolint .drill .images .gpu build dist *.egg-info client/build client/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis tests/javascript/node_modules tests/with_clients/javascript/node_modules tests/with_chart/objects/node_modules
