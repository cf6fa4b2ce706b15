# Needs Go, make, a C compiler (for the race detector and Vale), and Python 3 (for a test). Everything else comes with the Go modules.

DOCKER ?= docker
IMAGE ?= ghcr.io/prebind/prebind:latest
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
TOOL = go tool -modfile="$(CURDIR)/tools.mod"

# Output directory of `generate`. `verify` sets another one and compares. Its name begins with _, so that Go ignores the
# generated Go files in it.
GENERATED_DIR ?= .
GENERATED = config/webhook/base/role.yaml $(foreach p,$(PLUGIN_ROLES),config/webhook/plugins/$(p)/role.yaml) config/webhook/mutators/device-info/role.yaml \
	$(POLICY)/crd.yaml $(POLICY)/tasks-crd.yaml policy/v1alpha1/zz_generated.deepcopy.go \
	config/webhook/certificates/self-managed/role.yaml docs/policies-reference.md docs/flags.md docs/metrics.md docs/configuration-defaults.yaml config/configuration.schema.json \
	$(CHART)/values.schema.json $(CHART)/README.md $(CHART_FILES) docs/api.txt

# The plugins with permissions. The package has the name of the plugin without hyphens.
PLUGIN_ROLES = announce device node-ready policy resource-claims volumebinding

# The component of the plugin policy.
POLICY = config/webhook/plugins/policy

# Kubernetes version for Helm without a cluster.
KUBE_VERSION = 1.37.0

# Files of config/webhook that the chart contains as copies, because Helm reads only files of the chart: <file>=<copy>.
CHART = charts/prebind
COPIES = base/role.yaml=roles/prebind.yaml $(foreach p,$(PLUGIN_ROLES),plugins/$(p)/role.yaml=roles/$(p).yaml) mutators/device-info/role.yaml=roles/device-info.yaml \
	plugins/policy/resources-role.yaml=roles/policy-resources.yaml plugins/policy/crd.yaml=policy/crd.yaml plugins/policy/tasks-crd.yaml=policy/tasks-crd.yaml \
	plugins/policy/tasks-handlers.yaml=policy/tasks-handlers.yaml plugins/policy/webhook.yaml=policy/webhook.yaml \
	certificates/self-managed/role.yaml=roles/self-managed-certs.yaml base/flowschema.yaml=flowschema.yaml limited-priority/prioritylevel.yaml=prioritylevel.yaml \
	base/annotations.yaml=annotations.yaml annotation-policy/pods.yaml=annotation-policy/pods.yaml annotation-policy/bindings.yaml=annotation-policy/bindings.yaml explain/explain.yaml=explain.yaml \
	monitoring/podmonitor.yaml=monitoring/podmonitor.yaml monitoring/prometheusrule.yaml=monitoring/prometheusrule.yaml \
	monitoring/dashboard.json=monitoring/dashboard.json
CHART_FILES = $(foreach c,$(COPIES),$(CHART)/files/$(lastword $(subst =, ,$(c))))

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-14s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: ## Show binds with and without Prebind on a real control plane (KEEP=1 keeps it running)
	go run ./test/demo $(if $(filter-out 0 false no,$(KEEP)),--keep)

.PHONY: demo-recording
demo-recording: ## Run the session of README.md in the demo, and write its terminal to docs/images/demo.svg
	go run ./test/demo --run='cd test/recording && go run . demo.sh >../../docs/images/demo.svg'

.PHONY: test
test: test-unit test-e2e ## Run all tests

# make lint includes go vet.
.PHONY: test-unit
test-unit: kustomize helm ## Run the unit tests, those of the product with the race detector
	go test -race -vet=off -timeout 10m $$(go list ./... | grep -v /test/) ./test/simulation
	go test -vet=off -timeout 10m $$(go list ./test/... | grep -vE '/test/((e2e|faults|handlers|release)(/|$$)|(bench|simulation)$$)')
	go test -vet=off -timeout 10m ./test/simulation -seeds=200
	cd client && go test -timeout 10m ./...
	@echo "alerts on the Prometheus engine: the first build takes a minute"
	cd test/monitoring && go test -count=1 -timeout 10m ./...

# Ends a recipe whose search for faults has found one.
FOUND = { echo 'A fault of Prebind? Add it to docs/contributing/robustness.csv, with a test or mutant that reproduces it.'; exit 1; }

