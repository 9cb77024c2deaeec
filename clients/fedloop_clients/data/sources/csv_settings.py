"""[data.csv] of site.toml."""

from __future__ import annotations

import codecs
from typing import Annotated

from pydantic import AfterValidator, Field

from fedloop_core.strict import Strict

__all__ = ["CsvSettings"]


def _one_character(text: str) -> str:
    if len(text) != 1 or text in '"\r\n\0' or not text.isascii():
        raise ValueError(r'must be one character such as ",", ";", "|" or "\t"')
    return text


def _known_encoding(name: str) -> str:
    try:
        encoded = "a,1".encode(codecs.lookup(name).name)
    except (LookupError, UnicodeError):
        encoded = b""
    if not encoded:
        raise ValueError('must name a character encoding such as "utf-8", "cp1252" or "utf-16"')
    return name


class CsvSettings(Strict):
    """How the file is written; what is left out is told from the file, and refused where it cannot be told for sure.

    ``encoding``: told from the file's mark, else UTF-8. ``delimiter``: between cells. ``quote``: whether cells may stand in
    double quotation marks. ``skip_lines``: lines before the header or the first row.
    """

    encoding: Annotated[str, AfterValidator(_known_encoding)] | None = None
    delimiter: Annotated[str, AfterValidator(_one_character)] | None = None
    quote: bool = True
    skip_lines: Annotated[int, Field(ge=0, le=10_000)] = 0
