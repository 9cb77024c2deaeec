"""The text of a join token."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.certificates import CertificateAuthority
from fedloop_core.errors import JoinRefused
from fedloop_core.federation.join import JoinToken, new_secret
from fedloop_server.membership.pem import first_der

AUTHORITY = CertificateAuthority.create("test", 1_800_000_000).certificate
TOKEN = JoinToken("north", "fl.example.org:8443", new_secret(), first_der(AUTHORITY), 1_800_000_000)


def test_a_token_reads_as_it_was_written_also_wrapped_by_a_mail_program() -> None:
    text = TOKEN.to_text()
    wrapped = "\n ".join(text[at : at + 60] for at in range(0, len(text), 60)) + " \r\n"
    assert JoinToken.parse(text) == JoinToken.parse(wrapped) == TOKEN
    assert TOKEN.authority_pem() == AUTHORITY
    assert len(TOKEN.fingerprint().split()) == 8
    assert TOKEN.secret not in text  # it is inside, but nobody greps it out of a mail by accident


@given(st.data())
def test_a_token_that_was_cut_or_altered_is_noticed(data: st.DataObject) -> None:
    text = TOKEN.to_text()
    at = data.draw(st.integers(15, len(text) - 2))
    altered = data.draw(
        st.sampled_from([text[:at], text[:at] + text[at + 1 :], text[:at] + "-_"[text[at] == "-"] + text[at + 1 :]])
    )
    with pytest.raises(JoinRefused) as refused:
        JoinToken.parse(altered)
    assert refused.value.fields["reason"] == "format"


@pytest.mark.parametrize("text", ["", "x", "fedloop-join-2.AAAA", "fedloop-join-1.", "fedloop-join-1.é", "x" * 100_000])
def test_what_is_no_token_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(JoinRefused):
        JoinToken.parse(text)
