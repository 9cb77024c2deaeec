"""[data] of site.toml: where a site's rows lie, how they are written, and what they are called there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from fedloop_clients.data.mapping import ColumnMapping, Mappings, Numerals
from fedloop_clients.data.sources.csv_settings import CsvSettings
from fedloop_core.strict import Misfit, Strict

__all__ = ["DataSettings"]


class DataSettings(Strict):
    """Where the rows lie and how they are written.

    ``file``: a relative path begins at site.toml's folder. ``columns``: names of its columns when it has no
    header. ``missing``: cells that mean a missing value, capitals or not. ``decimal`` and ``thousands``: the marks in numbers that are
    text. ``csv``: how a text file is divided. ``map``: by the task's name of a column, where it comes from and what becomes of it.
    ``evaluation_share``: share of the units that are never trained on. ``person_column``: names the person in each
    row, by which people are left out who were erased; a task with a ``unit_column`` needs none. ``second_ledger``: people know that
    another ledger is charged for these rows too.
    """

    file: Annotated[str, Field(min_length=1)]
    columns: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    missing: tuple[str, ...] = ("",)
    decimal: Literal[".", ","] = "."
    thousands: Literal["", ".", ",", " ", "'", "\u00a0", "\u202f"] = ""
    csv: CsvSettings = CsvSettings()
    map: Mapping[str, ColumnMapping] = Field(default_factory=dict)
    evaluation_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    person_column: Annotated[str, Field(min_length=1)] | None = None
    second_ledger: bool = False

    @model_validator(mode="after")
    def _marks_differ(self) -> Self:
        if self.decimal == self.thousands:
            raise Misfit((("thousands",), f"must not be {self.decimal!r}, which is the decimal mark"))
        return self

    def mappings(self, where: str) -> Mappings:
        """What is said of columns, with the file that says it for messages."""
        return Mappings(self.map, self.missing, Numerals(self.decimal, self.thousands), where)
