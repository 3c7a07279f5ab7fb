"""The parts of :func:`fusedsc.check_gradients`."""
