"""Every mistake in a task file is told in plain words, with its line and column."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from fedloop_core.errors import TaskInvalid, TaskUnreadable
from fedloop_core.task.document import Task
from fedloop_core.task.reader import parse_task, read_task
from fedloop_core.toml.reader import MAXIMUM_BYTES
from fedloop_core.toml.words import PATTERNS

GOOD = """\
format = 1
name = "good"
[[features]]
kind = "numeric"
name = "age"
range = [0, 120]
[[features]]
kind = "categorical"
name = "sex"
values = ["f", "m"]
[label]
kind = "classes"
name = "y"
classes = ["no", "yes"]
[model]
kind = "mlp"
hidden = [16]
[training]
algorithm = "fedavg"
learning_rate = 0.1
[privacy]
epsilon = 8
delta = 1e-5
[rollout]
waves = [0.5, 1]
"""


@dataclass(frozen=True)
class Bad:
    """``line`` of the good file is replaced by ``text``; ``problem`` is what is said, after the file's name."""

    name: str
    line: str
    text: str
    problem: str


BAD = (
    Bad(
        "unknown key", "hidden = [16]", "hiden = [16]", ":17:1: model.hiden is not a known key; did you mean 'hidden'?"
    ),
    Bad(
        "unknown key, none close",
        "hidden = [16]",
        "zzz = 1",
        ":17:1: model.zzz is not a known key; known here: embedding, hidden, kind.",
    ),
    Bad("unknown table", "[rollout]", "[rolout]", ":24:1: rolout is not a known key; did you mean 'rollout'?"),
    Bad(
        "text for number", "epsilon = 8", 'epsilon = "8"', ":22:1: privacy.epsilon must be a number, not the text '8'."
    ),
    Bad("number for text", 'name = "good"', "name = 7", ":2:1: name must be text in quotes, not 7."),
    Bad(
        "table for number", "epsilon = 8", "epsilon = {a = 1}", ":22:1: privacy.epsilon must be a number, not a table."
    ),
    Bad("number for array", "hidden = [16]", "hidden = 16", ":17:1: model.hidden must be an array, not 16."),
    Bad("true for number", "epsilon = 8", "epsilon = true", ":22:1: privacy.epsilon must be a number, not true."),
    Bad(
        "fraction for whole number",
        "hidden = [16]",
        "hidden = [8, 16.5]",
        ":17:14: model.hidden[1] must be a whole number, not 16.5.",
    ),
    Bad(
        "epsilon 0",
        "epsilon = 8",
        "epsilon = 0",
        ":22:1: privacy.epsilon must be above 0 (inf trains without privacy), not 0.",
    ),
    Bad(
        "epsilon negative",
        "epsilon = 8",
        "epsilon = -1.5",
        ":22:1: privacy.epsilon must be above 0 (inf trains without privacy), not -1.5.",
    ),
    Bad("epsilon nan", "epsilon = 8", "epsilon = nan", ":22:1: privacy.epsilon is nan, which is no number."),
    Bad(
        "epsilon date",
        "epsilon = 8",
        "epsilon = 2024-01-01",
        ":22:1: privacy.epsilon is a date or time; write it in quotes if text is meant.",
    ),
    Bad("delta 1", "delta = 1e-5", "delta = 1", ":23:1: privacy.delta must be below 1, not 1."),
    Bad("delta 0", "delta = 1e-5", "delta = 0.0", ":23:1: privacy.delta must be above 0, not 0."),
    Bad("epsilon missing", "epsilon = 8", "", ":21:1: privacy.epsilon is missing."),
    Bad(
        "learning rate 0",
        "learning_rate = 0.1",
        "learning_rate = 0",
        ":20:1: training.learning_rate must be above 0, not 0.",
    ),
    Bad(
        "learning rate inf",
        "learning_rate = 0.1",
        "learning_rate = inf",
        ":20:1: training.learning_rate must be a finite number, not inf.",
    ),
    Bad(
        "feature named twice",
        'name = "sex"',
        'name = "age"',
        ":9:1: the name 'age' is given twice; features and label need names of their own.",
    ),
    Bad(
        "label named as a feature",
        'name = "y"',
        'name = "age"',
        ":13:1: the name 'age' is given twice; features and label need names of their own.",
    ),
    Bad(
        "range reversed",
        "range = [0, 120]",
        "range = [120, 0]",
        ":6:1: feature 'age': range must be two finite numbers, low before high, not [120, 0].",
    ),
    Bad("range of one", "range = [0, 120]", "range = [0]", ":6:1: feature 'age': range has too few values."),
    Bad(
        "range of three",
        "range = [0, 120]",
        "range = [0, 1, 2]",
        ":6:1: feature 'age': range may have at most 2 values.",
    ),
    Bad(
        "unknown kind of feature",
        'kind = "numeric"',
        'kind = "number"',
        ":4:1: feature 'age': kind must be 'numeric', 'date', 'categorical', 'image' or 'signal', not the text 'number'; did you mean 'numeric'?",
    ),
    Bad("feature without kind", 'kind = "numeric"', "", ":3:1: feature 'age': kind is missing."),
    Bad("feature without name", 'name = "age"', "", ":3:1: feature 1: name is missing."),
    Bad(
        "name of a feature",
        'name = "age"',
        'name = "1 age"',
        ":5:1: feature '1 age': name must begin with a letter and hold letters, digits, '_' and '-' only, not '1 age'.",
    ),
    Bad(
        "value twice",
        'values = ["f", "m"]',
        'values = ["f", "f"]',
        ":10:1: feature 'sex': values must be distinct; given twice: f.",
    ),
    Bad("one value", 'values = ["f", "m"]', 'values = ["f"]', ":10:1: feature 'sex': values needs at least 2 values."),
    Bad(
        "number as class",
        'classes = ["no", "yes"]',
        'classes = ["no", 1]',
        ":14:18: label.classes[1] must be text in quotes, not 1.",
    ),
    Bad(
        "model and features",
        'kind = "mlp"\nhidden = [16]',
        'kind = "cnn"',
        ":16:1: model 'cnn' takes exactly one image feature.",
    ),
    Bad(
        "waves fall",
        "waves = [0.5, 1]",
        "waves = [1, 0.5]",
        ":25:1: rollout.waves must rise and end with 1.0, not [1, 0.5].",
    ),
    Bad(
        "waves end early",
        "waves = [0.5, 1]",
        "waves = [0.5]",
        ":25:1: rollout.waves must rise and end with 1.0, not [0.5].",
    ),
    Bad("wave of 0", "waves = [0.5, 1]", "waves = [0, 1]", ":25:10: rollout.waves[0] must be above 0, not 0."),
    Bad("another format", "format = 1", "format = 2", ":1:1: format must be 1, not 2."),
    Bad(
        "name of the task",
        'name = "good"',
        'name = "Good"',
        ":2:1: name must begin with a small letter and hold up to 63 small letters, digits and '-', not 'Good'.",
    ),
    Bad(
        "choice",
        "[rollout]",
        '[preprocessing]\nscaling = "global"\n[rollout]',
        ":25:1: preprocessing.scaling must be 'range', 'federated' or 'per-site', not the text 'global'.",
    ),
    Bad(
        "too long a name",
        'name = "age"',
        f'name = "{"a" * 101}"',
        ":5:1: feature 'AAA': name may have at most 100 characters.",
    ),
    Bad("dotted key in a table", "hidden = [16]", "hidden.a = 1", ":17:1: model.hidden must be an array, not a table."),
    Bad(
        "fewer rows allowed than needed",
        "[rollout]",
        "[gates.data]\nminimum_rows = 50\nmaximum_rows = 49\n[rollout]",
        ":26:1: gates.data.maximum_rows is 49, below gates.data.minimum_rows, 50: no site could take part.",
    ),
    Bad(
        "column counts characters",
        "[rollout]",
        '[gates]\ndata = {"minimum_rows" = 0} # ä\n[rollout]',
        ":25:9: gates.data.minimum_rows must be at least 1, not 0.",
    ),
)


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: bad.name)
def test_mistake_has_its_place_and_plain_words(bad: Bad) -> None:
    assert GOOD.count(f"\n{bad.line}\n") == 1 or GOOD.startswith(bad.line)
    with pytest.raises(TaskInvalid) as raised:
        parse_task(GOOD.replace(bad.line, bad.text, 1))
    assert raised.value.problems == (f"task.toml{bad.problem}".replace("AAA", "a" * 101),)


