# make demo   the main job: a local control plane, and what Coda does on it, in three minutes
# make test   every check and every test, the control-plane tests included; says at its start how long it takes
# Both do all of their own set-up. Other targets:
#   verify                    the long chains, hours: chaos, race, fuzz, hostile, realnode, and the long versions of some tests
#   setup kube helm           the environment, the control plane and Helm, each built once
#   prometheus                Prometheus and promtool, from Debian's package, in the cache: prints the folder
#   node                      what a real node is made of (docs/real-node.md); as root it installs Debian's packages
#   check unit compiled e2e chain   the parts of make test
#   image                     a part's container image as an OCI archive, without Docker, and its bill of materials
#                             (CycloneDX): PART=operator|extender|agent OUT=dist/coda-operator.tar
#   oci-images                the same for all three, in dist/
#   framework                 what a container that shares a GPU gets: libcodagpu.so and its Python half, in OUT (dist/framework)
#   torch                     real torch over make-believe CUDA, for the tests of framework/: 4 GB (VERSIONS="2.15.0")
#   kind-up kind-down         a cluster of containers with Coda, pretended GPUs and demo jobs (docker, kind, kubectl, helm)
#   native                    the compiled core, for longer simulations: prints the folder to name in PYTHONPATH
#   realnode                  all tests on a real node: kubelet, containerd and a kernel of its own in a virtual machine
#   chaos                     parts killed, stopped and cut off, and accidents, while CPU jobs borrow: KILLS=50 ACCIDENTS=20 SEED=7 NODES=100 OUT=chaos.json
#                             WITH=--sharing: while jobs of all service classes share GPUs; --tenants: a tree of tenants that borrow
#                             and give back; --lending: CPU jobs that borrow cores; --tuning: jobs that grow and shrink; --agents 2: real agents
#   fuzz                      malformed requests for the extender: COUNT=100000 SEED=7 OUT=fuzz.json
#   hostile                   objects no honest user stores, beside honest jobs: OBJECTS=2000 SEED=7 OUT=hostile.json
#   race                      gangs against foreign pods: GANGS=200 SCHEDULERS=one|two SEED=7 NODES=100 OUT=race.json
#   bench                     everything that has a budget, measured: a table, also in docs/benchmarks.md (BENCH="--quick")
#   results                   every simulation of docs/results.md, its tables and plots: TRACES=folder JOBS=2 ONLY=month QUICK=1
#   docs                      the documentation as a site, in site/
#   dashboard-pictures        every panel of every dashboard, drawn with the demo's data (docs/metrics.md)
#   images                    the container images of this commit, by docker: prints the value of the chart that names them
#   chart dashboards picture reference lock clean   the chart's copies and dashboards, the pictures, docs/reference, the lock files, none of it

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

KILLS ?= 50
WITH ?= --lending
ACCIDENTS ?= 20
GANGS ?= 200
SEED  ?= 7
NODES ?= 100
COUNT ?= 100000
OBJECTS ?= 2000
SCHEDULERS ?= one
REPORTS ?= .coda/verify
# The tests of what is compiled: all of the core, and of the simulator what is no reader or writer of files. Without the
# hours of jobs as they are: they ask how good the eliminator is, and its state is not compiled.
COMPILED_TESTS := tests/core tests/native tests/sim/engine tests/sim/results tests/sim/workload tests/sim/test_durations.py \
	tests/benchmarks/studies/test_quick.py \
	--ignore=tests/core/contention/test_real_jobs.py

# Of the images: another one for each commit and each change, so that an upgrade replaces the pods.
IMAGE_TAG ?= $(shell deploy/image-tag.sh)
COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --python-version 3.11

