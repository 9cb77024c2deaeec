"""Folding replies into a model: the fixed-point sum, and what the server does with the sum."""

from fedloop_server.aggregation.fixed_point import FixedPointSum

__all__ = ["FixedPointSum"]
