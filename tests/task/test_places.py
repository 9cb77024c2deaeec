"""Keys and values of TOML are found where they stand, however they are written."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import TaskInvalid
from fedloop_core.strict import Place
from fedloop_core.task.reader import parse_task
from fedloop_core.toml.places import Position, find_positions, position_of

WRITINGS = {
    "bare key": ("top = 1", ("top",), Position(1, 1)),
    "after a comment": ("# x\n\ntop = 1", ("top",), Position(3, 1)),
    "dotted and quoted keys": ("a.b.\"c d\".'e' = 1", ("a", "b", "c d", "e"), Position(1, 1)),
    "escaped key": ('"\\u00e4" = 1', ("ä",), Position(1, 1)),
    "empty key": ('"" = 1', ("",), Position(1, 1)),
    "inline table": ("t = {x = 1, y.z = [1, 2]}", ("t", "y", "z", 1), Position(1, 23)),
    "characters, not bytes": ('t = ["ä", 2]', ("t", 1), Position(1, 11)),
    "table": ("[t]\nx = 1\n[t.u]\ny = 2", ("t", "u", "y"), Position(4, 1)),
    "spaces in a header": ("[ t . u ]\ny = 2", ("t", "u", "y"), Position(2, 1)),
    "comment in a header": ("[t] # x\ny = 2", ("t", "y"), Position(2, 1)),
    "second of an array of tables": ("[[f]]\nx = 1\n[[f]]\nx = 2", ("f", 1, "x"), Position(4, 1)),
    "the array itself": ("[[f]]\nx = 1\n[[f]]\nx = 2", ("f",), Position(1, 1)),
    "table in the last of an array": ("[[f]]\n[[f]]\n[f.g]\ny = 1", ("f", 1, "g", "y"), Position(4, 1)),
    "array in an array": ("[[f]]\n[[f.g]]\n[[f]]\n[[f.g]]\n[[f.g]]\ny = 1", ("f", 1, "g", 1, "y"), Position(6, 1)),
    "array over lines with comments": ("a = [ # one\n  1,\n  # two\n  2,\n]", ("a", 1), Position(4, 3)),
    "string over lines": ('a = """\nx = 1\n"""\nx = 2', ("x",), Position(4, 1)),
    "windows lines": ("a = 1\r\nb = 2\r\n", ("b",), Position(2, 1)),
    "unknown: the table above": ("[t]\nx = 1", ("t", "z"), Position(1, 1)),
    "unknown: the document": ("x = 1", ("z",), Position(1, 1)),
}


@pytest.mark.parametrize("writing", WRITINGS.values(), ids=WRITINGS.keys())
def test_position(writing: tuple[str, Place, Position]) -> None:
    text, place, position = writing
    assert position_of(place, find_positions(text)) == position


def _places(node: object, above: Place = ()) -> Iterator[Place]:
    members: list[tuple[str | int, object]] = []
    if isinstance(node, dict):
        members = list(node.items())
    elif isinstance(node, list):
        members = list(enumerate(node))
    for key, value in members:
        yield (*above, key)
        yield from _places(value, (*above, key))


KEYS = st.sampled_from(["a", "b-1", '"c d"', "'e.f'", '"\\t"'])
SCALARS = st.sampled_from(["1", "1.5", "inf", "true", '"text # no comment"', "'''x\ny'''", "2024-01-01"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(KEYS, inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"{key} = {value}" for key, value in items.items()) + "}"
        ),
    ),
    max_leaves=6,
)
TABLES = st.tuples(st.sampled_from(["[{}]", "[[{}]]"]), KEYS, st.dictionaries(KEYS, VALUES, max_size=3))


@given(st.dictionaries(KEYS, VALUES, max_size=3), st.lists(TABLES, max_size=4))
def test_every_place_that_tomllib_reads_has_a_position(
    top: dict[str, str], tables: list[tuple[str, str, dict[str, str]]]
) -> None:
    lines = [f"{key} = {value}" for key, value in top.items()]
    for header, key, pairs in tables:
        lines += [header.format(f"t.{key}"), *(f"{name} = {value}" for name, value in pairs.items())]
    text = "\n".join(lines)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return  # the same table twice
    positions = find_positions(text)
    implied = {("t",)} if tables else set()  # a table that only headers of tables below it name
    assert set(_places(document)) - implied <= set(positions)


def test_sound_tasks_need_no_second_parser() -> None:
    program = (
        "import sys; from fedloop_core.task import Task; from fedloop_core.task.presets import load_preset;"
        "Task.from_canonical(load_preset('digits').canonical());"
        "sys.exit(any(name.startswith('tree_sitter') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


def test_mistakes_are_told_without_lines_where_the_second_parser_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    with pytest.raises(TaskInvalid, match=r"Line numbers need `pip install 'fedloop\[server\]'`") as raised:
        parse_task('format = 1\nname = "x"\n')
    assert raised.value.problems[0] == "task.toml: features is missing."
