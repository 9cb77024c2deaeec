"""What secure aggregation costs against a plain sum of the same updates, to the bit the same model at the end.

    python benchmarks/secagg.py [--short] [--json]

10 million float32 parameters at 5, 20 and 100 sites, on one thread, with nobody and with a tenth of the sites dropping out after
their shares are dealt (none is left out of 5: a sum of 5 needs 4). One site does all that a site does and is measured. The others
leave out of their vectors the masks between each other, which cancel anyway, and only those: the coordinator's work is the whole of it,
and the sum must be the plain one.

- site: seconds of each answer of the one site; peak memory while it masks, in masked vectors.
- coordinator: seconds to take all answers and fold the vectors, and to take the masks off; peak memory, in masked vectors: of the
  sum, of the reply that is folded (and made, here), and of the measured site, which keeps its answer until the next question. ``secret_seconds`` is what one self-mask's seed takes to be put together from its shares.
- plain: seconds to check and fold the same updates as they are.
- bytes: of one site's answers, and of the questions to it, besides the model.

Seconds leave out the making of updates. Each case runs in a process of its own.
"""

from __future__ import annotations

import os

os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # before imports

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Concatenate, ParamSpec, TypeVar

from aggregate import Meter, Replies, Size, named, start_model
from fedloop_clients.secure_aggregation.machine import AggregatingSite
from fedloop_clients.secure_aggregation.making import masked_vector, opened, share_out, whole_vector
from fedloop_clients.secure_aggregation.policy import AggregationPolicy
from fedloop_clients.secure_aggregation.promises import MemoryPromises
from fedloop_clients.secure_aggregation.states import Agreed, Expected, OwnKeys
from fedloop_core.arrays import ArraySpec, NamedArrays
from fedloop_core.keys import SigningKey
from fedloop_core.secure_aggregation.agreement import KeyPair
from fedloop_core.secure_aggregation.encoding import encode
from fedloop_core.secure_aggregation.identity import Consortium, Instance, least_threshold
from fedloop_core.secure_aggregation.messages import (
    SEED_BYTES,
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
    Unmasking,
)
from fedloop_core.secure_aggregation.sharing import join_shares, split_secret
from fedloop_core.secure_aggregation.transcript import advertised_text, members_transcript, survivors_text
from fedloop_core.update_gate import check_update
from fedloop_server.aggregation import FixedPointSum
from fedloop_server.secure_aggregation.machine import Goal, SecureRound

AT = Instance("benchmark", 1, 1)
MEASURED = "site-000"
LARGEST = 1e4
RATE = 1.0
_PACKAGES = ("cryptography", "fedloop", "numpy", "pycryptodome")
_Result = TypeVar("_Result")
_Told = TypeVar("_Told", bound=Answer)
_Asked = TypeVar("_Asked", bound=Question)
_Given = ParamSpec("_Given")


@dataclass(frozen=True)
class Case:
    """Sites, and how many of them drop out after their shares are dealt."""

    sites: int
    dropped: int
    values: int  # of each of 50 arrays

    @property
    def size(self) -> Size:
        """As the benchmark of plain folding has it."""
        return Size(self.sites, 50, self.values)

    @property
    def vector_bytes(self) -> int:
        """Of a masked vector."""
        return 8 * (50 * self.values + 1)


FULL = tuple(Case(sites, dropped, 200_000) for sites, dropped in ((5, 0), (20, 0), (20, 2), (100, 0), (100, 10)))
SHORT = tuple(Case(sites, dropped, 2_000) for sites, dropped in ((5, 0), (20, 2)))


class Clock:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, name: str, work: Callable[_Given, _Result], *given: _Given.args, **named_: _Given.kwargs) -> _Result:
        """Counts the seconds of one piece of work."""
        before = time.perf_counter()
        result = work(*given, **named_)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - before
        return result


@dataclass
class Other:
    """A site that keeps to the protocol, but for the masks between it and others that it is told to leave out."""

    site: str
    key: SigningKey
    keys: OwnKeys = field(default_factory=lambda: OwnKeys(KeyPair.generate(), KeyPair.generate()))

    def advertise(self) -> Advertisement:
        """Fresh keys."""
        keys = (self.keys.mask.public, self.keys.channel.public)
        return Advertisement(AT, self.site, *keys, self.key.sign(advertised_text(AT, self.site, *keys)))

    def share(self, question: ShareKeys, expected: Expected) -> SharedKeys:
        """Shares of its secrets."""
        self.agreed: Agreed
        self.agreed, answer = share_out(self.site, question, expected, self.keys)
        return answer

    def mask(self, question: MaskInput, arrays: NamedArrays, only: tuple[str, ...]) -> MaskedInput:
        """Masks with its self-mask and those of pairs with ``only``."""
        self.shares = {sealed.site: opened(self.site, AT, self.agreed, sealed) for sealed in question.sealed}
        self.members = members_transcript(self.agreed.transcript, sorted([*self.shares, self.site]))
        whole = whole_vector(self.agreed, arrays)
        return MaskedInput(AT, masked_vector(self.site, AT, self.agreed, only, self.members, whole))

    def confirm(self, question: ConfirmSurvivors) -> Confirmation:
        """Signs the survivors."""
        self.survivors = question.survivors
        return Confirmation(AT, self.key.sign(survivors_text(self.members, question.survivors)))

    def unmask(self) -> Unmasking:
        """Gives the shares that follow from the survivors."""
        seeds = {self.site: self.agreed.own_share}
        seeds |= {site: seed for site, (seed, _) in self.shares.items() if site in self.survivors}
        keys = {site: key for site, (_, key) in self.shares.items() if site not in self.survivors}
        return Unmasking(
            AT,
            tuple(Share(site, seeds[site]) for site in sorted(seeds)),
            tuple(Share(site, keys[site]) for site in sorted(keys)),
        )