# The modules with tests of a control plane: to load the other four hundred as well takes each worker as long as some tests.
# Those that take a minute or more come first, so that none of them is still running when all else has ended.
E2E_LONG := $(addsuffix .py,$(addprefix tests/,e2e/test_gang_tuning e2e/test_agent_outages cli/test_against_a_control_plane \
	docs/test_guides_on_a_cluster e2e/test_agent_upgrade e2e/test_agent e2e/test_tuning e2e/test_cpu_jobs e2e/test_arrays e2e/test_chaos e2e/test_race e2e/test_upgrade \
	e2e/test_local deploy/test_uninstall e2e/test_known_failures e2e/test_operator_crashes deploy/test_installation))
E2E_TESTS = $(E2E_LONG) $(filter-out $(E2E_LONG) tests/realnode/%,$(sort \
	$(shell grep -rl --include='test_*.py' 'pytest\.mark\.e2e' tests)))

# Every program that a test starts would else compile all of its modules again, and every worker all tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: dashboard-pictures framework torch demo test verify setup kube helm prometheus node image oci-images agent-image native realnode rigs check unit heavy compiled e2e chain chaos fuzz hostile race bench results chart dashboards picture reference docs lock images kind-up kind-down clean

demo: $(READY)
	$(BIN)/coda demo

test: $(READY)
	@$(BIN)/python -m tests.run

setup: $(READY)

$(READY): requirements-dev.lock pyproject.toml
	@echo "==> setting up $(VENV) from requirements-dev.lock (about a minute the first time)" >&2
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

kube: $(READY)
	@$(BIN)/python -m coda_lab.programs.control_plane

helm: $(READY)
	@$(BIN)/python -m coda_lab.programs.helm

prometheus: $(READY)
	@$(BIN)/python -m coda_lab.programs.prometheus

node: kube
	@$(BIN)/python -m coda_lab.realnode

image: $(READY)
	@$(BIN)/python -m coda_lab.images $(PART) $(or $(OUT),dist/coda-$(PART).tar)

oci-images: $(READY)
	@for part in operator extender agent; do $(BIN)/python -m coda_lab.images $$part dist/coda-$$part.tar || exit; done

agent-image:
	@$(MAKE) --no-print-directory image PART=agent

framework: $(READY)
	@$(BIN)/python -m coda_lab.programs.gpu_library $(or $(OUT),dist/framework)

torch: $(READY)
	@$(BIN)/python -m coda_lab.emulators.cuda $(VERSIONS)

native: $(READY)
	@$(BIN)/python -m coda_lab.programs.compiled_core

check: $(READY)
	@echo "==> ruff, mypy, import contracts, layout"
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/test_layout.py

# What the tests of the agent, of the history store, of images, of alerts, of dashboards and of shared GPUs need of the machine, where it can be installed; else those tests say in one line what is missing.
rigs: $(READY)
	@$(BIN)/python -c 'import mfusepy' 2>/dev/null || test "$$(id -u)" != 0 || { \
		echo "==> installing libfuse (Debian's fuse3) for the emulated resctrl"; \
		apt-get install -qq -y --no-install-recommends fuse3 libfuse3-3 >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends fuse3 libfuse3-3 >/dev/null; } \
		|| echo "libfuse could not be installed: tests of the emulated resctrl are skipped"; }
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || test "$$(id -u)" != 0 || { \
		echo "==> installing PostgreSQL (Debian's postgresql) for the history store"; \
		apt-get install -qq -y --no-install-recommends postgresql >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends postgresql >/dev/null; } \
		|| echo "PostgreSQL could not be installed: tests of the history store run on SQLite alone"; }
	@command -v mmdebstrap >/dev/null || test "$$(id -u)" != 0 || { \
		echo "==> installing mmdebstrap for images without Docker"; \
		apt-get install -qq -y --no-install-recommends mmdebstrap >/dev/null 2>&1 \
		|| { apt-get update -qq && apt-get install -qq -y --no-install-recommends mmdebstrap >/dev/null; } \
		|| echo "mmdebstrap could not be installed: tests of images are skipped"; }
	@$(BIN)/python -m coda_lab.programs.prometheus >/dev/null || echo "tests of alerts and dashboards are skipped"
	@$(BIN)/python -m coda_lab.emulators.cuda newest >/dev/null || echo "tests of torch on a shared GPU are skipped"

