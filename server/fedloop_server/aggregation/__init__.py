"""Folding replies into a model: the update gate, the fixed-point sum, and what the server does with the sum."""

from fedloop_server.aggregation.fixed_point import FixedPointSum
from fedloop_server.aggregation.gate import check_update

__all__ = ["FixedPointSum", "check_update"]
