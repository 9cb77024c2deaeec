"""From a site's unit of a number to the task's, by the definitions of the library pint."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

__all__ = ["conversion"]


def conversion(site: str, task: str) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """A function that converts numbers, such as degrees Fahrenheit to degrees Celsius.

    Raises:
        ValueError: one of them is no unit, or they measure different things.
    """
    import pint

    registry: pint.UnitRegistry[float] = pint.UnitRegistry(autoconvert_offset_to_baseunit=True)
    try:
        source, target = registry.Unit(site), registry.Unit(task)
        registry.Quantity(1.0, source).to(target)
    except (pint.PintError, ValueError, TypeError, AttributeError, AssertionError) as error:
        raise ValueError(f"{site!r} cannot be converted to {task!r}: {error}") from None
    return lambda values: np.asarray(registry.Quantity(values, source).to(target).magnitude, dtype=np.float64)