# make test uses fixed seeds, so that its result does not depend on chance.
.PHONY: simulate
simulate: ## Run seeds of the simulation (SEEDS=1000: number of seeds; SEED=7: first seed; MUTANTS=true: show that it finds faults)
	go test -count=1 ./test/simulation -timeout=60m -seeds=$(SEEDS) -seed=$(SEED) || $(FOUND)
	$(if $(MUTANTS),go run ./test/simulation/mutants -seeds=$(SEEDS))

.PHONY: properties
properties: ## Run property and model tests with random seeds (ROUNDS=50: number of rounds; SEED=7: repeat a failure)
	PREBIND_SEED=$(if $(filter-out file,$(origin SEED)),$(SEED),random) go test -race -timeout 60m -count=$(ROUNDS) \
		-run 'Properties$$|^TestModel' $$(go list ./... | grep -v /test/) || $(FOUND)

# Shows each test when it ends, and at the end the output of those that failed. The file contains the output of all.
E2E = @mkdir -p bin && GOGC=200 $(TOOL) gotestsum --format testname --jsonfile bin/$(1).json -- -p 2 -count=1 -timeout 60m $(addprefix ./test/,$(2))

# Two packages at a time: with more, calls of a cluster take seconds on two processors. The test of faults is the last, because it needs the
# machine nearly for itself. With the default of GOGC, the control planes would use a tenth of the processors to collect garbage.
# Prebind itself is built with the race detector.
.PHONY: test-e2e
test-e2e: control-plane ## Run the end-to-end tests on a real control plane
	$(call E2E,e2e,release e2e handlers bench faults)

# Versions of Kubernetes in addition to that of make test.
KUBERNETES ?= $(patsubst test/kubernetes/%.mod,%,$(wildcard test/kubernetes/[0-9]*.mod))

.PHONY: test-versions
test-versions: ## Run the end-to-end tests on the other supported versions of Kubernetes (KUBERNETES=1.34: one version)
	@for version in $(KUBERNETES); do \
		echo "Kubernetes $$version" && export PREBIND_TEST_KUBERNETES=$$version && \
		go run ./test/cluster/build && \
		$(MAKE) --no-print-directory test-version || exit 1; \
	done

.PHONY: test-version
test-version:
	$(call E2E,e2e,e2e)

.PHONY: conformance-report
conformance-report: ## Test an unmodified scheduler, and write its report (SCHEDULER=volcano, SOURCE=checkout, BINARIES=directory, KEEP=1; see docs/conformance/README.md)
	go run ./test/schedulers --scheduler=$(or $(SCHEDULER),kube-scheduler) $(if $(SOURCE),--source=$(SOURCE)) $(if $(BINARIES),--binaries=$(BINARIES)) $(if $(filter-out 0 false no,$(KEEP)),--keep)

# Not part of test: the first build takes minutes.
.PHONY: test-products
test-products: ## Test shipped policies with the code of the products that they are for
	cd test/products && go test -count=1 -timeout 30m ./...

# Results of this run, and the results that are committed.
RESULTS = bin/bench
KEPT = docs/performance/data
RUN = $(shell date +%F)
BENCH = go test -run '^$$' -timeout 60m -v ./test/bench
# Rounds. Each variant runs once per round.
ROUNDS ?= 10
# Batches of ten claims.
BATCHES ?= 5

