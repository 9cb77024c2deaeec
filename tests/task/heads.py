"""How task files of several tests begin."""

from __future__ import annotations

__all__ = ["ONE_NUMBER"]

ONE_NUMBER = """\
format = 1
name = "{name}"
[[features]]
kind = "numeric"
name = "{feature}"
range = {range}
[label]
kind = "classes"
name = "y"
classes = ["no", "yes"]
[model]
kind = "logistic"
"""
"""A logistic model of one number."""