def test_the_good_task_is_good() -> None:
    assert parse_task(GOOD).name == "good"
    assert parse_task(GOOD.replace("epsilon = 8", "epsilon = inf")).privacy.private is False


def test_all_mistakes_are_told_at_once_in_the_order_of_lines() -> None:
    text = GOOD
    for bad in (BAD[0], BAD[3], BAD[19], BAD[20]):
        text = text.replace(bad.line, bad.text, 1)
    text = text.replace('name = "good"', "name = 1979-05-27")
    with pytest.raises(TaskInvalid) as raised:
        parse_task(text, source="my.toml")
    lines = [int(problem.split(":")[1]) for problem in raised.value.problems]
    assert lines == [2, 6, 17, 22]
    assert str(raised.value) == "FL-TASK-002: my.toml has 4 mistakes."


def test_parts_that_do_not_fit_are_told_together() -> None:
    text = GOOD.replace('"no", "yes"', '"a", "b", "c"').replace('"fedavg"\nlearning_rate = 0.1', '"newton"')
    with pytest.raises(TaskInvalid) as raised:
        parse_task(text)
    assert raised.value.problems == (
        "task.toml:19:1: training 'newton' needs model 'logistic' and a label with two classes.",
        "task.toml:21:1: training 'newton' sends exact sums: it needs privacy.epsilon = inf.",
    )


