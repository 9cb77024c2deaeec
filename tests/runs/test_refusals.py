"""What is kept of an error that was told over the wire, and what of it reaches a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import UNKNOWN_CODE, FedloopError, PolicyRefused, class_of, heard
from fedloop_core.printable import printable
from fedloop_server.runs.behind import check_attempt
from fedloop_server.runs.replies import SiteFailure


@given(text=st.text(), longest=st.none() | st.integers(1, 40))
def test_text_of_others_is_one_line_of_printed_characters(text: str, longest: int | None) -> None:
    said = printable(text, longest)
    assert said.isprintable()
    assert longest is None or len(said) <= longest
    if text.isprintable() and (longest is None or len(text) <= longest):
        assert said == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("north", "north"),
        ("Übergröße 12 µm", "Übergröße 12 µm"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\r\nb\tc", r"a\r\nb\tc"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\x9b31m", r"\x9b31m"),
    ],
)
def test_what_a_terminal_obeys_is_written_out(text: str, said: str) -> None:
    assert printable(text) == said


@given(code=st.text(max_size=20) | st.sampled_from(["FL-TRUST-006", "FL-UPD-001"]), name=st.text(), value=st.text())
def test_nothing_of_a_refusal_is_the_senders_but_short_values_of_known_fields(code: str, name: str, value: str) -> None:
    told = heard(code, {name: value, "rule": value})
    kind = class_of(told.code)
    assert (kind is None) == (told.code == UNKNOWN_CODE)
    assert set(told.fields) <= (kind.wire_fields if kind else set())
    assert all(said.isprintable() and len(said) <= 100 for said in told.fields.values())


def test_an_error_is_heard_as_it_was_told() -> None:
    error = PolicyRefused("not now.", rule="hours", hour="3")
    assert heard(error.wire().code, error.wire().fields) == error.wire()
    assert class_of("FL-ANY-000") is FedloopError
    assert class_of("FL-RUN-010") is None


def test_an_attempt_of_many_digits_is_none() -> None:
    fields = heard("FL-TRUST-001", {"attempt": "9" * 5000}).fields
    check_attempt(SiteFailure("odd", "FL-TRUST-001", fields, "it refused"), 1)
