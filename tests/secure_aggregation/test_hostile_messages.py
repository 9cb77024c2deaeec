"""Random and hostile messages at each stage never make a site break what it promises, as an independent observer judges.

``FEDLOOP_HOSTILE_MESSAGES`` says how many at each stage; unless told, 1000.
"""

from __future__ import annotations

import os
import random
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.secure_aggregation.federation import RUN, STEPS, VICTIM, Federation, advertised, names, questions_of, take
from tests.secure_aggregation.observer import Observer

from fedloop_core.errors import FedloopError
from fedloop_core.secure_aggregation.encoding import decode, encode
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Advertisement,
    Answer,
    ConfirmSurvivors,
    MaskInput,
    Question,
    SealedShares,
    ShareKeys,
    SiteSignature,
    Terms,
    Unmask,
)
from fedloop_core.secure_aggregation.transcript import survivors_text
from fedloop_server.secure_aggregation.machine import Stage

COUNT = 5
AMOUNT = int(os.environ.get("FEDLOOP_HOSTILE_MESSAGES", "1000"))
BATCH = 20  # messages in one example
KINDS: tuple[type[Question], ...] = (AdvertiseKeys, ShareKeys, MaskInput, ConfirmSurvivors, Unmask)
_Part = TypeVar("_Part")


class Adversary:
    """The coordinator with two sites on its side: it holds their identities, all that was ever sent, and bends it."""

    def __init__(self, federation: Federation, dice: random.Random) -> None:
        self.federation = federation
        self.dice = dice
        self.seen: list[Question] = []
        self.accomplices = ["site-03", "site-04"]

    def instance(self) -> Instance:
        return Instance(RUN if self.dice.random() < 0.9 else "other", self.dice.randint(0, 2), self.dice.randint(1, 4))

    def some(self, parts: tuple[_Part, ...]) -> tuple[_Part, ...]:
        """Left out, twice or in another order."""
        kept = [part for part in parts if self.dice.random() < 0.8]
        if parts and self.dice.random() < 0.2:
            kept.append(self.dice.choice(parts))
        if self.dice.random() < 0.1:
            self.dice.shuffle(kept)
        return tuple(kept)

    def sites(self) -> tuple[str, ...]:
        known = [*names(COUNT), "site-77"] if self.dice.random() < 0.2 else names(COUNT)
        return tuple(site for site in known if self.dice.random() < 0.85)

    def message(self, stage: Stage) -> Question:
        """Mostly of the stage that the site is at, often one that was right once, sometimes made from nothing."""
        kinds = KINDS if self.dice.random() < 0.1 else KINDS[1:]  # new keys end what the site is at
        kind = KINDS[stage] if self.dice.random() < 0.7 else self.dice.choice(kinds)
        old = [question for question in self.seen if isinstance(question, kind)]
        question = self.dice.choice(old) if old else self.made(kind)
        if self.dice.random() < 0.15:
            return question
        bent = self.bend(question)
        return replace(bent, instance=self.instance()) if self.dice.random() < 0.1 else bent

    def content(self, stage: Stage) -> tuple[type[Question], bytes]:
        """A message as bytes; those that have no right form, and some that have, with bytes that are changed."""
        try:
            question = self.message(stage)
            kind, content = type(question), encode(question)
        except FedloopError:
            kind, content = KINDS[stage], encode(self.dice.choice(self.seen))
            return kind, self.spoiled(content)
        return (kind, self.spoiled(content)) if self.dice.random() < 0.05 else (kind, content)

    def spoiled(self, content: bytes) -> bytes:
        at = self.dice.randrange(len(content))
        return self.dice.choice(
            [content[:at], content[:at] + self.dice.randbytes(1) + content[at + 1 :], content + content[at:]]
        )

    def made(self, kind: type[Question]) -> Question:
        at = self.instance()
        if kind is ShareKeys:
            terms = Terms(bytes(32), bytes([1]) * 32, 8, 10.0, self.federation.total_weight, 4)
            return ShareKeys(at, terms, ())
        if kind is MaskInput:
            return MaskInput(at, tuple(SealedShares(site, self.dice.randbytes(76)) for site in self.sites()))
        if kind is ConfirmSurvivors:
            return ConfirmSurvivors(at, self.sites())
        if kind is Unmask:
            return Unmask(at, tuple(SiteSignature(site, self.dice.randbytes(64)) for site in self.sites()))
        return AdvertiseKeys(at)

    def bend(self, question: Question) -> Question:
        match question:
            case AdvertiseKeys():
                return AdvertiseKeys(self.instance())
            case ShareKeys():
                cohort = self.some(tuple(self.keys_of(ad, question.instance) for ad in question.cohort))
                return replace(question, cohort=cohort, terms=self.terms(question.terms, len(cohort)))
            case MaskInput():
                return replace(question, sealed=self.some(tuple(map(self.sealed, question.sealed))))
            case ConfirmSurvivors():
                return replace(question, survivors=self.dice.choice([self.sites(), self.some(question.survivors)]))
            case Unmask():
                return self.signatures(question)

    def keys_of(self, advertisement: Advertisement, at: Instance) -> Advertisement:
        if self.dice.random() < 0.8:
            return advertisement
        if self.dice.random() < 0.6:
            return advertised(self.federation, self.dice.choice(self.accomplices), at)
        return replace(advertisement, mask_key=self.dice.randbytes(32))

    def terms(self, terms: Terms, cohort: int) -> Terms:
        if self.dice.random() < 0.5:
            return terms
        bent = replace(terms, threshold=self.dice.randint(1, max(cohort, 1)))
        return replace(bent, model_digest=bytes(32)) if self.dice.random() < 0.2 else bent

    def sealed(self, sealed: SealedShares) -> SealedShares:
        if self.dice.random() < 0.9:
            return sealed
        return replace(sealed, content=self.dice.randbytes(len(sealed.content)))

    def signatures(self, question: Unmask) -> Unmask:
        """The accomplices sign whatever list is needed; the others' signatures are those that they gave."""
        signed = {signature.site: signature for signature in question.signatures}
        state = self.federation.machines[VICTIM]._live.get((question.instance.run_id, question.instance.round))
        masked = getattr(state.state, "masked", None) if state else None
        if masked is not None and self.dice.random() < 0.5:
            text = survivors_text(masked.transcript, getattr(state.state, "survivors", ())) if state else b""
            for site in self.accomplices:
                signed[site] = SiteSignature(site, self.federation.keys[site].sign(text))
        if self.dice.random() < 0.2:  # enough names, and signatures that are none
            signed = {site: SiteSignature(site, self.dice.randbytes(64)) for site in names(COUNT)}
        return replace(question, signatures=self.some(tuple(signed[site] for site in sorted(signed))))


