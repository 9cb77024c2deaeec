"""Who watches a site without believing it: all that it gives out, judged by what the protocol promises, from public things alone.

It shares no decision with the site: it knows the questions that were put, the answers, and the identity keys of the sites.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fedloop_core.keys import VerifyingKey
from fedloop_core.secure_aggregation.identity import Instance
from fedloop_core.secure_aggregation.messages import (
    Advertisement,
    Answer,
    Confirmation,
    ConfirmSurvivors,
    MaskedInput,
    MaskInput,
    Question,
    SharedKeys,
    ShareKeys,
    Unmask,
    Unmasking,
)
from fedloop_core.secure_aggregation.transcript import (
    advertised_text,
    cohort_transcript,
    members_transcript,
    survivors_text,
)

Round = tuple[str, int]


@dataclass
class Observer:
    """Judges one site; ``check`` raises AssertionError when a promise is broken."""

    site: str
    minimum: int
    identities: dict[str, VerifyingKey]
    cohorts: dict[Instance, ShareKeys] = field(default_factory=dict)
    members: dict[Instance, frozenset[str]] = field(default_factory=dict)
    signed: dict[Instance, tuple[str, ...]] = field(default_factory=dict)
    seeds: dict[Round, set[str]] = field(default_factory=lambda: defaultdict(set))
    keys: dict[Round, set[str]] = field(default_factory=lambda: defaultdict(set))
    released: dict[Round, tuple[Instance, Unmasking]] = field(default_factory=dict)
    own_keys: dict[Instance, Advertisement] = field(default_factory=dict)
    vectors: dict[Instance, bytes] = field(default_factory=dict)
    shared: dict[Instance, SharedKeys] = field(default_factory=dict)

    def saw(self, question: Question, answer: Answer) -> None:
        """Takes one answer that left the site."""
        at = question.instance
        assert answer.instance == at
        round_ = (at.run_id, at.round)
        match question, answer:
            case _, Advertisement():
                assert self.own_keys.setdefault(at, answer) == answer, "two sets of keys in one instance"
                assert round_ not in self.released, "keys after a release"
            case ShareKeys(), SharedKeys():
                self.saw_shares(question, answer)
            case MaskInput(), MaskedInput():
                given = frozenset([*(sealed.site for sealed in question.sealed), self.site])
                assert self.members.setdefault(at, given) == given, "masks between two sets of members"
                told = self.vectors.setdefault(at, answer.masked.tobytes())
                assert told == answer.masked.tobytes(), "two vectors under one set of masks"
                assert len(given) >= max(self.threshold(at), self.minimum), "too few members"
                assert round_ not in self.released, "a vector after a release"
            case ConfirmSurvivors(), Confirmation():
                assert self.signed.setdefault(at, question.survivors) == question.survivors, "two lists were signed"
                assert set(question.survivors) <= self.members[at], "strangers survive"
                assert len(set(question.survivors)) >= max(self.threshold(at), self.minimum), "too few survivors"
                assert round_ not in self.released, "a signature after a release"
            case Unmask(), Unmasking():
                self.saw_release(question, answer, round_)
            case _:
                raise AssertionError("an answer of another kind")

    def saw_shares(self, question: ShareKeys, answer: SharedKeys) -> None:
        at, cohort = question.instance, {ad.site: ad for ad in question.cohort}
        assert self.cohorts.setdefault(at, question) == question, "two transcripts in one instance"
        assert self.shared.setdefault(at, answer) == answer, "secrets were shared twice"
        assert len(cohort) == len(question.cohort) >= self.minimum, "too small a cohort"
        assert question.terms.threshold > 2 * len(cohort) / 3, "too low a threshold"
        assert cohort[self.site] == self.own_keys[at], "shares under keys of another"
        assert set(cohort) <= set(self.identities), "a stranger takes part"
        for ad in question.cohort:
            text = advertised_text(at, ad.site, ad.mask_key, ad.channel_key)
            assert self.identities[ad.site].verifies(ad.signature, text), "keys that their site has not signed"
        assert self.site not in {sealed.site for sealed in answer.sealed}

    def saw_release(self, question: Unmask, answer: Unmasking, round_: Round) -> None:
        at = question.instance
        before = self.released.setdefault(round_, (at, answer))
        assert before == (at, answer), "shares of a round left twice"
        members = members_transcript(cohort_transcript(self.cohorts[at]), sorted(self.members[at]))
        text = survivors_text(members, self.signed[at])
        signers = {s.site for s in question.signatures if self.identities[s.site].verifies(s.signature, text)}
        assert len(signers) >= self.threshold(at), "shares without enough signatures"
        assert signers <= set(self.signed[at])
        self.seeds[round_] |= {share.site for share in answer.seeds}
        self.keys[round_] |= {share.site for share in answer.keys}
        assert not self.seeds[round_] & self.keys[round_], "both shares of a site"
        assert self.seeds[round_] == set(self.signed[at]), "seeds of others than the survivors"
        assert self.keys[round_] == self.members[at] - set(self.signed[at])
        assert len(self.seeds[round_]) >= max(self.threshold(at), self.minimum), "below its floors"

    def threshold(self, at: Instance) -> int:
        """By the observer's own arithmetic: more than two thirds of those who share."""
        sites = len(self.cohorts[at].cohort)
        return next(t for t in range(sites + 1) if 3 * t > 2 * sites)