unit: rigs
	@echo "==> unit tests"
	$(BIN)/pytest -n 2 -m "not e2e and not heavy" --durations=10

# The heavy tests in pure Python. On the compiled core, which gives the same bytes, they take a fifth of the time.
heavy: $(READY)
	@echo "==> heavy tests of the core and the simulator, in pure Python (4 minutes on 2 cores)"
	$(BIN)/pytest -n 2 -m heavy --durations=10

# Lightly optimised: what is asked is whether the compiled modules do the same, and compiling is most of the time.
compiled: $(READY)
	@echo "==> tests of the core and the simulator, compiled"
	@folder=$$(MYPYC_OPT_LEVEL=1 MYPYC_DEBUG_LEVEL=0 $(BIN)/python -m coda_lab.programs.compiled_core); code=$$?; \
	if [ $$code = 3 ] && [ "$$CODA_REQUIRE_RIGS" != 1 ]; then echo "the compiled core is not tested here"; $(MAKE) --no-print-directory heavy; exit; fi; \
	[ $$code = 0 ] && CODA_COMPILED=1 PYTHONPATH=$$folder $(BIN)/pytest -n 2 --durations=10 $(COMPILED_TESTS)

# These tests mostly wait: up to six modules run at once, as the machine has room (tests/room.py). A control plane lives
# for seconds or minutes, so Go collects less often.
e2e: kube helm rigs
	@echo "==> tests on a local control plane"
	GOGC=400 GOMEMLIMIT=768MiB $(BIN)/pytest -m e2e -v -n 6 --dist loadfile --no-loadscope-reorder --durations=10 $(E2E_TESTS)

CHAIN = $(BIN)/pytest -m e2e -v --durations=10 tests/realnode/test_agent_on_a_real_node.py \
	-k "tells_what or privilege or two_ranks"

# The short version of realnode: from a TrainingJob on the host to the kernel's cpu.max in the virtual machine.
chain: kube
	@test "$$(id -u)" != 0 || $(MAKE) --no-print-directory node || echo "no real node can be built here: its tests are skipped"
	@echo "==> the whole chain on a real node in a virtual machine (about 6 minutes; skipped without root)"
	@$(CHAIN) || { [ $$? = 75 ] && echo "==> once more: the virtual machine ended or was stuck" && $(CHAIN); }

realnode: node
	@echo "==> tests on a real node in a virtual machine (10 to 20 minutes)"
	CODA_REQUIRE_RIGS=1 $(BIN)/pytest -m e2e -v --durations=10 tests/realnode

# Each of these chains has a short version with a fixed seed in `make test`.
verify: kube helm
	@mkdir -p $(REPORTS)
	$(MAKE) --no-print-directory chaos OUT=$(REPORTS)/chaos.json
	$(MAKE) --no-print-directory chaos WITH="--sharing --tenants" NODES=25 KILLS=30 ACCIDENTS=0 OUT=$(REPORTS)/chaos-sharing.json
	$(MAKE) --no-print-directory chaos WITH="--sharing --tenants --lending --tuning --agents 2" NODES=24 ACCIDENTS=10 OUT=$(REPORTS)/chaos-all.json
	$(MAKE) --no-print-directory race SCHEDULERS=one OUT=$(REPORTS)/race-one.json
	$(MAKE) --no-print-directory race SCHEDULERS=two OUT=$(REPORTS)/race-two.json
	$(MAKE) --no-print-directory fuzz OUT=$(REPORTS)/fuzz.json
	$(MAKE) --no-print-directory hostile OUT=$(REPORTS)/hostile.json
	@echo "==> the long versions of tests on a local control plane"
	$(MAKE) --no-print-directory heavy
	CODA_LONG=1 $(MAKE) --no-print-directory compiled
	$(MAKE) --no-print-directory torch
	CODA_LONG=1 $(BIN)/pytest -v --durations=10 tests/framework
	CODA_LONG=1 $(BIN)/pytest -m e2e -v -n 6 --dist loadfile --no-loadscope-reorder --durations=10 $(E2E_TESTS)
	$(MAKE) --no-print-directory realnode

