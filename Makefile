# Everything starts here. `make demo` shows the product on real parts, `make test` proves it.

SHELL := /bin/bash
ARCH := $(shell uname -m)
TARGET := $(ARCH)-unknown-linux-musl
CARGO_TARGET := $(or $(CARGO_TARGET_DIR),target)
RELEASE := $(CARGO_TARGET)/$(TARGET)/release
# One build per package: built together, they would share the features of all.
PRODUCT := istio-cni-plugin install-cni iptables-rules
BINARIES := istio-cni install-cni istio-iptables
CASES ?=

.PHONY: help demo test e2e build lint conformance bench clean

help:
	@echo "make demo         a real container runtime, a real Envoy, our agent: what happens to three pods"
	@echo "make test         all tests (REQUIRE_NETNS=1: those that need root must run)"
	@echo "make e2e          our agent on a real Kubernetes node (the first time its parts are built: about 20 minutes)"
	@echo "make build        static release binaries into bin/"
	@echo "make lint         formatting, clippy, dependency directions, scripts"
	@echo "make conformance  the conformance cases [CASES=dir]"
	@echo "make bench        measurements against an empty process and the iptables tools [PEER_CNI=path]"

demo:
	@tests/setup.sh demo
	@$(MAKE) --no-print-directory build
	@cargo build --locked --quiet --release --target $(TARGET) -p e2e-guest
	@cargo build --locked --quiet -p e2e
	@DEMO_BIN=$(CURDIR)/bin DEMO_GUEST=$(abspath $(RELEASE))/guest $(CARGO_TARGET)/debug/demo

e2e:
	@tests/setup.sh e2e
	@$(MAKE) --no-print-directory build
	@cargo build --locked --quiet --release --target $(TARGET) -p e2e-guest
	@cargo build --locked --quiet -p e2e
	@DEMO_BIN=$(CURDIR)/bin DEMO_GUEST=$(abspath $(RELEASE))/guest \
	  $(CARGO_TARGET)/debug/e2e "$$(tests/e2e/cluster/build.sh --dir)"

test:
	@tests/setup.sh test
	cargo test --locked --workspace
	@$(MAKE) --no-print-directory conformance

build:
	@tests/setup.sh build
	@mkdir -p bin
	@for package in $(PRODUCT); do \
	  echo "building $$package for $(TARGET)"; \
	  cargo build --locked --quiet --release --target $(TARGET) -p $$package || exit 1; \
	done
	@for binary in $(BINARIES); do install -m 0755 $(RELEASE)/$$binary bin/$$binary || exit 1; done

lint:
	@tests/setup.sh lint
	@tests/lint.sh

conformance:
	@cargo run --locked --quiet -p conformance -- $(CASES)

bench: build
	@tests/setup.sh test
	@cargo build --locked --quiet --release --target $(TARGET) -p perf-empty
	@cargo build --locked --quiet -p perf --profile bench-harness
	@BENCH_BIN=$(CURDIR)/bin BENCH_EMPTY=$(abspath $(RELEASE))/empty $(CARGO_TARGET)/bench-harness/perf $(PEER_CNI)

clean:
	rm -rf bin $(CARGO_TARGET)
