"""Sites and a coordinator that sum once, each message through its encoding, with sites that go silent where a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from fedloop_clients.secure_aggregation.machine import AggregatingSite, UpdateSource
from fedloop_clients.secure_aggregation.policy import AggregationPolicy
from fedloop_clients.secure_aggregation.promises import MemoryPromises
from fedloop_clients.secure_aggregation.states import Expected
from fedloop_core.arrays import ArraySpec
from fedloop_core.errors import FedloopError, SecureAggregationRefused
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.agreement import KeyPair
from fedloop_core.secure_aggregation.encoding import decode, decode_masked, encode
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
    SharedKeys,
    ShareKeys,
    Unmask,
    Unmasking,
)
from fedloop_core.secure_aggregation.transcript import advertised_text
from fedloop_server.aggregation import FixedPointSum
from fedloop_server.secure_aggregation.machine import Goal, SecureRound, SecureSum, Stage

LARGEST = 10.0
TRAINED = bytes([2]) * 32
RUN = "20260101-heart-1"
AT = Instance(RUN, 1, 2)
VICTIM, ACCOMPLICE = "site-00", "site-04"
STEPS = (Stage.KEYS, Stage.SHARES, Stage.INPUTS, Stage.SURVIVORS, Stage.UNMASKING)
Update = dict[str, np.ndarray]
SPEC = ArraySpec(("weight", "bias"), ((3, 2), (2,)), ("float32", "float32"))


def names(count: int) -> list[str]:
    return [f"site-{at:02}" for at in range(count)]


def update(seed: int, spec: ArraySpec = SPEC) -> Update:
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.standard_normal(shape).astype(dtype)
        for name, shape, dtype in zip(spec.names, spec.shapes, spec.dtypes, strict=True)
    }
    norm = float(np.sqrt(sum(float((array.astype(np.float64) ** 2).sum()) for array in arrays.values())))
    return {name: array * array.dtype.type(0.9 * LARGEST / norm) for name, array in arrays.items()}


@dataclass
class Federation:
    """``keys`` are the sites' identities; ``machines`` the sites; each holds an update and a weight."""

    count: int
    spec: ArraySpec = SPEC
    minimum: int = 3
    keys: dict[str, SigningKey] = field(init=False)
    machines: dict[str, AggregatingSite] = field(init=False)
    promises: dict[str, MemoryPromises] = field(init=False)
    updates: dict[str, Update] = field(init=False)
    weights: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        sites = names(self.count)
        self.keys = {site: SigningKey.generate() for site in sites}
        self.consortium = Consortium({site: key.verifying for site, key in self.keys.items()})
        self.promises = {site: MemoryPromises() for site in sites}
        self.updates = {site: update(at, self.spec) for at, site in enumerate(sites)}
        self.weights = {site: 100 + 7 * at for at, site in enumerate(sites)}
        self.machines = {site: self.machine(site) for site in sites}

    @property
    def total_weight(self) -> int:
        return sum(self.weights.values())

    def machine(self, site: str, minimum: int | None = None) -> AggregatingSite:
        """A site as it is after a restart: promises kept, secrets gone."""
        policy = AggregationPolicy(minimum or self.minimum)
        return AggregatingSite(
            site, self.keys[site], consortium=self.consortium, policy=policy, promises=self.promises[site]
        )

    def coordinator(self, instance: Instance, sites: list[str] | None = None) -> SecureRound:
        asked = list(self.keys) if sites is None else sites
        return SecureRound(instance, {site: self.keys[site].verifying for site in asked}, minimum_sites=self.minimum)

    def goal(self) -> Goal:
        return Goal(bytes(32), bytes([1]) * 32, self.spec.size, LARGEST, self.total_weight)

    def expected(self, site: str) -> Expected:
        return Expected(bytes(32), bytes([1]) * 32, self.spec, LARGEST, self.weights[site], TRAINED)

    def found(self, site: str) -> UpdateSource:
        """The update that the site keeps under a name."""
        return lambda name: {TRAINED: self.updates[site]}[name]

    def answer(self, site: str, question: Question) -> Answer:
        """What a site says to a question, both through their bytes."""
        machine, content = self.machines[site], encode(question)
        match question:
            case AdvertiseKeys():
                return decode(Advertisement, encode(machine.advertise(decode(AdvertiseKeys, content))))
            case ShareKeys():
                asked = decode(ShareKeys, content)
                return decode(SharedKeys, encode(machine.share_keys(asked, self.expected(site))))
            case MaskInput():
                asked_mask = decode(MaskInput, content)
                masked = machine.mask(asked_mask, self.found(site))
                return decode_masked(encode(masked), masked.masked.view(np.int64))
            case ConfirmSurvivors():
                return decode(Confirmation, encode(machine.confirm(decode(ConfirmSurvivors, content))))
            case Unmask():
                return decode(Unmasking, encode(machine.unmask(decode(Unmask, content))))

    def plain(self, survivors: tuple[str, ...]) -> FixedPointSum:
        sums = self.empty()
        for site in survivors:
            sums.add(self.updates[site], self.weights[site])
        return sums

    def empty(self) -> FixedPointSum:
        return FixedPointSum(self.spec, largest_value=LARGEST, total_weight=self.total_weight)


