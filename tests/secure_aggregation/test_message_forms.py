"""Messages that are not in their one form."""

from __future__ import annotations

import pytest
from tests.secure_aggregation.federation import (
    AT,
    RUN,
    VICTIM,
    Federation,
    run,
)

from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.secure_aggregation.encoding import MOST_BYTES, decode, encode
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Answer,
    Confirmation,
    ConfirmSurvivors,
    MaskInput,
    Question,
    ShareKeys,
    Unmask,
    Unmasking,
)
from fedloop_proto.secure_aggregation.v1 import secure_aggregation_pb2 as pb
from fedloop_server.secure_aggregation.machine import Stage

WIRE_AT = pb.Instance(run_id=RUN, round=1, number=2)
FORMS: dict[str, tuple[type[Question | Answer], bytes]] = {
    "no protobuf": (AdvertiseKeys, b"\xff\xff"),
    "nothing at all": (AdvertiseKeys, b""),
    "an unknown field": (AdvertiseKeys, pb.AdvertiseKeys(instance=WIRE_AT).SerializeToString() + b"\x78\x01"),
    "a field twice": (AdvertiseKeys, pb.AdvertiseKeys(instance=WIRE_AT).SerializeToString() * 2),
    "instance 0": (AdvertiseKeys, pb.AdvertiseKeys(instance=pb.Instance(run_id=RUN, round=1)).SerializeToString()),
    "a run without a name": (AdvertiseKeys, pb.AdvertiseKeys(instance=pb.Instance(number=1)).SerializeToString()),
    "too large": (Unmask, bytes(MOST_BYTES + 1)),
    "S4 a survivor twice": (
        ConfirmSurvivors,
        pb.ConfirmSurvivors(instance=WIRE_AT, survivors=["a", "a", "b"]).SerializeToString(),
    ),
    "S4 survivors in another order": (
        ConfirmSurvivors,
        pb.ConfirmSurvivors(instance=WIRE_AT, survivors=["b", "a"]).SerializeToString(),
    ),
    "more survivors than there can be": (
        ConfirmSurvivors,
        pb.ConfirmSurvivors(instance=WIRE_AT, survivors=[f"s{at:04}" for at in range(501)]).SerializeToString(),
    ),
    "a name that is none": (
        ConfirmSurvivors,
        pb.ConfirmSurvivors(instance=WIRE_AT, survivors=["../a"]).SerializeToString(),
    ),
    "a short signature": (Confirmation, pb.Confirmation(instance=WIRE_AT, signature=b"s").SerializeToString()),
    "a signer twice": (
        Unmask,
        pb.Unmask(
            instance=WIRE_AT, signatures=[pb.SiteSignature(site="a", signature=bytes(64))] * 2
        ).SerializeToString(),
    ),
    "S4 both shares of a site": (
        Unmasking,
        pb.Unmasking(
            instance=WIRE_AT,
            seeds=[pb.Share(site="a", content=bytes(16))],
            keys=[pb.Share(site="a", content=bytes(32))],
        ).SerializeToString(),
    ),
    "a short share": (
        Unmasking,
        pb.Unmasking(instance=WIRE_AT, seeds=[pb.Share(site="a", content=b"s")]).SerializeToString(),
    ),
    "sealed shares of another length": (
        MaskInput,
        pb.MaskInput(instance=WIRE_AT, sealed=[pb.SealedShares(site="a", content=bytes(9))]).SerializeToString(),
    ),
    "terms without a bound": (ShareKeys, pb.ShareKeys(instance=WIRE_AT).SerializeToString()),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_message_of_another_form_is_refused(name: str) -> None:
    kind, content = FORMS[name]
    with pytest.raises(SecureAggregationRefused) as refused:
        decode(kind, content)
    assert refused.value.fields["reason"] in ("format", "size")


def test_terms_that_are_not_finite_are_refused() -> None:
    federation = Federation(3)
    round_ = federation.coordinator(AT)
    run(federation, round_, until=Stage.SHARES)
    wire = pb.ShareKeys.FromString(encode(round_.ask_shares(federation.goal())[VICTIM]))
    for value in (float("nan"), float("inf"), 0.0, -1.0):
        wire.terms.largest_value = value
        with pytest.raises(SecureAggregationRefused):
            decode(ShareKeys, wire.SerializeToString(deterministic=True))
