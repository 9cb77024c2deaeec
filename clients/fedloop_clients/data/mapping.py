"""How a site's own columns, units and codes become a task's: what site.toml says under [data.map]."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import Field, model_validator

from fedloop_clients.data.cells.writing import Writing
from fedloop_clients.data.expressions import Expression
from fedloop_core.errors import SettingsInvalid
from fedloop_core.schema import DateFormat
from fedloop_core.strict import Misfit, Strict

__all__ = ["ColumnMapping", "Mappings", "Numerals"]

_Text = Annotated[str, Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True)
class Numerals:
    """The marks in numbers that are written as text: before fractions, and between groups of three digits."""

    decimal: str = "."
    thousands: str = ""


class ColumnMapping(Strict):
    """Where one column of the task comes from.

    ``column``: the site's name for it, where that is another. ``expression``: a number worked out from the site's columns, such as
    ``weight / (height / 100) ** 2``, in place of a column. ``recode``: the task's text for the site's. ``unit``: the site's unit of
    a number, which is converted to the task's. ``missing``: the markers of this column, in place of the whole file's.
    ``format``: how this site writes a date, where that is another than the task's.
    """

    column: _Text | None = None
    expression: _Text | None = None
    recode: Mapping[str, str] = Field(default_factory=dict)
    unit: _Text | None = None
    missing: tuple[str, ...] | None = None
    format: DateFormat | None = None

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        if self.column is not None and self.expression is not None:
            raise Misfit(
                (("expression",), "must not be given beside a column: one of them says where the values come from")
            )
        if self.expression is not None:
            try:
                Expression.parse(self.expression)
            except ValueError as error:
                raise Misfit((("expression",), str(error))) from None
        return self


@dataclass(frozen=True)
class Mappings:
    """All that a site says about its columns: by the task's names, with what holds for the whole source."""

    by_name: Mapping[str, ColumnMapping]
    missing: tuple[str, ...]
    numerals: Numerals
    where: str

    def of(self, name: str) -> ColumnMapping:
        """What is said of one column; nothing by default."""
        return self.by_name.get(name, ColumnMapping())

    def column(self, name: str) -> str:
        """The site's name for it."""
        return self.of(name).column or name

    def writing(self, name: str) -> Writing:
        """How its cells are written."""
        return _writing(self.of(name), self.missing, self.numerals)

    def refuse(self, name: str, key: str, why: str) -> SettingsInvalid:
        """The error for something that cannot be said of this column."""
        return SettingsInvalid(f"{self.where}: data.map.{name}.{key} {why}.", hint="Correct it in site.toml.")


def _writing(mapping: ColumnMapping, missing: tuple[str, ...], numerals: Numerals) -> Writing:
    """How the cells of a column are written, by what is said of it and of the whole file."""
    markers = missing if mapping.missing is None else mapping.missing
    return Writing(frozenset(markers), mapping.recode, numerals.decimal, numerals.thousands)