def test_newton_under_privacy_is_a_mistake() -> None:
    text = GOOD.replace('"mlp"\nhidden = [16]', '"logistic"').replace('"fedavg"\nlearning_rate = 0.1', '"newton"')
    with pytest.raises(TaskInvalid, match="1 mistake") as raised:
        parse_task(text)
    assert raised.value.problems == (
        "task.toml:20:1: training 'newton' sends exact sums: it needs privacy.epsilon = inf.",
    )


def test_survival_under_privacy_is_a_mistake() -> None:
    label = 'kind = "survival"\ntime = "months"\nevent = "died"\ntime_range = [0, 120]'
    with pytest.raises(TaskInvalid) as raised:
        parse_task(GOOD.replace('kind = "classes"\nname = "y"\nclasses = ["no", "yes"]', label))
    (problem,) = raised.value.problems
    assert problem.startswith("task.toml:23:1: a survival label is trained by a partial likelihood")


def test_an_image_may_not_be_named_as_the_input_of_all_numbers() -> None:
    features = '[[features]]\nkind = "image"\nname = "numeric"\nheight = 8\nwidth = 8\n[label]'
    text = GOOD.replace("[label]", features).replace('kind = "mlp"\nhidden = [16]', 'kind = "cnn"')
    with pytest.raises(TaskInvalid) as raised:
        parse_task(text)
    (problem,) = raised.value.problems
    assert problem.startswith("task.toml:13:1: an image or signal may not be named 'numeric'")


def test_an_empty_file_lacks_every_key() -> None:
    with pytest.raises(TaskInvalid) as raised:
        parse_task("")
    missing = ("format", "name", "features", "label", "model", "privacy")
    assert raised.value.problems == tuple(f"task.toml:1:1: {key} is missing." for key in missing)


@dataclass(frozen=True)
class Unreadable:
    """Bytes that are no task file, and what is said after the file's name."""

    name: str
    content: bytes
    words: str


UNREADABLE = (
    Unreadable("key twice", b"a = 1\na = 2\n", ":2:6: is not TOML: Cannot overwrite a value."),
    Unreadable("table twice", b"[a]\nb = 1\n[a]\n", ":3:3: is not TOML: Cannot declare ('a',) twice."),
    Unreadable("no value", b"\n\na =\n", ":3:4: is not TOML: Invalid value."),
    Unreadable("no quotes", b"a = b\n", ":1:5: is not TOML: Invalid value."),
    Unreadable("open string", b'a = 1\nb = "', ":2:1: is not TOML: Unterminated string."),
    Unreadable("JSON", b'{"a": 1}', ":1:1: is not TOML: Invalid statement."),
    Unreadable("latin-1", 'a = 1\nb = "Zürich"\n'.encode("latin-1"), ":2:7: is not UTF-8 text."),
    Unreadable("UTF-16", "a = 1".encode("utf-16"), ":1: is UTF-16 text."),
    Unreadable(
        "nested too deeply", b"a = " + b"[" * 100_000, ": is not a task file: its arrays are nested too deeply."
    ),
    Unreadable("number too long", b"a = " + b"9" * 10_000, ": holds a number with thousands of digits."),
    Unreadable("file too long", b"#" * (MAXIMUM_BYTES + 1), f" is longer than {MAXIMUM_BYTES} bytes"),
)


@pytest.mark.parametrize("bad", UNREADABLE, ids=lambda bad: bad.name)
def test_unreadable_file_says_where(bad: Unreadable, tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_bytes(bad.content)
    with pytest.raises(TaskUnreadable) as raised:
        read_task(file)
    assert raised.value.message.startswith(f"{file}{bad.words}")


def test_a_missing_file_and_a_folder_are_unreadable(tmp_path: Path) -> None:
    with pytest.raises(TaskUnreadable, match="No such file"):
        read_task(tmp_path / "none.toml")
    with pytest.raises(TaskUnreadable, match="Is a directory"):
        read_task(tmp_path)


def test_a_byte_order_mark_and_windows_lines_are_no_mistake(tmp_path: Path) -> None:
    file = tmp_path / "task.toml"
    file.write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert read_task(file) == parse_task(GOOD)


def test_every_pattern_of_the_document_has_words() -> None:
    def patterns(node: object) -> set[str]:
        if isinstance(node, dict):
            own = {node["pattern"]} if isinstance(node.get("pattern"), str) else set()
            return own.union(*(patterns(value) for value in node.values()))
        return set().union(*(patterns(value) for value in node)) if isinstance(node, list) else set()

    assert patterns(Task.model_json_schema()) <= set(PATTERNS)
