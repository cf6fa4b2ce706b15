# Needs Go, make and a C compiler (for the race detector). Everything else comes with the Go modules.

DOCKER ?= docker
IMAGE ?= ghcr.io/prebind/prebind:latest
VERSION ?= $(shell git describe --always --dirty 2>/dev/null || echo unknown)
TOOL = go tool -modfile="$(CURDIR)/tools.mod"

# Where `generate` writes. `verify` lets it write elsewhere, and compares.
GENERATED_DIR ?= .
GENERATED = config/webhook/base/role.yaml config/webhook/plugins/volumebinding/role.yaml config/webhook/plugins/device/role.yaml \
	config/webhook/plugins/resource-claims/role.yaml config/webhook/mutators/device-info/role.yaml docs/flags.md

.PHONY: help
help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  %-12s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: control-plane ## Show binds, with and without Prebind, on a real control plane (KEEP=1 leaves it running)
	go run ./test/demo $(if $(filter-out 0 false no,$(KEEP)),--keep)

.PHONY: test
test: test-unit test-e2e ## Run all tests

.PHONY: test-unit
test-unit: kustomize ## Run the unit tests, with the race detector
	go test -race -timeout 10m $$(go list ./... | grep -vE '/test/(bench|cluster|e2e)(/|$$)')
	cd test/controlplane && CGO_ENABLED=0 go test -trimpath -timeout 10m ./provisioner

# One package at a time: each starts a control plane, and go test shows what one package does while it does it.
.PHONY: test-e2e
test-e2e: control-plane ## Run the end-to-end tests on a real control plane
	go test -race -count=1 -timeout 20m -v ./test/cluster
	go test -race -count=1 -timeout 30m -v ./test/e2e
	go test -count=1 -timeout 10m -v ./test/bench

# A batch is ten claims.
BENCHTIME ?= 5x

.PHONY: bench
bench: control-plane ## Measure from claim bound to pod bound, beside kube-scheduler itself (BENCHTIME=20x for more claims)
	go test -run '^$$' -bench . -benchtime=$(BENCHTIME) -timeout 30m -v ./test/bench

# The tests would build these by themselves, but go test shows nothing meanwhile. The control plane takes minutes once, then
# comes from the cache; where KUBEBUILDER_ASSETS is set it is taken from there.
.PHONY: control-plane
control-plane:
	go run ./test/cluster/build

.PHONY: kustomize
kustomize:
	@echo "kustomize: the first build takes a minute"
	@$(TOOL) kustomize version

# In test/controlplane the linters that need types run where k8s.io/kubernetes is not imported: to analyse all of it takes
# longer than to build it.
.PHONY: lint
lint: ## Run the linters
	@echo "golangci-lint: the first build takes minutes"
	$(TOOL) golangci-lint run ./...
	cd test/controlplane && $(TOOL) golangci-lint run ./cmd/... ./internal/... ./provisioner/...
	cd test/controlplane && $(TOOL) golangci-lint run --fast-only ./...

.PHONY: generate
generate: ## Write the generated files: ClusterRoles from the markers in the Go source, docs/flags.md from the program's help
	$(TOOL) controller-gen rbac:roleName=prebind,headerFile=config/role-header.txt \
		paths=./cmd/prebind/app output:rbac:dir=$(GENERATED_DIR)/config/webhook/base
	$(TOOL) controller-gen rbac:roleName=prebind-volumebinding,headerFile=config/role-header.txt \
		paths=./binder/plugins/volumebinding output:rbac:dir=$(GENERATED_DIR)/config/webhook/plugins/volumebinding
	$(TOOL) controller-gen rbac:roleName=prebind-device,headerFile=config/role-header.txt \
		paths=./binder/plugins/device output:rbac:dir=$(GENERATED_DIR)/config/webhook/plugins/device
	$(TOOL) controller-gen rbac:roleName=prebind-resource-claims,headerFile=config/role-header.txt \
		paths=./binder/plugins/resourceclaims output:rbac:dir=$(GENERATED_DIR)/config/webhook/plugins/resource-claims
	$(TOOL) controller-gen rbac:roleName=prebind-device-info,headerFile=config/role-header.txt \
		paths=./binder/claimed output:rbac:dir=$(GENERATED_DIR)/config/webhook/mutators/device-info
	@mkdir -p $(GENERATED_DIR)/docs
	go run ./test/docs >$(GENERATED_DIR)/docs/flags.md

.PHONY: verify
verify: ## Check that generated files, go.mod, manifests and format are up to date
	@rm -rf bin/verify && mkdir -p bin/verify
	$(MAKE) generate GENERATED_DIR=bin/verify
	@for f in $(GENERATED); do \
		git --no-pager diff --no-index --exit-code $$f bin/verify/$$f || \
			{ echo "$$f is out of date: run 'make generate'"; exit 1; }; \
	done
	go mod tidy -diff
	cd test/controlplane && go mod tidy -diff
	$(TOOL) kustomize build config/webhook >bin/verify/webhook.yaml
	@unformatted=$$(gofmt -l .) && if test -n "$$unformatted"; then \
		echo "run 'gofmt -w' on:"; echo "$$unformatted"; exit 1; \
	fi

.PHONY: build
build: ## Build bin/prebind, a static binary
	CGO_ENABLED=0 go build -trimpath -o bin/prebind \
		-ldflags '-s -w -X github.com/prebind/prebind/cmd/prebind/app.version=$(VERSION)' ./cmd/prebind

.PHONY: image
image: ## Build the container image (DOCKER=podman, IMAGE=...)
	$(DOCKER) build --build-arg VERSION=$(VERSION) --tag $(IMAGE) .

.PHONY: clean
clean: ## Remove what was built here
	rm -rf bin
