# The commands of a checkout. Each sets up what it needs first; that takes a second or two when nothing changed.

export PYTHON ?= python3
export CMAKE_BUILD_PARALLEL_LEVEL ?= $(shell nproc)
BIN := $(CURDIR)/.venv/bin

.DEFAULT_GOAL := help
.PHONY: help setup train test bench

help:  ## this list
	@echo 'make ...   (PYTHON=... chooses the Python that a new .venv is made with)'
	@sed -n 's/^\([a-z-]*\):.*## /  \1\t/p' $(MAKEFILE_LIST) | expand -t 12

setup:  ## system packages (as root), .venv/ with everything in it, build, fusedsc installed
	@scripts/setup

train: setup  ## train MobileNetV2 with fused blocks on Fashion-MNIST and compare with plain PyTorch: runs/latest
	$(BIN)/python training_examples/fashion_mnist.py $(TRAIN_ARGS)

test: setup  ## every test that needs no GPU
	$(BIN)/cmake --build --preset release
	$(BIN)/ctest --preset release --label-regex cpu -j $(CMAKE_BUILD_PARALLEL_LEVEL)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

bench: setup  ## side by side with PyTorch on this machine: benchmarks/results/*.json
	$(BIN)/python -m benchmarks $(BENCH_ARGS)
