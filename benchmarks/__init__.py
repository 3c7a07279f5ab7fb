"""Times fusedsc beside PyTorch, in the same run: `python -m benchmarks --help`."""