.PHONY: bench
bench: control-plane ## Benchmark binds against other webhooks, Kyverno and kube-scheduler in about 40 minutes, and compare with the committed results (ROUNDS=20: number of rounds)
	@rm -f $(RESULTS)/* && mkdir -p $(RESULTS)
	go test -c -o $(RESULTS)/admission.test ./cmd/prebind/app
	@for round in $$(seq $(ROUNDS)); do \
		echo "in-process review, round $$round of $(ROUNDS)"; \
		$(RESULTS)/admission.test -test.run '^$$' -test.bench BenchmarkAdmission -test.benchtime 0.5s >>$(RESULTS)/admission.txt || exit 1; \
	done
	$(BENCH) -bench 'BenchmarkBinds$$' -benchtime=$(ROUNDS)x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkCPU$$' -benchtime=$(ROUNDS)x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkBurst$$' -benchtime=$(ROUNDS)x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkNeighbors$$' -benchtime=$$(( ($(ROUNDS) + 2) / 3 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkOpenLoop$$' -benchtime=$$(( ($(ROUNDS) + 9) / 10 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkNodePlugins$$' -benchtime=$(ROUNDS)x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkPolicies$$' -benchtime=$(ROUNDS)x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkScheduler$$' -benchtime=$$(( ($(ROUNDS) + 1) / 2 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkClaimBoundToPodBound$$' -benchtime=$(BATCHES)x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkDelay$$' -benchtime=1x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkTwoWaits$$' -benchtime=$$(( ($(ROUNDS) + 2) / 3 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkLostReplica$$' -benchtime=$$(( ($(ROUNDS) + 2) / 3 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkBalance$$' -benchtime=$$(( ($(ROUNDS) + 1) / 2 ))x -results=$(CURDIR)/$(RESULTS)
	go test -count=1 -run 'TestSteadyState$$' -v ./test/bench -results=$(CURDIR)/$(RESULTS)
	@echo "in-process review, compared with the committed result; on another machine compare only the allocations and the ratios below:"
	$(TOOL) benchstat kept=$(lastword $(sort $(wildcard $(KEPT)/*/admission.txt))) now=$(RESULTS)/admission.txt
	@echo "committed results:" && go run ./test/bench/report $(KEPT)
	@echo "this run:" && go run ./test/bench/report $(RESULTS)

