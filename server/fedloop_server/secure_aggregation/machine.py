"""The machine of one sum: answers in, the next questions out, and at the end a sum of which no part was seen.

Five stages, each closed by asking for the questions of the next one. Whoever has not answered well by then has dropped: before shares
are dealt the others go on without it; once its shares are dealt, its masks are taken off with the others' help; a vector that has
arrived counts, whatever becomes of its site. When fewer are left than the threshold, the sum is given up and nothing is revealed.

Masked vectors are folded as they come into one vector of uint64: memory does not grow with the sites. The caller says when a stage has
waited long enough; nothing here waits, sends or stores. It says who sent what: answers come from a channel that knows the site.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fedloop_core.errors import PrivacyParameterInvalid, SecureAggregationRefused
from fedloop_core.keys import VerifyingKey
from fedloop_core.secure_aggregation.identity import LEAST_SITES, Instance, least_threshold
from fedloop_core.secure_aggregation.messages import (
    AdvertiseKeys,
    Advertisement,
    Confirmation,
    ConfirmSurvivors,
    MaskedInput,
    MaskInput,
    SealedShares,
    SharedKeys,
    ShareKeys,
    Terms,
    Unmask,
    Unmasking,
)
from fedloop_core.secure_aggregation.transcript import (
    advertised_text,
    cohort_transcript,
    members_transcript,
    survivors_text,
)
from fedloop_server.secure_aggregation.unmaskable import Dealt, Goal, Unmaskable
from fedloop_server.secure_aggregation.unmasking import Unmasker

__all__ = ["Dropped", "Goal", "SecureRound", "SecureSum", "Stage"]


class Stage(IntEnum):
    """What sites are being asked."""

    KEYS = 0
    SHARES = 1
    INPUTS = 2
    SURVIVORS = 3
    UNMASKING = 4
    OVER = 5


@dataclass(frozen=True)
class Dropped:
    """A site that did not go through: at which stage, and why (the reason of an error, or the caller's word).

    ``peer``: whose key, signature or share was at fault, where it was another's.
    """

    site: str
    stage: Stage
    reason: str
    peer: str = ""


@dataclass(frozen=True, eq=False)
class SecureSum:
    """Whole numbers as ``FixedPointSum.add_whole`` takes them, their weight, and whose vectors are in them. [values]."""

    whole: NDArray[np.int64]
    weight: int
    survivors: tuple[str, ...]
    dropped: tuple[Dropped, ...]


class SecureRound:
    """One instance, from keys to sum.

    Args:
        instance: which.
        identities: keys that the sites registered; these sites are asked.
        minimum_sites: fewest that the coordinator goes on with; the sites have floors of their own.

    Raises:
        PrivacyParameterInvalid: ``minimum_sites`` is below 3.
    """

    def __init__(
        self, instance: Instance, identities: Mapping[str, VerifyingKey], *, minimum_sites: int = LEAST_SITES
    ) -> None:
        if minimum_sites < LEAST_SITES:
            raise PrivacyParameterInvalid(
                f"minimum_sites is {minimum_sites}; at least {LEAST_SITES} are needed.", parameter="minimum_sites"
            )
        self.instance = instance
        self.stage = Stage.KEYS
        self._identities = dict(identities)
        self._minimum = minimum_sites
        self._waiting = set(self._identities)
        self._dropped: dict[str, Dropped] = {}
        self._cohort: dict[str, Advertisement] = {}
        self._threshold = 0
        self._transcript = b""  # of the cohort, then of the members
        self._dealt: dict[str, SharedKeys] = {}
        self._members: tuple[str, ...] = ()
        self._goal: Goal | None = None
        self._total: NDArray[np.uint64] = np.zeros(0, dtype=np.uint64)
        self._arrived: set[str] = set()
        self._survivors: tuple[str, ...] = ()
        self._confirmed: dict[str, bytes] = {}
        self._unmaskable: Unmaskable | None = None
        self._unmasker: Unmasker | None = None

    @classmethod
    def unmasking(cls, kept: Unmaskable, masked: NDArray[np.uint64], *, minimum_sites: int = LEAST_SITES) -> Self:
        """An instance of an earlier process, at its last stage; shares that were taken are to be taken again.

        Args:
            kept: its ``unmaskable``.
            masked: its ``masked`` of then, which is changed in place.
            minimum_sites: as for all.

        Raises:
            SecureAggregationRefused: the vector has another length.
        """
        round_ = cls(kept.instance, {}, minimum_sites=minimum_sites)
        fits = masked.shape == (kept.values + 1,) and masked.dtype == np.uint64
        cls._require(fits, "values", "the masked sum has another length.")
        round_.stage = Stage.UNMASKING
        round_._goal, round_._threshold, round_._survivors = kept.goal, kept.threshold, kept.survivors
        round_._total = masked
        round_._waiting = {site for site, _ in kept.signed}
        round_._unmaskable, round_._unmasker = kept, Unmasker(kept)
        return round_

    @property
    def unmaskable(self) -> Unmaskable | None:
        """What unmasking needs besides ``masked`` and shares; None before one list of survivors is settled."""
        return self._unmaskable

    @property
    def masked(self) -> NDArray[np.uint64]:
        """The sum of the vectors that have arrived, under its masks until ``sum``. [values + 1]."""
        return self._total

    @property
    def helpers(self) -> frozenset[str]:
        """Sites that have released their shares."""
        return frozenset() if self._unmasker is None else frozenset(self._unmasker.helpers)

    @property
    def has_enough_shares(self) -> bool:
        """Whether ``sum`` needs no more of them."""
        return self._unmasker is not None and len(self.helpers) >= self._threshold

    @property
    def waiting(self) -> frozenset[str]:
        """Sites that were asked at this stage and have not answered."""
        return frozenset(self._waiting)

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Who did not go through, where and why, in the order of stages and names."""
        return tuple(sorted(self._dropped.values(), key=lambda dropped: (dropped.stage, dropped.site)))

    def drop(self, site: str, reason: str, *, peer: str = "") -> None:
        """Notes that a site will not answer at this stage: the reason of its refusal, or the caller's word for it."""
        if site in self._waiting:
            self._waiting.discard(site)
            self._dropped[site] = Dropped(site, self.stage, reason, peer)

    def keep_only(self, sites: Collection[str]) -> None:
        """Goes on without all others, before anybody shares: they were not lost, there is nothing of theirs to sum.

        Raises:
            SecureAggregationRefused: shares were asked for.
        """
        self._require(self.stage is Stage.KEYS, "stage", "it is settled who takes part.")
        self._waiting.intersection_update(sites)
        self._cohort = {site: told for site, told in self._cohort.items() if site in sites}

    def ask_keys(self) -> dict[str, AdvertiseKeys]:
        """The first questions, to those who have not answered; they may be asked during the round before."""
        return dict.fromkeys(sorted(self._waiting), AdvertiseKeys(self.instance))

    def take_keys(self, site: str, answer: Advertisement) -> None:
        """Takes an advertisement.

        Raises:
            SecureAggregationRefused: it is not the site's own, and the site has dropped.
        """
        with self._judged(site, Stage.KEYS, answer.instance):
            self._require(answer.site == site, "site", "keys are another site's.")
            text = advertised_text(self.instance, site, answer.mask_key, answer.channel_key)
            signed = self._identities[site].verifies(answer.signature, text)
            self._require(signed, "signature", "keys are not signed by the key that the site registered.")
            self._cohort[site] = answer

    def ask_shares(self, goal: Goal) -> dict[str, ShareKeys]:
        """Closes the stage of keys.

        Raises:
            SecureAggregationRefused: too few sites have told keys.
        """
        self._close(Stage.KEYS, Stage.SHARES, self._cohort, self._minimum)
        self._goal, self._threshold = goal, least_threshold(len(self._cohort))
        terms = Terms(
            goal.task_digest,
            goal.model_digest,
            goal.values,
            goal.largest_value,
            goal.total_weight,
            self._threshold,
        )
        question = ShareKeys(self.instance, terms, tuple(self._cohort[site] for site in sorted(self._cohort)))
        self._transcript = cohort_transcript(question)
        return dict.fromkeys(sorted(self._cohort), question)

    def take_shares(self, site: str, answer: SharedKeys) -> None:
        """Takes sealed shares.

        Raises:
            SecureAggregationRefused: they are not for exactly the cohort, and the site has dropped.
        """
        with self._judged(site, Stage.SHARES, answer.instance):
            others = [other for other in sorted(self._cohort) if other != site]
            self._require([s.site for s in answer.sealed] == others, "members", "shares are not for the cohort.")
            self._require([d.site for d in answer.digests] == sorted(self._cohort), "members", "digests lack sites.")
            self._dealt[site] = answer

    def ask_inputs(self) -> dict[str, MaskInput]:
        """Closes the stage of shares: masks are between those who have dealt.

        Raises:
            SecureAggregationRefused: they are too few.
        """
        self._close(Stage.SHARES, Stage.INPUTS, self._dealt, max(self._threshold, self._minimum))
        self._members = tuple(sorted(self._dealt))
        sealed = {owner: {s.site: s.content for s in self._dealt[owner].sealed} for owner in self._members}
        if self._goal is not None:
            self._total = np.zeros(self._goal.values + 1, dtype=np.uint64)
        return {
            site: MaskInput(
                self.instance,
                tuple(SealedShares(other, sealed[other][site]) for other in self._members if other != site),
            )
            for site in self._members
        }

    def take_input(self, site: str, answer: MaskedInput) -> None:
        """Folds a masked vector, which can be let go then.

        Raises:
            SecureAggregationRefused: it has another length, and the site has dropped.
        """
        with self._judged(site, Stage.INPUTS, answer.instance):
            fits = answer.masked.shape == self._total.shape and answer.masked.dtype == np.uint64
            self._require(fits, "values", "the masked vector has another length.")
            np.add(self._total, answer.masked, out=self._total)
            self._arrived.add(site)

    def ask_survivors(self) -> dict[str, ConfirmSurvivors]:
        """Closes the stage of inputs.

        Raises:
            SecureAggregationRefused: too few vectors have arrived.
        """
        self._close(Stage.INPUTS, Stage.SURVIVORS, self._arrived, max(self._threshold, self._minimum))
        self._survivors = tuple(sorted(self._arrived))
        return dict.fromkeys(self._survivors, ConfirmSurvivors(self.instance, self._survivors))

    def take_confirmation(self, site: str, answer: Confirmation) -> None:
        """Takes a signature over the survivors.

        Raises:
            SecureAggregationRefused: it is over something else, and the site has dropped; its vector still counts.
        """
        with self._judged(site, Stage.SURVIVORS, answer.instance):
            text = survivors_text(members_transcript(self._transcript, self._members), self._survivors)
            signed = self._identities[site].verifies(answer.signature, text)
            self._require(signed, "signature", "the site has signed other survivors, or another transcript.")
            self._confirmed[site] = answer.signature

    def ask_unmasking(self) -> dict[str, Unmask]:
        """Closes the stage of survivors; later the question again, to those who have not answered.

        Before it is sent, ``unmaskable`` and ``masked`` must be where another process finds them: no site releases shares in two instances
        of a round.

        Raises:
            SecureAggregationRefused: too few have signed.
        """
        if self._unmaskable is None:
            self._close(Stage.SURVIVORS, Stage.UNMASKING, self._confirmed, max(self._threshold, self._minimum))
            self._unmaskable = self._settled()
            self._unmasker = Unmasker(self._unmaskable)
        return dict.fromkeys(sorted(self._waiting), self._unmaskable.question)

    def take_unmasking(self, site: str, answer: Unmasking) -> None:
        """Takes shares of the others' secrets; of all that fit, ``threshold`` are needed for each secret.

        Raises:
            SecureAggregationRefused: they are not of exactly the sites asked for, or not what their owners dealt; the site has dropped.
        """
        with self._judged(site, Stage.UNMASKING, answer.instance):
            if self._unmasker is not None:
                self._unmasker.take(site, answer)

    def sum(self) -> SecureSum:
        """Closes the last stage and takes the masks off.

        Raises:
            SecureAggregationRefused: too few shares, a secret that is not its owner's, or a weight that the survivors cannot have: never
                a wrong sum.
        """
        if self._unmasker is None or self._goal is None:
            raise SecureAggregationRefused("there is nothing to unmask yet.", reason="stage")
        self._close(Stage.UNMASKING, Stage.OVER, self._unmasker.helpers, self._threshold)
        self._unmasker.unmask(self._total)
        whole = self._total.view(np.int64)
        weight = int(whole[-1])
        if not len(self._survivors) <= weight <= self._goal.total_weight:
            raise SecureAggregationRefused(
                "the sum has a weight that its sites cannot have: a vector was not masked as agreed.",
                hint="The sum is given up. Begin another instance.",
                reason="weight",
            )
        return SecureSum(whole[:-1], weight, self._survivors, self.dropped)

    def _settled(self) -> Unmaskable:
        goal, holders = self._goal, tuple(sorted(self._cohort))
        if goal is None:
            raise SecureAggregationRefused("nothing is summed yet.", reason="stage")
        dealt = tuple(
            Dealt(
                site=site,
                mask_key=self._cohort[site].mask_key,
                seed_commitment=self._dealt[site].seed_commitment,
                digests=tuple((digests.seed, digests.key) for digests in self._dealt[site].digests),
            )
            for site in self._members
        )
        return Unmaskable(
            run_id=self.instance.run_id,
            round=self.instance.round,
            number=self.instance.number,
            task_digest=goal.task_digest,
            model_digest=goal.model_digest,
            values=goal.values,
            largest_value=goal.largest_value,
            total_weight=goal.total_weight,
            threshold=self._threshold,
            cohort=self._transcript,
            holders=holders,
            dealt=dealt,
            survivors=self._survivors,
            signed=tuple(sorted(self._confirmed.items())),
        )

    @contextmanager
    def _judged(self, site: str, stage: Stage, instance: Instance) -> Iterator[None]:
        """One answer: the site was asked at this stage and has not answered; when the answer is refused it has dropped."""
        if self.stage is not stage:
            raise SecureAggregationRefused(f"an answer of site {site} is not of this stage.", reason="stage")
        if site not in self._waiting:
            raise SecureAggregationRefused(f"site {site} was not asked, or has answered.", reason="repeated")
        try:
            self._require(instance == self.instance, "instance", "the answer is of another instance.")
            yield
        except SecureAggregationRefused as refused:
            self.drop(site, str(refused.fields["reason"]), peer=str(refused.fields.get("peer", "")))
            raise
        self._waiting.discard(site)

    def _close(self, stage: Stage, after: Stage, answered: Collection[str], least: int) -> None:
        """Goes on with those who answered, when they are enough."""
        if self.stage is not stage:
            raise SecureAggregationRefused("this stage of the sum is over, or has not begun.", reason="stage")
        for site in sorted(self._waiting):
            self.drop(site, "silent")
        self.stage = after if len(answered) >= least else Stage.OVER
        if len(answered) < least:
            raise SecureAggregationRefused(
                f"{len(answered)} sites are left at the stage of {stage.name.lower()}; {least} are needed. Nothing was revealed.",
                hint="Begin another instance with the sites that answer.",
                reason="survivors",
            )
        self._waiting = set(answered) if after is not Stage.OVER else set()

    @staticmethod
    def _require(holds: bool, reason: str, what: str) -> None:
        if not holds:
            raise SecureAggregationRefused(what, reason=reason)
