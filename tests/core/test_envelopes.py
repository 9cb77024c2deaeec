from __future__ import annotations

import pytest

from fedloop_core.errors import EnvelopeRefused
from fedloop_core.keys import SigningKey, seal, unseal
from fedloop_proto.coordination.v1.coordination_pb2 import Instruction

KEY = SigningKey.generate()


@pytest.mark.parametrize(
    ("expires", "reason"), [(0, "expiry"), (-5, "expiry"), (99, "expired"), (100, None), (101, None)]
)
def test_an_instruction_is_good_until_it_expires_and_says_when(expires: int, reason: str | None) -> None:
    envelope = seal(Instruction(site="north", expires_unix=expires), KEY)
    if reason is None:
        assert unseal(envelope, KEY.verifying, site="north", now_unix=100)[0].expires_unix == expires
        return
    with pytest.raises(EnvelopeRefused) as caught:
        unseal(envelope, KEY.verifying, site="north", now_unix=100)
    assert caught.value.fields["reason"] == reason
