"""The machine that answers for a site: five questions in order, each once, and what a site never does.

- It takes part with sites that its people know, at least as many as they ask for, under a threshold that it works out itself.
- What is summed must be what it knows itself: task, model, values, bounds. It is agreed for one update, which is masked and no other, in
  this instance and in every later one of the round.
- One transcript and one list of survivors for each instance; shares leave once for each round of a run, for ever, and only when enough
  sites have signed the very list that it has signed.
- Of each site it gives out the share of its seed or that of its mask key, by its own list: no message can name both.
- What it binds itself to is kept before an answer leaves. Secrets are in memory alone: a site that was restarted gives up.

The same question, asked again while its answer is the last one, gets the same answer: answers are lost on the way. Every other question is
refused and changes nothing. Calls must not overlap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fedloop_clients.secure_aggregation.making import masked_vector, opened, share_out, whole_vector
from fedloop_clients.secure_aggregation.policy import AggregationPolicy
from fedloop_clients.secure_aggregation.promises import Promise, Promises
from fedloop_clients.secure_aggregation.states import (
    Advertised,
    Confirmed,
    Expected,
    Masked,
    OwnKeys,
    Released,
    Shared,
    State,
)
from fedloop_clients.secure_aggregation.terms import check_cohort, check_terms
from fedloop_core.arrays import NamedArrays
from fedloop_core.errors import SecureAggregationRefused
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.agreement import KeyPair
from fedloop_core.secure_aggregation.identity import Consortium, Instance
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Advertisement,
    Answer,
    Confirmation,
    ConfirmSurvivors,
    MaskedInput,
    MaskInput,
    Question,
    Share,
    SharedKeys,
    ShareKeys,
    Unmask,
    Unmasking,
)
from fedloop_core.secure_aggregation.transcript import advertised_text, members_transcript, survivors_text

__all__ = ["AggregatingSite", "UpdateSource"]

UpdateSource = Callable[[bytes], NamedArrays]
"""The update that is named so."""

_MOST_LIVE = 4  # rounds that are held in memory at once: the one that is summed, and keys of the next
_Given = TypeVar("_Given", bound=Answer)
_At = TypeVar("_At", bound=State)


@dataclass(frozen=True, repr=False)
class _Live:
    """An instance in memory, and what was answered last to which question."""

    instance: Instance
    state: State
    question: Question
    answer: Answer


class AggregatingSite:
    """Answers for one site.

    Args:
        site: its name in the consortium.
        key: its identity, which the consortium knows.
        consortium: whom its people know.
        policy: their floors.
        promises: what it has bound itself to.

    Raises:
        SecureAggregationRefused: the consortium knows the site under another key.
    """

    def __init__(
        self, site: str, key: SigningKey, *, consortium: Consortium, policy: AggregationPolicy, promises: Promises
    ) -> None:
        if consortium.key(site).raw != key.verifying.raw:
            raise SecureAggregationRefused(
                f"the consortium knows site {site} under another key.",
                hint="Compare the digest of the consortium with the other sites' people.",
                reason="consortium",
            )
        self._site = site
        self._key = key
        self._consortium = consortium
        self._policy = policy
        self._promises = promises
        self._live: dict[tuple[str, int], _Live] = {}

    def advertise(self, question: AdvertiseKeys) -> Advertisement:
        """Makes keys for an instance; an earlier instance of the round is given up.

        Raises:
            SecureAggregationRefused: shares of this round were released, or the number was used.
        """
        if (again := self._again(question, Advertisement)) is not None:
            return again
        instance = question.instance
        promise = self._promises.read(instance)
        self._require(not promise.released, "released", f"shares of round {instance.round} were released.")
        self._require(instance.number > promise.number, "instance", "an instance of this round is not begun anew.")
        keys = OwnKeys(KeyPair.generate(), KeyPair.generate())
        text = advertised_text(instance, self._site, keys.mask.public, keys.channel.public)
        answer = Advertisement(instance, self._site, keys.mask.public, keys.channel.public, self._key.sign(text))
        self._promises.write(
            Promise.of(instance).model_copy(update={"number": instance.number, "update": promise.update})
        )
        return self._give(question, Advertised(keys, answer), answer)

    def share_keys(self, question: ShareKeys, expected: Expected) -> SharedKeys:
        """Checks who takes part and under which terms, and shares the site's two secrets out.

        Raises:
            SecureAggregationRefused: ``reason`` says what does not fit, ``peer`` whose it is.
        """
        if (again := self._again(question, SharedKeys)) is not None:
            return again
        state, promise = self._at(question, Advertised)
        self._require(not promise.transcript, "transcript", "this instance has a transcript.")
        update = expected.update.hex()
        self._require(promise.update in ("", update), "update", "another update was agreed on in this round.")
        self._policy.check_cohort(len(question.cohort), question.terms.threshold)
        check_cohort(question, state.advertisement, self._consortium)
        check_terms(question, expected)
        agreed, answer = share_out(self._site, question, expected, state.keys)
        self._promises.write(promise.model_copy(update={"transcript": agreed.transcript.hex(), "update": update}))
        return self._give(question, Shared(agreed), answer)

    def mask(self, question: MaskInput, find: UpdateSource) -> MaskedInput:
        """Checks the update that was agreed on and masks it: fixed point, then the self-mask and one mask for each other member.

        Args:
            question: with the shares of the other members.
            find: gives the update, by the name that it was agreed on under.

        Raises:
            SecureAggregationRefused: members, their number or their shares do not fit.
            UpdateRefused: names, shapes, dtypes, values or norm of the update.
            FedloopError: as ``find``.
        """
        if (again := self._again(question, MaskedInput)) is not None:
            return again
        state, _ = self._at(question, Shared)
        agreed = state.agreed
        senders = [sealed.site for sealed in question.sealed]
        for sender in senders:
            self._require(
                sender in agreed.cohort and sender != self._site, "members", "is no other of the cohort.", sender
            )
        members = tuple(sorted([*senders, self._site]))
        self._policy.check_remaining(len(members), agreed.terms.threshold)
        shares = {sealed.site: opened(self._site, question.instance, agreed, sealed) for sealed in question.sealed}
        transcript = members_transcript(agreed.transcript, members)
        whole = whole_vector(agreed, find(agreed.expected.update))
        vector = masked_vector(self._site, question.instance, agreed, members, transcript, whole)
        after = Masked(agreed.terms.threshold, transcript, agreed.own_share, shares)
        return self._give(question, after, MaskedInput(question.instance, vector))

    def confirm(self, question: ConfirmSurvivors) -> Confirmation:
        """Signs one list of survivors.

        Raises:
            SecureAggregationRefused: it is too short, lacks this site or names others than members, or another was signed.
        """
        if (again := self._again(question, Confirmation)) is not None:
            return again
        state, promise = self._at(question, Masked)
        self._require(not promise.survivors, "survivors", "a list of survivors was signed in this instance.")
        for survivor in question.survivors:
            self._require(survivor in state.shares or survivor == self._site, "members", "is no member.", survivor)
        self._require(self._site in question.survivors, "survivors", "the survivors lack this site, which has masked.")
        self._policy.check_remaining(len(question.survivors), state.threshold)
        text = survivors_text(state.transcript, question.survivors)
        answer = Confirmation(question.instance, self._key.sign(text))
        self._promises.write(promise.model_copy(update={"survivors": hashlib.sha256(text).hexdigest()}))
        return self._give(question, Confirmed(state, question.survivors), answer)

    def unmask(self, question: Unmask) -> Unmasking:
        """Gives out shares by the list that it has signed, when enough survivors have signed it too.

        Raises:
            SecureAggregationRefused: a signature is none, a signer no survivor, or there are too few; or shares of this round have left.
        """
        if (again := self._again(question, Unmasking)) is not None:
            return again
        state, promise = self._at(question, Confirmed)
        masked = state.masked
        text = survivors_text(masked.transcript, state.survivors)
        for signed in question.signatures:
            self._require(signed.site in state.survivors, "signature", "is no survivor.", signed.site)
            good = self._consortium.key(signed.site).verifies(signed.signature, text)
            self._require(good, "signature", "has not signed this list of survivors.", signed.site)
        enough = len(question.signatures) >= masked.threshold
        self._require(enough, "survivors", "too few survivors have signed.")
        own = {self._site: masked.own_share}
        seeds = own | {site: seed for site, (seed, _) in masked.shares.items() if site in state.survivors}
        keys = {site: key for site, (_, key) in masked.shares.items() if site not in state.survivors}
        answer = Unmasking(question.instance, _listed(seeds), _listed(keys))
        self._promises.write(promise.model_copy(update={"released": True}))
        return self._give(question, Released(), answer)

    def forget(self, run_id: str) -> None:
        """Lets go of the secrets of a run that is over; what was promised stays."""
        for place in [place for place in self._live if place[0] == run_id]:
            del self._live[place]

    def _again(self, question: Question, kind: type[_Given]) -> _Given | None:
        live = self._live.get((question.instance.run_id, question.instance.round))
        if live is not None and live.question == question and isinstance(live.answer, kind):
            return live.answer
        return None

    def _at(self, question: Question, stage: type[_At]) -> tuple[_At, Promise]:
        instance = question.instance
        live = self._live.get((instance.run_id, instance.round))
        promise = self._promises.read(instance)
        self._require(not promise.released, "released", f"shares of round {instance.round} were released.")
        if live is None or live.instance != instance or promise.number != instance.number:
            raise SecureAggregationRefused(
                "the site takes no part in this instance, or was restarted since.",
                hint="Begin another one, with a higher number.",
                reason="instance",
            )
        if not isinstance(live.state, stage):
            raise SecureAggregationRefused(
                f"this is not the question that follows: the site is at {type(live.state).__name__.lower()}.",
                reason="stage",
            )
        return live.state, promise

    def _give(self, question: Question, state: State, answer: _Given) -> _Given:
        place = (question.instance.run_id, question.instance.round)
        self._live.pop(place, None)
        while len(self._live) >= _MOST_LIVE:
            del self._live[next(iter(self._live))]
        self._live[place] = _Live(question.instance, state, question, answer)
        return answer

    def _require(self, holds: bool, reason: str, what: str, peer: str = "") -> None:
        if not holds and peer:
            raise SecureAggregationRefused(f"site {peer} {what}", reason=reason, peer=peer)
        if not holds:
            raise SecureAggregationRefused(what, reason=reason)


def _listed(shares: Mapping[str, bytes]) -> tuple[Share, ...]:
    return tuple(Share(site, shares[site]) for site in sorted(shares))