Tamper = Callable[[Stage, str, Question], Question]
Spoil = Callable[[Stage, str, Answer], Answer]


def questions_of(round_: SecureRound, stage: Stage, goal: Goal) -> Mapping[str, Question]:
    match stage:
        case Stage.KEYS:
            return round_.ask_keys()
        case Stage.SHARES:
            return round_.ask_shares(goal)
        case Stage.INPUTS:
            return round_.ask_inputs()
        case Stage.SURVIVORS:
            return round_.ask_survivors()
        case _:
            return round_.ask_unmasking()


def take(round_: SecureRound, site: str, answer: Answer) -> None:
    match answer:
        case Advertisement():
            round_.take_keys(site, answer)
        case SharedKeys():
            round_.take_shares(site, answer)
        case MaskedInput():
            round_.take_input(site, answer)
        case Confirmation():
            round_.take_confirmation(site, answer)
        case Unmasking():
            round_.take_unmasking(site, answer)


def run(
    federation: Federation,
    round_: SecureRound,
    *,
    silent: Mapping[str, Stage] | None = None,
    tamper: Tamper | None = None,
    spoil: Spoil | None = None,
    until: Stage = Stage.OVER,
) -> SecureSum | None:
    """Goes through the stages; ``silent`` sites answer nothing from their stage on. None when stopped before the end."""
    quiet = silent or {}
    for stage in STEPS:
        if stage == until:
            return None
        for site, asked in questions_of(round_, stage, federation.goal()).items():
            if site in quiet and quiet[site] <= stage:
                continue
            question = tamper(stage, site, asked) if tamper else asked
            try:
                answer = federation.answer(site, question)
            except FedloopError as refused:
                round_.drop(site, str(refused.fields["reason"]), peer=str(refused.fields.get("peer", "")))
                continue
            try:
                take(round_, site, spoil(stage, site, answer) if spoil else answer)
            except SecureAggregationRefused:
                continue
    return round_.sum()


def advertised(federation: Federation, site: str, instance: Instance = AT, **keys: bytes) -> Advertisement:
    """Keys that a site's identity has signed: an accomplice signs what it is told."""
    made = {"mask_key": KeyPair.generate().public, "channel_key": KeyPair.generate().public} | keys
    text = advertised_text(instance, site, made["mask_key"], made["channel_key"])
    return Advertisement(instance, site, made["mask_key"], made["channel_key"], federation.keys[site].sign(text))


def with_keys(question: ShareKeys, *others: Advertisement, without: tuple[str, ...] = ()) -> ShareKeys:
    cohort = {ad.site: ad for ad in question.cohort} | {ad.site: ad for ad in others}
    return replace(question, cohort=tuple(cohort[site] for site in sorted(cohort) if site not in without))


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(SecureAggregationRefused) as refused:
        call()
    return str(refused.value.fields["reason"])
