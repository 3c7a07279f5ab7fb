# The commands of a checkout. Each sets up what it needs first; that takes a second or two when nothing changed.

export PYTHON ?= python3
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
BIN := $(CURDIR)/.venv/bin
HIP_ARCHITECTURES ?= $(all_amd)
all_amd := gfx906;gfx90a;gfx1030

.DEFAULT_GOAL := help
.PHONY: help setup train imagenet test wheel docs bench cuda hip test-gpu bench-gpu

help:  ## this list
	@echo 'make ...   (PYTHON=... chooses the Python that a new .venv is made with)'
	@sed -n 's/^\([a-z -]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup:  ## system packages (as root), .venv/ with everything in it, build, fusedsc installed
	@scripts/setup

train: setup  ## train MobileNetV2 with fused blocks on Fashion-MNIST and compare with plain PyTorch: runs/latest
	$(BIN)/python training_examples/fashion_mnist.py $(TRAIN_ARGS)

imagenet: setup  ## train MobileNetV2 on ImageNet: DATA=folder, IMAGENET_ARGS=options; without DATA on a few drawn pictures
	$(BIN)/python training_examples/imagenet.py $(if $(DATA),--data "$(DATA)",$(if $(findstring --synthetic,$(IMAGENET_ARGS)),,--smoke)) $(IMAGENET_ARGS)

test: setup  ## every test that needs no GPU
	$(BIN)/cmake --build --preset release
	$(BIN)/ctest --preset release --label-regex cpu -j $(CMAKE_BUILD_PARALLEL_LEVEL)
	$(BIN)/python -m pytest -n auto --dist loadgroup $(PYTEST_ARGS)

wheel: setup  ## a wheel for this machine's torch, tried in a fresh environment: dist/*.whl
	@scripts/wheel

docs: setup  ## the pages of docs/ as a site: build/site/index.html; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: setup  ## side by side with PyTorch on this machine: benchmarks/results/*.json
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

# Other GPUs may want another compiler, which a build directory does not change.
hip_options = $(if $(filter hip,$@),'-DCMAKE_HIP_ARCHITECTURES=$(HIP_ARCHITECTURES)' $\
  $(shell grep -qxF 'CMAKE_HIP_ARCHITECTURES:STRING=$(HIP_ARCHITECTURES)' build/hip/CMakeCache.txt 2>/dev/null || echo --fresh))
cuda hip: setup  ## all kernels for NVIDIA or for AMD GPUs, the operators and tests: build/cuda, build/hip; HIP_ARCHITECTURES="gfx942;gfx1201"
	$(BIN)/cmake --preset $@ $(hip_options)
	$(BIN)/cmake --build --preset $@
	git describe --always --dirty --abbrev=12 >build/$@/commit || true
	scripts/gpu_resources build/$@ $(if $(filter hip,$@),$(if $(filter $(all_amd),$(HIP_ARCHITECTURES)),--table docs/generated/amd_resources.md))

test-gpu:  ## the same tests on the GPU of this machine, with build/cuda or build/hip as it stands
	scripts/on_gpu test $(PYTEST_ARGS)

bench-gpu:  ## side by side with PyTorch on the GPU, likewise: benchmarks/results/<gpu>/*.json
	scripts/on_gpu bench $(BENCH_ARGS)
