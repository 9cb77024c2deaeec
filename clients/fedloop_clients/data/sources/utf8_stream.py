"""A text file as a stream of checked UTF-8 bytes, for a reader that would pass over what is wrong with them.

Arrow's reader takes a quotation mark in the middle of a cell, text after a closing one and a missing one at the end as they
come, which joins cells and loses rows silently. RFC 4180 has none of them; here they are errors with a line.
"""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import BinaryIO

from typing_extensions import Buffer

from fedloop_clients.data.sources.csv_dialect import CsvDialect, not_in_encoding
from fedloop_clients.data.sources.quotation_marks import QuotationMarks
from fedloop_core.errors import SourceInvalid

__all__ = ["Utf8Stream"]

_BLOCK = 1 << 22


class Utf8Stream(io.RawIOBase):
    """Reads a file once, from after its mark and skipped lines to its end.

    Args:
        path: the file; closed with the stream.
        dialect: its encoding, delimiter and quotation marks.

    Raises:
        OSError: the file cannot be opened.
        SourceInvalid: in ``read``: bytes that are no text, NUL characters, quotation marks that RFC 4180 does not know.
    """

    def __init__(self, path: Path, dialect: CsvDialect) -> None:
        super().__init__()
        self._name = path.name
        self._dialect = dialect
        self._file: BinaryIO = path.open("rb")
        self._file.seek(dialect.mark)
        self._decoder = codecs.getincrementaldecoder(dialect.encoding)("strict")
        self._lines = 1
        self._to_skip = dialect.skip_lines
        self._quotes = QuotationMarks(ord(dialect.delimiter))
        self._waiting = b""
        self._ended = False

    def readable(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Closes the file too."""
        self._file.close()
        super().close()

    def readinto(self, buffer: Buffer) -> int:
        """Fills the buffer; 0 at the end."""
        view = memoryview(buffer).cast("B")
        while not self._waiting and not self._ended:
            self._waiting = self._next_block(max(len(view), _BLOCK))
        taken = self._waiting[: len(view)]
        view[: len(taken)] = taken
        self._waiting = self._waiting[len(taken) :]
        return len(taken)

    def _next_block(self, size: int) -> bytes:
        block = self._decoded(size)
        while self._to_skip and not self._ended:
            _, ended, rest = block.partition(b"\n")
            self._to_skip -= len(ended)
            self._lines += len(ended)
            block = rest if ended else self._decoded(size)
        self._check(block)
        self._lines += block.count(b"\n")
        return block

    def _decoded(self, size: int) -> bytes:
        """The next bytes as UTF-8, checked to be text."""
        raw = self._file.read(size)
        self._ended = not raw
        try:
            text = self._decoder.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            line = self._lines + error.object.count(b"\n", 0, error.start)
            raise not_in_encoding(self._name, line, self._dialect.encoding) from error
        return raw if self._dialect.encoding == "utf-8" else text.encode()

    def _check(self, block: bytes) -> None:
        if b"\0" in block:
            line = self._lines + block.count(b"\n", 0, block.index(b"\0"))
            raise SourceInvalid(
                f"{self._name}:{line}: holds NUL characters, which no text has.",
                hint='Export it again, or declare its encoding in site.toml: [data.csv] encoding = "utf-16".',
            )
        if not self._dialect.quote:
            return
        wrong = self._quotes.end() if self._ended else self._quotes.take(block, self._lines)
        if wrong is not None:
            raise SourceInvalid(
                f"{self._name}:{wrong.line}: {wrong.why}.",
                hint="Double each quotation mark inside a quoted cell, or declare that there are none: [data.csv] quote = false.",
            )