chaos: kube
	$(BIN)/python -m coda_lab.experiments.chaos $(WITH) --kills $(KILLS) --accidents $(ACCIDENTS) --seed $(SEED) --nodes $(NODES)x8x48 --out $(or $(OUT),chaos.json)

fuzz: kube
	$(BIN)/python -m coda_lab.experiments.fuzz --count $(COUNT) --seed $(SEED) --out $(or $(OUT),fuzz.json)

hostile: kube
	$(BIN)/python -m coda_lab.experiments.hostile --count $(OBJECTS) --seed $(SEED) --out $(or $(OUT),hostile.json)

race: kube
	$(BIN)/python -m coda_lab.experiments.race --gangs $(GANGS) --schedulers $(SCHEDULERS) --seed $(SEED) --nodes $(NODES)x8x48 --out $(or $(OUT),race.json)

bench: kube
	$(BIN)/python benchmarks $(BENCH)

# Resumes: what was simulated before by the same code is kept in .coda/results.
results: $(READY)
	$(BIN)/python benchmarks/results.py --jobs $(or $(JOBS),2) $(if $(TRACES),--traces $(TRACES)) $(if $(ONLY),--only $(ONLY)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(QUICK),--quick)

chart:
	cp crds/*.yaml deploy/helm/coda/crds/
	cp $(addprefix deploy/manifests/,operator.yaml extender.yaml agent.yaml user.yaml leases.yaml) deploy/helm/coda/rbac/
	cp $(addprefix deploy/manifests/,policies.yaml cpu-jobs.yaml users.yaml) deploy/helm/coda/policies/

dashboards: $(READY)
	$(BIN)/python -m deploy.dashboards

picture:
	$(PYTHON) docs/architecture.py
	$(PYTHON) docs/concepts.py

# While the story of `coda demo` is told, about four minutes. Look at them afterwards.
dashboard-pictures: kube prometheus
	$(BIN)/python -m tests.monitoring.pictures

reference: $(READY)
	$(BIN)/python -m docs.reference_pages

# The site, without network: every link and every page is checked. Open site/index.html, or put the folder on any server.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

lock: $(READY)
	$(COMPILE) --extra cli pyproject.toml -o requirements.lock
	$(COMPILE) --extra cli --group dev pyproject.toml -o requirements-dev.lock
	$(COMPILE) --no-annotate -c requirements.lock --extra operator pyproject.toml -o operator/requirements.lock
	$(COMPILE) --no-annotate -c requirements.lock --extra extender pyproject.toml -o scheduler_extender/requirements.lock
	$(COMPILE) --no-annotate -c requirements.lock --extra agent pyproject.toml -o node_agent/requirements.lock

images: framework
	docker build -t coda-operator:$(IMAGE_TAG) --build-arg PART=operator -f deploy/Dockerfile --build-arg IMAGE_TAG=$(IMAGE_TAG) .
	docker build -t coda-extender:$(IMAGE_TAG) --build-arg PART=scheduler_extender -f deploy/Dockerfile --build-arg IMAGE_TAG=$(IMAGE_TAG) .
	docker build -t coda-agent:$(IMAGE_TAG) --build-arg PART=node_agent -f deploy/Dockerfile --build-arg IMAGE_TAG=$(IMAGE_TAG) .
	@echo "Push coda-operator, coda-extender and coda-agent with the tag $(IMAGE_TAG). Then give helm: --set image.tag=$(IMAGE_TAG)"

kind-up:
	@deploy/kind/up.sh

kind-down:
	kind delete cluster --name coda

clean:
	rm -rf $(VENV) dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis
