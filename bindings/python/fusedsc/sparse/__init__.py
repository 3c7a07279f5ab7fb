"""Convolutions that skip the zeros of what they read: for inference, on CPUs."""

from .weights import pack_weight

__all__ = ["pack_weight"]
