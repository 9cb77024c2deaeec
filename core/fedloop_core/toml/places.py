"""Where each key and value of a TOML document stands, by a real parser (tree-sitter).

``tomllib`` gives values without places. The grammar gives places without values; both read the same text, so a path of
keys and positions (``("features", 2, "range")``) finds its line here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedloop_core.strict import Place

if TYPE_CHECKING:
    from tree_sitter import Node

__all__ = ["Position", "find_positions", "position_of"]

_TABLES = frozenset({"table", "table_array_element"})


@dataclass(frozen=True)
class Position:
    """A place in a text; lines and columns (in characters) count from 1."""

    line: int
    column: int


def find_positions(text: str) -> dict[Place, Position]:
    """Positions of every key, table and array element of a document that ``tomllib`` accepts.

    Raises:
        ImportError: tree-sitter or its TOML grammar is not installed.
    """
    from tree_sitter import Language, Parser  # here, since only mistakes need places
    from tree_sitter_toml import language

    content = text.encode()
    tree = Parser(Language(language())).parse(content)
    return _Walk(content).document(tree.root_node)


def position_of(place: Place, positions: dict[Place, Position]) -> Position:
    """The position of a place, or of the nearest table above it that stands in the text."""
    for length in range(len(place), 0, -1):
        if place[:length] in positions:
            return positions[place[:length]]
    return Position(1, 1)


class _Walk:
    """One pass over a syntax tree; the first mention of a place is its position."""

    def __init__(self, content: bytes) -> None:
        self._lines = content.split(b"\n")
        self._positions: dict[Place, Position] = {}
        self._lengths: dict[Place, int] = {}  # of arrays of tables

    def document(self, root: Node) -> dict[Place, Position]:
        for node in root.named_children:
            if node.type == "pair":
                self._pair(node, ())
            elif node.type in _TABLES:
                self._table(node)
        return self._positions

    def _table(self, node: Node) -> None:
        header, *pairs = [child for child in node.named_children if child.type != "comment"]
        keys = _keys(header)
        place: Place = ()
        for key in keys[:-1]:
            place = self._inside((*place, key))
        place = (*place, keys[-1])
        self._note(place, node)
        if node.type == "table_array_element":
            self._lengths[place] = self._lengths.get(place, 0) + 1
            place = self._inside(place)
            self._note(place, node)
        for pair in pairs:
            self._pair(pair, place)

    def _inside(self, place: Place) -> Place:
        """A key that names an array of tables means its last table."""
        return (*place, self._lengths[place] - 1) if place in self._lengths else place

    def _pair(self, node: Node, above: Place) -> None:
        key, value = [child for child in node.named_children if child.type != "comment"]
        place = above
        for part in _keys(key):
            place = (*place, part)
            self._note(place, key)
        self._value(value, place)

    def _value(self, node: Node, place: Place) -> None:
        for at, child in enumerate(_members(node)):
            if node.type == "inline_table":
                self._pair(child, place)
            elif node.type == "array":
                self._note((*place, at), child)
                self._value(child, (*place, at))

    def _note(self, place: Place, node: Node) -> None:
        row, byte = node.start_point
        column = len(self._lines[row][:byte].decode())
        self._positions.setdefault(place, Position(row + 1, column + 1))


def _members(node: Node) -> Iterator[Node]:
    return (child for child in node.named_children if child.type != "comment")


def _keys(node: Node) -> tuple[str, ...]:
    """The keys of a bare, quoted or dotted key, unescaped by the TOML parser itself."""
    written = (node.text or b"").decode()
    keys: list[str] = []
    inner: object = tomllib.loads(f"{written} = 0")
    while isinstance(inner, dict):
        key, inner = next(iter(inner.items()))
        keys.append(key)
    return tuple(keys)