class Federation:
    """One measured site, the others and a coordinator."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.replies = Replies(case.size)
        self.arrays = named(self.replies.buffer, case.size)
        self.model = named(start_model(case.size), case.size)
        self.spec = ArraySpec.of(self.arrays)
        sites = [f"site-{at:03}" for at in range(case.sites)]
        self.weights = {site: 100 + at for at, site in enumerate(sites)}
        identities = {site: SigningKey.generate() for site in sites}
        keys = {site: key.verifying for site, key in identities.items()}
        self.others = {site: Other(site, identities[site]) for site in sites[1:]}
        self.dropping = tuple(sites[len(sites) - case.dropped :])
        self.site = AggregatingSite(
            MEASURED,
            identities[MEASURED],
            consortium=Consortium(keys),
            policy=AggregationPolicy(),
            promises=MemoryPromises(),
        )
        self.round = SecureRound(AT, keys)
        self.total_weight = sum(self.weights.values())
        self.goal = Goal(bytes(32), bytes(32), self.spec.size, LARGEST, self.total_weight)
        self.up, self.down = 0, 0
        self.site_clock, self.clock = Clock(), Clock()

    def expected(self, site: str) -> Expected:
        """What a site knows itself."""
        return Expected(bytes(32), bytes(32), self.spec, LARGEST, self.weights[site], bytes(32))

    def fill(self, site: str) -> NamedArrays:
        """The update of a site, in the one buffer."""
        self.replies.fill(self.weights[site] - 100, self.replies.buffer)
        return self.arrays

    def found(self, _: bytes) -> NamedArrays:
        """The one buffer, as it is filled."""
        return self.arrays

    def sums(self) -> FixedPointSum:
        """An empty sum."""
        return FixedPointSum(self.spec, largest_value=LARGEST, total_weight=self.total_weight, least_bits=16)

    def measured(
        self,
        name: str,
        answer: Callable[Concatenate[_Asked, _Given], _Told],
        question: _Asked,
        *given: _Given.args,
        **named_: _Given.kwargs,
    ) -> _Told:
        """An answer of the measured site, timed, and its bytes counted."""
        told = self.site_clock.run(name, answer, question, *given, **named_)
        self.down += len(encode(question))
        self.up += len(encode(told)) + (self.case.vector_bytes if isinstance(told, MaskedInput) else 0)
        return told


def deal(scene: Federation) -> None:
    """Keys and shares."""
    round_, site, others, clock = scene.round, scene.site, scene.others, scene.clock
    for name, asked in clock.run("keys", round_.ask_keys).items():
        mine = name == MEASURED
        keys = scene.measured("keys", site.advertise, asked) if mine else others[name].advertise()
        clock.run("keys", round_.take_keys, name, keys)
    for name, share in clock.run("shares", round_.ask_shares, scene.goal).items():
        mine, expected = name == MEASURED, scene.expected(name)
        dealt = (
            scene.measured("shares", site.share_keys, share, expected) if mine else others[name].share(share, expected)
        )
        clock.run("shares", round_.take_shares, name, dealt)


def fold(scene: Federation) -> float:
    """Masked vectors, folded as they come; returns the peak of the measured site above what it held before, in bytes."""
    round_, clock, peak = scene.round, scene.clock, 0.0
    for name, question in clock.run("fold", round_.ask_inputs).items():
        if name in scene.dropping:
            continue
        arrays = scene.fill(name)
        if name == MEASURED:
            meter = Meter()
            masked = scene.measured("mask", scene.site.mask, question, scene.found)
            peak = meter.models(scene.case.size) * scene.case.size.model_bytes
        else:
            masked = scene.others[name].mask(question, arrays, (MEASURED, *scene.dropping))
        clock.run("fold", round_.take_input, name, masked)
        del masked  # as a reply that was folded is
    return peak


def unmask(scene: Federation) -> FixedPointSum:
    """Survivors, shares and the sum."""
    round_, site, others, clock = scene.round, scene.site, scene.others, scene.clock
    for name, confirm in clock.run("survivors", round_.ask_survivors).items():
        mine = name == MEASURED
        signed = scene.measured("confirm", site.confirm, confirm) if mine else others[name].confirm(confirm)
        clock.run("survivors", round_.take_confirmation, name, signed)
    for name, asked in clock.run("unmask", round_.ask_unmasking).items():
        mine = name == MEASURED
        shares = scene.measured("unmask", site.unmask, asked) if mine else others[name].unmask()
        clock.run("unmask", round_.take_unmasking, name, shares)
    summed = clock.run("unmask", round_.sum)
    sums = scene.sums()
    clock.run("unmask", sums.add_whole, summed.whole, summed.weight)
    return sums


def plain(scene: Federation) -> tuple[FixedPointSum, float]:
    """The same updates, checked and folded as they are; returns the sum and the seconds."""
    sums, clock = scene.sums(), Clock()
    for name in scene.weights:
        if name not in scene.dropping:
            arrays = scene.fill(name)
            norm = clock.run("fold", check_update, arrays, scene.spec, maximum_norm=LARGEST)
            clock.run("fold", sums.add, arrays, scene.weights[name], norm=norm)
    return sums, clock.seconds["fold"]


def measure_case(case: Case) -> dict[str, object]:
    """One case, in this process.

    Raises:
        RuntimeError: the sum is not the plain one.
    """
    scene = Federation(case)
    scene.fill(MEASURED)  # so that its pages are resident
    deal(scene)
    meter = Meter()
    site_peak = fold(scene)
    fold_peak = meter.models(case.size) * case.size.model_bytes
    meter = Meter()
    masked = unmask(scene)
    unmask_peak = meter.models(case.size) * case.size.model_bytes
    expected, plain_seconds = plain(scene)
    model, plain_model = masked.moved(scene.model, RATE), expected.moved(scene.model, RATE)
    if any(array.tobytes() != plain_model[name].tobytes() for name, array in model.items()):
        raise RuntimeError("the sum is not the plain one")
    seconds = scene.clock.seconds
    return {
        "sites": case.sites,
        "dropped": case.dropped,
        "parameters": case.size.arrays * case.size.values,
        "site_seconds": scene.site_clock.seconds,
        "site_peak_vectors": site_peak / case.vector_bytes,
        "coordinator_seconds": seconds,
        "secret_seconds": secret_seconds(case.sites),
        "coordinator_peak_vectors": max(fold_peak, unmask_peak) / case.vector_bytes,
        "plain_seconds": plain_seconds,
        "ratio_plain": sum(seconds.values()) / plain_seconds,
        "bytes_up": scene.up,
        "bytes_down": scene.down,
        "plain_bytes_up": case.size.model_bytes,
    }


def secret_seconds(sites: int) -> float:
    """To put one seed together."""
    threshold = least_threshold(sites)
    shares = dict(enumerate(split_secret(bytes(SEED_BYTES), threshold, sites)))
    clock = Clock()
    clock.run("join", join_shares, shares, threshold)
    return clock.seconds["join"]


def measure(short: bool) -> dict[str, object]:
    """Runs each case in a process of its own.

    Raises:
        RuntimeError: one failed.
    """
    cases = []
    for at in range(len(SHORT if short else FULL)):
        command = [sys.executable, __file__, "--child", str(at), *(["--short"] if short else [])]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise RuntimeError(f"case {at} failed: {ran.stderr[-2000:]}")
        cases.append(json.loads(ran.stdout.splitlines()[-1]))
    return {
        "cases": cases,
        "memory": "peak of VmHWM above VmRSS at the start, in masked vectors of int64",
        "short": short,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "versions": {package: version(package) for package in _PACKAGES},
    }


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="100 000 parameters, 5 and 20 sites")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child is not None:
        print(json.dumps(measure_case((SHORT if chosen.short else FULL)[chosen.child])))
        return
    document = measure(chosen.short)
    if chosen.json:
        print(json.dumps(document))
        return
    tell(document)


def tell(document: Mapping[str, Any]) -> None:
    """Prints for people."""
    print(f"{document['cases'][0]['parameters']:,} parameters, one thread")
    print(
        f"{'sites':>6}{'dropped':>8}{'site mask s':>12}{'site rest s':>12}{'fold s':>8}{'unmask s':>10}{'plain s':>9}"
        f"{'ratio':>7}{'peak site':>10}{'peak coord':>11}{'MB up':>8}{'plain MB':>9}{'kB down':>9}"
    )
    for case in document["cases"]:
        site, coordinator = case["site_seconds"], case["coordinator_seconds"]
        rest = sum(site.values()) - site["mask"]
        print(
            f"{case['sites']:6}{case['dropped']:8}{site['mask']:12.3f}{rest:12.3f}{coordinator['fold']:8.2f}"
            f"{coordinator['unmask']:10.2f}{case['plain_seconds']:9.2f}{case['ratio_plain']:7.1f}"
            f"{case['site_peak_vectors']:10.2f}{case['coordinator_peak_vectors']:11.2f}"
            f"{case['bytes_up'] / 1e6:8.1f}{case['plain_bytes_up'] / 1e6:9.1f}{case['bytes_down'] / 1e3:9.1f}"
        )
    print(f"{document['cores']} cores, load {document['load']:.1f}, {document['versions']}")


if __name__ == "__main__":
    main()
