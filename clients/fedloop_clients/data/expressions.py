"""Numbers worked out from a site's columns: arithmetic, comparisons and a few functions, nothing that could do more."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Expression"]

_Numbers = NDArray[np.float64]
_LONGEST = 2000
_OPERATORS: dict[type[ast.operator], Callable[[_Numbers, _Numbers], _Numbers]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[_Numbers, _Numbers], NDArray[np.bool_]]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_FUNCTIONS: dict[str, tuple[int, Callable[..., _Numbers]]] = {
    "abs": (1, np.abs),
    "sqrt": (1, np.sqrt),
    "log": (1, np.log),
    "log10": (1, np.log10),
    "exp": (1, np.exp),
    "minimum": (2, np.minimum),
    "maximum": (2, np.maximum),
}
_COLUMN = "column"


@dataclass(frozen=True)
class Expression:
    """One expression that was read and found sound. ``columns`` are the names of the columns it needs, sorted."""

    text: str
    columns: tuple[str, ...]
    _body: ast.expr

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Reads an expression.

        Columns stand by their names, or as ``column("Body weight")`` where a name is no plain word. There are + - * / **,
        comparisons (1 where they hold, else 0), numbers, brackets and abs, sqrt, log, log10, exp, minimum, maximum.

        Raises:
            ValueError: says what is wrong.
        """
        if len(text) > _LONGEST:
            raise ValueError(f"must have at most {_LONGEST} characters, not {len(text)}")
        try:
            body = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError):
            raise ValueError(f"is no expression: {text!r}") from None
        columns: set[str] = set()
        _check(body, columns)
        if not columns:
            raise ValueError("must name a column")
        return cls(text, tuple(sorted(columns)), body)

    def value(self, columns: Mapping[str, _Numbers]) -> _Numbers:
        """The result for each row; NaN where a column has NaN, infinite or NaN where there is no result.

        Args:
            columns: float64 ``[rows]`` for each of ``self.columns``.
        """
        missing = np.any([np.isnan(columns[name]) for name in self.columns], axis=0)
        with np.errstate(all="ignore"):
            result = np.broadcast_to(_value(self._body, columns), missing.shape).astype(np.float64)
        result[missing] = np.nan
        return result


def _check(node: ast.expr, columns: set[str]) -> None:
    match node:
        case ast.Constant(value=bool()):
            raise ValueError("must not hold true or false: write 1 or 0")
        case ast.Constant(value=int() | float()):
            return
        case ast.Name(id=name):
            columns.add(name)
        case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(column))], keywords=[]) if name == _COLUMN:
            columns.add(column)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            if len(arguments) != _FUNCTIONS[name][0]:
                raise ValueError(f"{name} takes {_FUNCTIONS[name][0]} of them, not {len(arguments)}")
            for argument in arguments:
                _check(argument, columns)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            _check(operand, columns)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left, columns)
            _check(right, columns)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            _check(left, columns)
            _check(right, columns)
        case _:
            raise ValueError(
                f"must not hold {ast.unparse(node)!r}: there are + - * / **, comparisons and {', '.join(_FUNCTIONS)}"
            )


def _value(node: ast.expr, columns: Mapping[str, _Numbers]) -> _Numbers:
    match node:
        case ast.Constant(value=int(number) | float(number)):
            return np.asarray(float(number))
        case ast.Name(id=name):
            return columns[name]
        case ast.Call(args=[ast.Constant(value=str(column))]):
            return columns[column]
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return _FUNCTIONS[name][1](*[_value(argument, columns) for argument in arguments])
        case ast.UnaryOp(op=op, operand=operand):
            value = _value(operand, columns)
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, columns), _value(right, columns))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _COMPARISONS[type(op)](_value(left, columns), _value(right, columns)).astype(np.float64)
        case _:
            raise TypeError(f"{ast.unparse(node)} was not checked")
