"""Finds the parts of a model that fusedsc's operators compute, and runs them there: what ``fusedsc.swap`` is made of.

| file | has |
|-|-|
| ``layers.py`` | what single layers are: convolutions, BatchNorms, activations, gates, stochastic depth |
| ``graph.py`` | the layers that a module's forward calls, as a graph (``torch.fx``) |
| ``chains.py`` | chains of layers in such a graph |
| ``parts.py`` | a chain as data, and how an operator runs it |
| ``fused.py`` | a module whose class also runs parts, and the way back |
| ``work.py`` | multiply-adds of a model's convolutions |
| ``measured.py`` | where PyTorch was faster: ``measured/*.json`` |
"""
