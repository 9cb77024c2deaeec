"""What a coordinator can change in its questions, and what each site says to it. S1 to S9 are faults of other systems.

S1, S2, S3 and S8 (guessable masks, masks that are not uniform) are in ``test_primitives``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from tests.secure_aggregation.federation import (
    ACCOMPLICE,
    AT,
    RUN,
    VICTIM,
    Federation,
    Tamper,
    advertised,
    names,
    run,
    with_keys,
)

from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.agreement import KeyPair
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import (
    Advertisement,
    ConfirmSurvivors,
    MaskInput,
    Question,
    SealedShares,
    ShareKeys,
    SiteSignature,
    Unmask,
)
from fedloop_server.secure_aggregation.machine import Stage

LOW_ORDER = bytes(32)
S, M, C, U = Stage.SHARES, Stage.INPUTS, Stage.SURVIVORS, Stage.UNMASKING


def own(question: ShareKeys, site: str = VICTIM) -> Advertisement:
    return next(advertisement for advertisement in question.cohort if advertisement.site == site)


Change = Callable[[Federation, Question], Question]


@dataclass(frozen=True)
class Asked:
    """A question that the coordinator has changed for the victim, and why the victim refuses it."""

    name: str
    stage: Stage
    change: Change
    reason: str


def terms(**changed: object) -> Change:
    def change(_: Federation, question: Question) -> Question:
        assert isinstance(question, ShareKeys)
        return replace(question, terms=replace(question.terms, **changed))  # type: ignore[arg-type]

    return change


def cohort(make: Callable[[Federation, ShareKeys], ShareKeys]) -> Change:
    def change(federation: Federation, question: Question) -> Question:
        assert isinstance(question, ShareKeys)
        return make(federation, question)

    return change


def sealed(make: Callable[[MaskInput], tuple[SealedShares, ...]]) -> Change:
    def change(_: Federation, question: Question) -> Question:
        assert isinstance(question, MaskInput)
        return replace(question, sealed=make(question))

    return change


def survivors(*sites: str) -> Change:
    def change(_: Federation, question: Question) -> Question:
        return ConfirmSurvivors(question.instance, sites)

    return change


def signatures(make: Callable[[Unmask], tuple[SiteSignature, ...]]) -> Change:
    def change(_: Federation, question: Question) -> Question:
        assert isinstance(question, Unmask)
        return replace(question, signatures=make(question))

    return change


def unsigned(federation: Federation, question: ShareKeys) -> ShareKeys:
    return with_keys(question, replace(own(question, "site-01"), mask_key=KeyPair.generate().public))


def stranger(federation: Federation, question: ShareKeys) -> ShareKeys:
    federation.keys["site-99"] = SigningKey.generate()
    larger = replace(question, terms=replace(question.terms, threshold=5))
    return with_keys(larger, advertised(federation, "site-99"))


def own_name_by_another(federation: Federation, question: ShareKeys) -> ShareKeys:
    return with_keys(question, replace(own(question), signature=own(question, "site-01").signature))


def one_key_twice(federation: Federation, question: ShareKeys) -> ShareKeys:
    taken = own(question, "site-01").mask_key
    return with_keys(question, advertised(federation, ACCOMPLICE, mask_key=taken))


def sized(question: ShareKeys, sites: int) -> ShareKeys:
    few = replace(question, cohort=question.cohort[:sites])
    return replace(few, terms=replace(question.terms, threshold=min(sites, question.terms.threshold)))


def signed_otherwise(question: Unmask) -> tuple[SiteSignature, ...]:
    first, second, *rest = question.signatures
    return (replace(first, signature=second.signature), second, *rest)


def swapped(question: MaskInput) -> tuple[SealedShares, ...]:
    first, second, *rest = question.sealed
    return (replace(first, content=second.content), replace(second, content=first.content), *rest)


def flipped(question: MaskInput) -> tuple[SealedShares, ...]:
    first, *rest = question.sealed
    return (replace(first, content=first.content[:-1] + bytes([first.content[-1] ^ 1])), *rest)


def another_instance(federation: Federation, question: Question) -> Question:
    return replace(question, instance=replace(question.instance, number=question.instance.number + 5))


ASKED = [
    Asked("S5 a threshold that few accomplices meet", S, terms(threshold=2), "threshold"),
    Asked("S5 a threshold of half", S, terms(threshold=3), "threshold"),
    Asked("S5 a threshold that nobody can meet", S, terms(threshold=9), "threshold"),
    Asked("S5 a cohort of two", S, cohort(lambda _, q: sized(q, 2)), "cohort"),
    Asked("S5 a cohort of one", S, cohort(lambda _, q: sized(q, 1)), "cohort"),
    Asked("S5 keys of the coordinator in a site's name", S, cohort(unsigned), "signature"),
    Asked("S5 another's signature under the own name", S, cohort(own_name_by_another), "signature"),
    Asked(
        "S5 keys of a site from the round before",
        S,
        cohort(lambda f, q: with_keys(q, advertised(f, "site-01", Instance(RUN, 0, 1)))),
        "instance",
    ),
    Asked(
        "S5 keys of another round under this one's number",
        S,
        cohort(lambda f, q: with_keys(q, replace(advertised(f, "site-01", Instance(RUN, 0, 1)), instance=AT))),
        "signature",
    ),
    Asked("S5 a site that people do not know", S, cohort(stranger), "unknown-site"),
    Asked("S5 one key for two sites", S, cohort(one_key_twice), "key"),
    Asked(
        "S5 one key for masks and channels",
        S,
        cohort(lambda f, q: with_keys(q, advertised(f, ACCOMPLICE, mask_key=b"k" * 32, channel_key=b"k" * 32))),
        "key",
    ),
    Asked(
        "S5 a channel key that gives everybody one secret",
        S,
        cohort(lambda f, q: with_keys(q, advertised(f, ACCOMPLICE, channel_key=LOW_ORDER))),
        "key",
    ),
    Asked("S5 a cohort without this site", S, cohort(lambda _, q: with_keys(q, without=(VICTIM,))), "own-keys"),
    Asked("S5 other keys of this site", S, cohort(lambda f, q: with_keys(q, advertised(f, VICTIM))), "own-keys"),
    Asked("S5 another fixed point", S, terms(largest_value=1.0), "largest-value"),
    Asked("S7 a total weight that this site alone exceeds", S, terms(total_weight=50), "weight"),
    Asked("S7 a total weight that leaves none to a fourth and a fifth site", S, terms(total_weight=102), "weight"),
    Asked("another model for this site", S, terms(model_digest=b"m" * 32), "model"),
    Asked("another task", S, terms(task_digest=b"t" * 32), "task"),
    Asked("another length", S, terms(values=7), "values"),
    Asked("S6 fewer members than the threshold", M, sealed(lambda q: q.sealed[:1]), "survivors"),
    Asked("shares changed on the way", M, sealed(flipped), "shares"),
    Asked("shares under another sender's name", M, sealed(swapped), "shares"),
    Asked(
        "shares of nobody in the cohort",
        M,
        sealed(lambda q: (*q.sealed, SealedShares("site-77", q.sealed[0].content))),
        "members",
    ),
    Asked(
        "shares of this site for itself",
        M,
        sealed(lambda q: (SealedShares(VICTIM, q.sealed[0].content), *q.sealed)),
        "members",
    ),
    Asked("S5 fewer survivors than the threshold", C, survivors("site-00", "site-01", "site-02"), "survivors"),
    Asked("survivors without this site", C, survivors("site-01", "site-02", "site-03", "site-04"), "survivors"),
    Asked("a survivor who is no member", C, survivors(*names(5), "site-77"), "members"),
    Asked("S5 one signature", U, signatures(lambda q: q.signatures[:1]), "survivors"),
    Asked("S5 one signature less than the threshold", U, signatures(lambda q: q.signatures[:3]), "survivors"),
    Asked("S5 signatures over other survivors", U, signatures(signed_otherwise), "signature"),
    Asked(
        "S5 a signature of no survivor",
        U,
        signatures(lambda q: (*q.signatures, SiteSignature("site-77", bytes(64)))),
        "signature",
    ),
    *(
        Asked(f"a question of another instance at {stage.name.lower()}", stage, another_instance, "instance")
        for stage in (S, M, C, U)
    ),
]


@pytest.mark.parametrize("row", ASKED, ids=lambda row: row.name)
def test_a_site_refuses_what_a_coordinator_changes(row: Asked) -> None:
    federation = Federation(5)
    round_ = federation.coordinator(AT)
    tamper: Tamper = lambda stage, site, q: (  # noqa: E731
        row.change(federation, q) if (stage, site) == (row.stage, VICTIM) else q
    )
    summed = run(federation, round_, tamper=tamper)
    assert [(d.site, d.stage, d.reason) for d in round_.dropped] == [(VICTIM, row.stage, row.reason)]
    assert summed is not None
    assert (VICTIM in summed.survivors) == (row.stage > Stage.INPUTS)
    assert summed.weight == sum(federation.weights[site] for site in summed.survivors)
    assert not federation.promises[VICTIM].read(AT).released
