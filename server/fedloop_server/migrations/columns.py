"""Types of columns as the steps write them."""

from __future__ import annotations

from sqlalchemy import BigInteger, Integer

__all__ = ["INTEGER"]

INTEGER = BigInteger().with_variant(Integer, "sqlite")
"""64 bits; SQLite numbers rows by itself only in a column that it calls INTEGER."""