.PHONY: scale
scale: control-plane ## Benchmark a large cluster, many waiting pods and growth in 50 minutes (SCALE=-scale-part=0.1 for smaller clusters)
	@mkdir -p $(RESULTS)
	$(BENCH) -bench 'BenchmarkScale$$' -benchtime=1x -results=$(CURDIR)/$(RESULTS) $(SCALE)
	$(BENCH) -bench 'BenchmarkDelayOfACrowd$$' -benchtime=$$(( ($(ROUNDS) + 2) / 3 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkDelayOfACrowdWithSeats$$' -benchtime=$$(( ($(ROUNDS) + 2) / 3 ))x -results=$(CURDIR)/$(RESULTS)
	$(BENCH) -bench 'BenchmarkGrowth$$' -benchtime=1x -results=$(CURDIR)/$(RESULTS) $(SCALE)
	@go run ./test/bench/report $(RESULTS)

.PHONY: bench-keep
bench-keep: ## Add the results of bench and scale to docs/performance (RUN=2026-11-29-2: second run of a day)
	@mkdir -p $(KEPT)/$(RUN)
	cp $(RESULTS)/*.csv $(RESULTS)/admission.txt $(KEPT)/$(RUN)/
	go run ./test/bench/report $(KEPT) docs/performance/README.md

SEED ?= 1
SEEDS ?= 20
DURATION ?= 1m

.PHONY: faults
faults: control-plane ## Inject faults into a cluster during binds, and check the result (SEED=7 SEEDS=1: one seed; DURATION=5m: duration; ATTACK=false: no attacking tenant)
	go test -race -count=1 -timeout 12h -v -run TestFaults ./test/faults -args -seed $(SEED) -seeds $(SEEDS) -length $(DURATION) $(if $(ATTACK),-attack=$(ATTACK)) || $(FOUND)

HOURS ?= 6

.PHONY: soak
soak: control-plane ## Run faults, attacks and load for hours against the same replicas, and check memory and goroutines (HOURS=6; SEED=7: first seed; DURATION=10m: faults of each round)
	go test -count=1 -timeout 24h -v -run TestSoak ./test/faults -args -soak $(HOURS)h -seed $(SEED) -length $(if $(filter file,$(origin DURATION)),10m,$(DURATION)) || $(FOUND)

.PHONY: rare-faults
rare-faults: control-plane ## Run the load while etcd has no space, and with API servers of two versions (SEED=7; as root, for a full disk)
	go test -race -count=1 -timeout 1h -v -run TestRare ./test/faults -args -rare -seed $(SEED) -length $(DURATION) || $(FOUND)

FUZZTIME ?= 10m

# Every go test runs the seeds and the inputs in testdata/fuzz. Minimization is limited, because it uses most of the time of a
# target with goroutines.
.PHONY: fuzz
fuzz: ## Run every fuzz target (FUZZTIME=1m: time per target; FUZZ=FuzzReview: one target)
	@for dir in $$(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do \
		for target in $$(go test -list '^$(or $(FUZZ),Fuzz.*)$$' $$dir | grep '^Fuzz'); do \
			echo "$$dir $$target" && go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$dir || $(FOUND); \
		done; \
	done

# The tests would also build these, but go test shows no progress. The first build of the control plane takes minutes, later ones
# use a cache.
.PHONY: size
size: ## Count the lines of code, lines of tests and words of documentation
	go run ./test/size

.PHONY: control-plane
control-plane:
	go run ./test/cluster/build

.PHONY: kustomize
kustomize:
	@echo "kustomize: the first build takes a minute"
	@$(TOOL) kustomize version

.PHONY: helm
helm:
	@echo "helm: the first build takes a minute"
	@$(TOOL) helm version --short

# Tools whose dependencies do not fit tools.mod.
ACTIONLINT = github.com/rhysd/actionlint/cmd/actionlint@v1.7.12
GOVULNCHECK = golang.org/x/vuln/cmd/govulncheck@v1.9.0
# Versions 3.23 to 3.26 require a commit of cascadia that the module proxy does not serve.
VALE = github.com/vale-cli/vale/v3/cmd/vale@v3.22.0

# In test/controlplane, linters that need types run only on packages that do not import k8s.io/kubernetes: its analysis takes
# longer than its build. The same holds for the products of test/products.
.PHONY: lint
lint: ## Run the linters and the prose check
	@echo "vale: the first build takes minutes"
	go run $(VALE) --no-global .
	go run $(ACTIONLINT)
	@echo "golangci-lint: the first build takes minutes"
	$(TOOL) golangci-lint run ./...
	cd client && $(TOOL) golangci-lint run ./...
	cd docs/example/handlers && $(TOOL) golangci-lint run ./...
	cd docs/site && $(TOOL) golangci-lint run ./...
	cd test/controlplane && $(TOOL) golangci-lint run ./kwok/... ./provisioner/...
	cd test/controlplane && $(TOOL) golangci-lint run --fast-only ./...
	cd test/kubernetes && $(TOOL) golangci-lint run --fast-only ./...
	cd test/csi && $(TOOL) golangci-lint run ./...
	cd test/certmanager && $(TOOL) golangci-lint run ./...
	cd test/monitoring && $(TOOL) golangci-lint run ./...
	cd test/playground && $(TOOL) golangci-lint run ./...
	cd test/products && $(TOOL) golangci-lint run --fast-only ./...

.PHONY: site
site: playground ## Build the website in bin/site; needs Node.js 20 (RELEASES='v1.1.0 v1.0.0': other versions; SITE_BASE=/prebind/)
	SITE_BASE=$(SITE_BASE) docs/site/build.sh $(RELEASES)
	cp -R $(PLAYGROUND) bin/site/

.PHONY: site-test
site-test: site ## Check the links of the website, and its pages in Chromium with screenshots in bin/site-screenshots
	cd docs/site && go test -count=1 -timeout 10m ./...

.PHONY: licenses
licenses: ## Write bin/THIRD_PARTY_LICENSES: the licenses of all modules in the binary; fails if one is not accepted
	@mkdir -p bin
	go run ./test/licenses >bin/THIRD_PARTY_LICENSES

# Not part of verify: it reads the database at vuln.go.dev, and its result changes without a change of the code.
.PHONY: vulncheck
vulncheck: ## Check the program and the module client for known vulnerabilities (needs access to vuln.go.dev)
	go run $(GOVULNCHECK) ./...
	cd client && go run $(GOVULNCHECK) ./...

.PHONY: generate
generate: ## Write generated files: roles, CRD, docs/{flags,metrics,policies-reference}.md, docs/configuration-defaults.yaml, docs/api.txt, and the chart's schema and README
	$(TOOL) controller-gen rbac:roleName=prebind,headerFile=config/role-header.txt \
		paths='./internal/assembly;./internal/apiclient;./internal/replica;./internal/work' output:rbac:dir=$(GENERATED_DIR)/config/webhook/base
	@for p in $(PLUGIN_ROLES); do \
		$(TOOL) controller-gen rbac:roleName=prebind-$$p,headerFile=config/role-header.txt paths=./binder/plugins/$$(echo $$p | tr -d -) \
			output:rbac:dir=$(GENERATED_DIR)/config/webhook/plugins/$$p || exit 1; \
	done
	$(TOOL) controller-gen object:headerFile=config/go-header.txt crd:headerFile=config/crd-header.txt,omitToolVersion=true \
		paths=./policy/v1alpha1 output:object:dir=$(GENERATED_DIR)/policy/v1alpha1 output:crd:dir=$(GENERATED_DIR)/$(POLICY)
	mv $(GENERATED_DIR)/$(POLICY)/policy.prebind.dev_bindpolicies.yaml $(GENERATED_DIR)/$(POLICY)/crd.yaml
	mv $(GENERATED_DIR)/$(POLICY)/policy.prebind.dev_bindtasks.yaml $(GENERATED_DIR)/$(POLICY)/tasks-crd.yaml
	$(TOOL) controller-gen rbac:roleName=prebind-device-info,headerFile=config/role-header.txt \
		paths=./internal/claimed output:rbac:dir=$(GENERATED_DIR)/config/webhook/mutators/device-info
	$(TOOL) controller-gen rbac:roleName=prebind-self-managed-certs,headerFile=config/role-header.txt \
		paths=./internal/certificates output:rbac:dir=$(GENERATED_DIR)/config/webhook/certificates/self-managed
	@mkdir -p $(GENERATED_DIR)/docs
	go run ./test/docs >$(GENERATED_DIR)/docs/flags.md
	go run ./test/docs metrics >$(GENERATED_DIR)/docs/metrics.md
	go run ./test/docs policies $(GENERATED_DIR)/$(POLICY)/crd.yaml $(GENERATED_DIR)/$(POLICY)/tasks-crd.yaml >$(GENERATED_DIR)/docs/policies-reference.md
	@echo '# Generated by `make generate` from `prebind config defaults`. Do not edit.' >$(GENERATED_DIR)/docs/configuration-defaults.yaml
	go run ./cmd/prebind config defaults >>$(GENERATED_DIR)/docs/configuration-defaults.yaml
	go run ./test/chartschema >$(GENERATED_DIR)/config/configuration.schema.json
	@for c in $(COPIES); do \
		from=config/webhook/$${c%%=*} to=$(GENERATED_DIR)/$(CHART)/files/$${c#*=}; \
		if test -e $(GENERATED_DIR)/$$from; then from=$(GENERATED_DIR)/$$from; fi; \
		mkdir -p $$(dirname $$to) && cp $$from $$to || exit 1; \
	done
	@test "$(GENERATED_DIR)" = . || cp $(CHART)/Chart.yaml $(CHART)/values.yaml $(CHART)/README.md.gotmpl $(GENERATED_DIR)/$(CHART)/
	go run ./test/chartschema $(CHART)/values.yaml >$(GENERATED_DIR)/$(CHART)/values.schema.json
	$(TOOL) helm-docs --chart-search-root=$(GENERATED_DIR)/$(CHART) --sort-values-order=file --ignore-non-descriptions \
		--skip-version-footer --log-level=warning
	go run ./test/api -out $(GENERATED_DIR)/docs/api.txt

.PHONY: verify
verify: ## Check generated files, go.mod, manifests, chart, format, and that the binary is static
	@rm -rf bin/_verify && mkdir -p bin/_verify
	$(MAKE) generate GENERATED_DIR=bin/_verify
	@for f in $(GENERATED); do \
		git --no-pager diff --no-index --exit-code $$f bin/_verify/$$f || \
			{ echo "$$f is out of date: run 'make generate'"; exit 1; }; \
	done
	go mod tidy -diff
	cd client && go mod tidy -diff
	cd docs/example/handlers && go mod tidy -diff
	cd docs/site && go mod tidy -diff
	cd test/controlplane && go mod tidy -diff
	cd test/kubernetes && for mod in [0-9]*.mod; do go mod tidy -diff -modfile=$$mod || exit 1; done
	cd test/csi && go mod tidy -diff
	cd test/certmanager && go mod tidy -diff
	cd test/kyverno && go mod tidy -diff
	cd test/monitoring && go mod tidy -diff
	cd test/playground && go mod tidy -diff
	cd test/products && go mod tidy -diff
	for install in webhook webhook/overlays/self-managed first-install first-install/self-managed; do \
		$(TOOL) kustomize build config/$$install >bin/_verify/install.yaml || exit 1; \
	done
	$(TOOL) helm lint --strict --kube-version=$(KUBE_VERSION) $(CHART)
	$(MAKE) build
	$(MAKE) sbom
	go run ./test/licenses >bin/_verify/THIRD_PARTY_LICENSES
	@unformatted=$$(gofmt -l .) && if test -n "$$unformatted"; then \
		echo "run 'gofmt -w' on:"; echo "$$unformatted"; exit 1; \
	fi

# A static binary, built in the same way by the Dockerfile. The tag grpcnotrace excludes golang.org/x/net/trace, with which the
# linker keeps every method of every type, so that the program grows by half. timetzdata adds the time zones for CEL, which
# the image of a release does not contain.
STATIC = CGO_ENABLED=0 go build -buildvcs=false -trimpath -tags grpcnotrace,timetzdata \
	-ldflags '-s -w -X github.com/prebind/prebind/cmd/internal/cli.version=$(VERSION)'

# Directory of the programs.
BIN = bin

.PHONY: build
build: ## Build bin/prebind, the server, and bin/kubectl-prebind, the kubectl plugin, as static binaries
	$(STATIC) -o $(BIN)/prebind ./cmd/prebind
	$(STATIC) -o $(BIN)/kubectl-prebind ./cmd/kubectl-prebind

PLAYGROUND = $(BIN)/playground

# The tags are those of the other programs, so that expressions have the same results.
.PHONY: playground
playground: ## Write bin/playground, a page that checks and tests BindPolicies in the browser
	@mkdir -p $(PLAYGROUND)
	cp cmd/playground/page/* "$$(go env GOROOT)/lib/wasm/wasm_exec.js" $(PLAYGROUND)/
	go run ./cmd/playground >$(PLAYGROUND)/examples.json
	GOOS=js GOARCH=wasm go build -buildvcs=false -trimpath -tags grpcnotrace,timetzdata -ldflags '-s -w' -o $(PLAYGROUND)/playground.wasm ./cmd/playground
	gzip -9nf $(PLAYGROUND)/playground.wasm
	@gzip -l $(PLAYGROUND)/playground.wasm.gz

.PHONY: playground-test
playground-test: playground ## Test the playground in Chromium, and write screenshots to bin/site-screenshots
	cd test/playground && go test -count=1 -timeout 10m ./...

# The checksums of the tool differ between machines.
.PHONY: sbom
sbom: ## Write the reproducible SBOMs bin/*.cdx.json of the programs; fails if one is not static
	for program in $(BIN)/prebind $(BIN)/kubectl-prebind; do \
		go version -m $$program | grep -q 'CGO_ENABLED=0$$' && \
		$(TOOL) cyclonedx-gomod bin -json -output-version=1.6 -std -noserial -notimestamp -version=$(VERSION) -output=$$program.cdx.json $$program && \
		$(TOOL) yq -i -p=json -o=json 'del(.metadata.tools[].hashes)' $$program.cdx.json || exit 1; \
	done

.PHONY: image
image: ## Build the container image (DOCKER=podman, IMAGE=..., PLATFORM=linux/amd64,linux/arm64, BUILD_ARGS='--build-arg BASE_IMAGE=...')
	$(DOCKER) build --build-arg VERSION=$(VERSION) $(if $(PLATFORM),--platform=$(PLATFORM)) $(BUILD_ARGS) --tag $(IMAGE) .

RELEASE = bin/release
# Intermediate results of a release.
STAGE = bin/stage
PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64
# A release does not depend on the Go version and the settings of the user: other versions compile to other bytes.
RELEASE_ENV = GOTOOLCHAIN=$(shell sed -n 's/^toolchain //p' go.mod) GOENV=off GOWORK=off GOFLAGS= GOEXPERIMENT= GOFIPS140=off GOAMD64=v1 GOARM64=v8.0

.PHONY: release
release: ## Build bin/release: archives, image, manifests, chart, SBOMs and checksums (VERSION=v1.2.3; see docs/contributing/release.md)
	@$(RELEASE_ENV) VERSION='$(VERSION)' PLATFORMS='$(PLATFORMS)' RELEASE=$(RELEASE) STAGE=$(STAGE) release/build.sh

.PHONY: publish
publish: ## Publish bin/release; the workflow release does this (VERSION=v1.2.3; see docs/contributing/release.md)
	@VERSION='$(VERSION)' PLATFORMS='$(PLATFORMS)' RELEASE=$(RELEASE) release/publish.sh

.PHONY: clean
clean: ## Remove bin
	rm -rf bin