class Scene:
    """One federation under attack; ``put`` counts what was sent to the victim and what it answered."""

    def __init__(self, dice: random.Random) -> None:
        self.federation = Federation(COUNT)
        self.observer = Observer(VICTIM, 3, {site: key.verifying for site, key in self.federation.keys.items()})
        self.adversary = Adversary(self.federation, dice)
        self.sent, self.answered = 0, 0

    def put(self, kind: type[Question], content: bytes) -> Answer | None:
        """One message to the victim. What leaves is observed; what does not leave is refused with an error of ours."""
        try:
            question = decode(kind, content)
            answer = self.federation.answer(VICTIM, question)
        except FedloopError:
            return None
        self.observer.saw(question, answer)
        return answer

    def attack(self, stage: Stage, messages: int) -> None:
        """Hostile messages while the site is at a stage, or where they have led it."""
        for _ in range(messages):
            self.sent += 1
            self.answered += self.put(*self.adversary.content(stage)) is not None

    def instance(self, number: int, stage: Stage, messages: int) -> None:
        """One instance with the right questions to all; before the victim's at one stage come the hostile ones."""
        round_ = self.federation.coordinator(Instance(RUN, 1, number))
        for at in STEPS:
            asked = questions_of(round_, at, self.federation.goal())
            self.adversary.seen.extend(asked.values())
            if at is stage:
                self.attack(stage, messages)
            for site, question in asked.items():
                try:
                    mine = site == VICTIM
                    answer = self.put(KINDS[at], encode(question)) if mine else self.federation.answer(site, question)
                    if answer is not None:
                        take(round_, site, answer)
                except FedloopError:
                    continue
        round_.sum()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("stage", STEPS, ids=lambda stage: stage.name.lower())
def test_no_messages_make_a_site_break_its_promises(stage: Stage) -> None:
    sent, answered, released = 0, 0, 0

    @settings(max_examples=-(-AMOUNT // BATCH), deadline=None, suppress_health_check=list(HealthCheck))
    @given(seed=st.integers(0, 2**64 - 1))
    def tried(seed: int) -> None:
        nonlocal sent, answered, released
        scene = Scene(random.Random(seed))  # noqa: S311  a test that can be repeated
        for number, messages in ((1, BATCH // 2), (2, BATCH - BATCH // 2)):
            with suppress(FedloopError):  # too few are left
                scene.instance(number, stage, messages)
        sent, answered = sent + scene.sent, answered + scene.answered
        released += len(scene.observer.released)

    for _ in range(4):  # where too few are left an instance ends before the stage
        if sent < AMOUNT:
            tried()
    assert sent >= AMOUNT
    assert answered > AMOUNT / 100  # the site is not merely deaf
    assert released > AMOUNT / BATCH / 10  # nor kept from ever coming to the end
