"""A coordinator that dies anywhere in a masked sum goes on to the very same weights, and no site releases shares twice."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.secure_sites import SEED, Watched, rows_of, task_of

from fedloop_clients.daemon import SiteDaemon
from fedloop_clients.endpoint import SiteEndpoint
from fedloop_core.arrays import digest
from fedloop_core.durable import append_line
from fedloop_core.errors import ContentDamaged
from fedloop_server.runs import sums
from fedloop_server.runs.events import RoundClosed, RunReopened
from fedloop_server.runs.journal import RunJournal

Make = Callable[..., Any]
Patch = pytest.MonkeyPatch
SITES = 5  # a threshold of 4
ROUND = 2
FIRST, SECOND = 17, 33  # the numbers of the first tries of attempts 1 and 2


class Killed(BaseException):
    """Stands for a process that dies: nothing catches it."""


@dataclass
class Scene:
    """Sites that outlive their coordinator, unless a test restarts them."""

    members: Any
    watched: Watched = field(default_factory=Watched)
    sites: dict[str, SiteEndpoint] = field(default_factory=dict)
    closed: list[RoundClosed] = field(default_factory=list)

    @classmethod
    def of(cls, federation: Make, **more: Any) -> Scene:
        task = task_of(True)
        return cls(federation(task, rows_of(task, SITES), SEED, **more))

    def drive(self) -> Any:
        def observe(_: object, event: object) -> None:
            if isinstance(event, RoundClosed):
                self.closed.append(event)

        return self.members.run(observe=observe, wrap=self.wrap)

    def wrap(self, site: SiteEndpoint) -> SiteEndpoint:
        assert isinstance(site, SiteDaemon)
        return self.watched.wrap(self.sites.setdefault(site.site, site))

    @property
    def folder(self) -> Path:
        return Path(self.members.home.run_folder("run-1"))

    @property
    def kept(self) -> set[str]:
        return {path.name for path in self.folder.iterdir() if "unmasking" in path.name}

    @property
    def weights(self) -> bytes:
        return digest(self.members.home.trained_arrays("run-1"))

    def instances(self, round_: int = ROUND) -> dict[str, list[int]]:
        """The numbers of the instances in which each site has released; one of each, or it did so twice."""
        released = self.watched.released(round_)
        assert all(len(shares) == 1 for shares in released.values()), "two releases of a round"
        return {site: [each.instance.number for each in shares] for site, shares in sorted(released.items())}


@pytest.fixture(scope="module")
def uninterrupted(federation: Make) -> bytes:
    scene = Scene.of(federation)
    assert scene.drive().failure is None
    assert not scene.kept
    return scene.weights


Arm = Callable[[Scene, Patch], None]


def asked(kind: str, nth: int, when: str) -> Arm:
    """Dies before the nth question of a kind is answered in the round, or after and before the coordinator has the answer."""

    def arm(scene: Scene, _: Patch) -> None:
        seen = 0

        def count(told: str, round_: int) -> None:
            nonlocal seen
            seen += (told, round_) == (kind, ROUND)
            if seen == nth and (told, round_) == (kind, ROUND):
                raise Killed

        setattr(scene.watched, when, count)

    return arm


def calls(of: Any, name: str, dies: Callable[..., bool], *, first: bool = True) -> Arm:
    """Dies in a call, before it does anything or when it has done it."""

    def arm(_: Scene, patch: Patch) -> None:
        real = getattr(of, name)

        def dying(*args: Any, **named: Any) -> Any:
            if not dies(*args):
                return real(*args, **named)
            if not first:
                real(*args, **named)
            raise Killed

        patch.setattr(of, name, dying)

    return arm


def half_a_line(_: Scene, patch: Patch) -> None:
    """Dies when a part of the second answer is written."""
    seen = 0

    def dying(path: Path, line: str, *, sync: bool = True) -> None:
        nonlocal seen
        seen += path.name == f"unmasking-{ROUND}.jsonl"
        if seen == 2:
            with path.open("a") as file:
                file.write(line[: len(line) // 2])
            raise Killed
        append_line(path, line, sync=sync)

    patch.setattr(sums, "append_line", dying)


def is_closing(_: object, event: object) -> bool:
    return isinstance(event, RoundClosed) and event.round == ROUND


LINES, VECTOR = f"unmasking-{ROUND}.jsonl", f"unmasking-{ROUND}.masked"
KEPT = {LINES, VECTOR}
# What is on the disk when it dies, in which instance the round is summed, and how many sites are asked for shares after.
POINTS: dict[str, tuple[Arm, set[str], int, int]] = {
    "before keys are shared": (asked("share_keys", 1, "before"), set(), SECOND, SITES),
    "after one masked vector": (asked("mask_input", 1, "after"), set(), SECOND, SITES),
    "after all masked vectors": (asked("confirm_survivors", 1, "before"), set(), SECOND, SITES),
    "before anything is kept": (
        calls(sums.KeptSums, "keep", lambda _, kept, *__: kept.round == ROUND),
        set(),
        SECOND,
        SITES,
    ),
    "between the two files": (
        calls(sums, "write_secret", lambda path, _: path.name == LINES),
        {VECTOR},
        SECOND,
        SITES,
    ),
    "kept, and nothing sent": (asked("unmask", 1, "before"), KEPT, FIRST, SITES),
    "an answer is lost on the way": (asked("unmask", 1, "after"), KEPT, FIRST, SITES),
    "between two answers": (asked("unmask", 3, "before"), KEPT, FIRST, SITES - 2),
    "in the midst of a line": (half_a_line, KEPT, FIRST, SITES - 1),
    "with enough answers": (asked("unmask", SITES, "before"), KEPT, FIRST, 0),
    "before the checkpoint": (
        calls(RunJournal, "save_checkpoint", lambda _, name, *__: name == f"round-{ROUND}"),
        KEPT,
        FIRST,
        0,
    ),
    "before the round closes": (calls(RunJournal, "record", is_closing), KEPT, FIRST, 0),
    "when the round has closed": (calls(RunJournal, "record", is_closing, first=False), KEPT, FIRST, 0),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_coordinator_that_dies_in_a_sum_ends_with_the_same_weights(
    federation: Make, monkeypatch: Patch, uninterrupted: bytes, point: str
) -> None:
    arm, kept, instance, asked_after = POINTS[point]
    scene = Scene.of(federation)
    with monkeypatch.context() as patch:
        arm(scene, patch)
        with pytest.raises(Killed):
            scene.drive()
    scene.watched.before = scene.watched.after = lambda kind, round_: None
    assert scene.kept == kept
    assert all(stat.S_IMODE((scene.folder / name).stat().st_mode) == 0o600 for name in kept)
    before = len(scene.watched.replies)
    assert scene.drive().failure is None
    assert scene.weights == uninterrupted
    assert [told.folded for told in scene.closed] == [tuple(f"ward-{at}" for at in range(SITES))] * 3
    assert [len(told.took) for told in scene.closed] == [SITES] * 3
    assert {number for numbers in scene.instances().values() for number in numbers} == {instance}
    after = [told for told in scene.watched.replies[before:] if told[1:3] == ("unmask", ROUND)]
    assert len(after) == asked_after
    assert not scene.kept  # what was kept of a sum goes with it


def test_a_coordinator_that_dies_twice_loses_no_answer(
    federation: Make, monkeypatch: Patch, uninterrupted: bytes
) -> None:
    """The second time behind a line that the first time has left torn."""
    scene = Scene.of(federation)
    with monkeypatch.context() as patch:
        half_a_line(scene, patch)
        with pytest.raises(Killed):
            scene.drive()
    asked("unmask", 3, "before")(scene, monkeypatch)  # ward-1 and ward-2 are heard
    with pytest.raises(Killed):
        scene.drive()
    scene.watched.before = lambda kind, round_: None
    before = len(scene.watched.replies)
    assert scene.drive().failure is None
    assert scene.weights == uninterrupted
    after = [site for site, kind, round_, _ in scene.watched.replies[before:] if (kind, round_) == ("unmask", ROUND)]
    assert after == ["ward-3", "ward-4"]
    assert {tuple(numbers) for numbers in scene.instances().values()} == {(FIRST,)}


def restarted(scene: Scene) -> None:
    """All sites: their secrets are gone, their promises are not."""
    scene.sites.clear()


def dead_with(federation: Make, folder: Path, arm: Arm) -> Scene:
    scene = Scene.of(federation, folder=folder)
    arm(scene, Patch())  # those of sites patch nothing
    with pytest.raises(Killed):
        scene.drive()
    scene.watched.before = scene.watched.after = lambda kind, round_: None
    return scene


def test_when_everybody_dies_before_a_release_another_sum_is_begun(
    federation: Make, tmp_path: Path, uninterrupted: bytes
) -> None:
    scene = dead_with(federation, tmp_path, asked("unmask", 1, "before"))
    restarted(scene)
    assert scene.drive().failure is None
    assert scene.weights == uninterrupted
    assert {tuple(numbers) for numbers in scene.instances().values()} == {(SECOND,)}
    assert not scene.closed[ROUND - 1].left_out  # none of them was lost
    assert not scene.kept


def test_when_everybody_dies_after_one_release_the_others_go_on_without_that_site(
    federation: Make, tmp_path: Path
) -> None:
    scene = dead_with(federation, tmp_path, asked("unmask", 2, "before"))
    restarted(scene)
    assert scene.drive().failure is None
    assert [len(told.folded) for told in scene.closed] == [SITES, SITES - 1, SITES]
    assert {out.site for out in scene.closed[ROUND - 1].left_out} == {"ward-0"}
    assert scene.instances() == {"ward-0": [FIRST]} | {f"ward-{at}": [SECOND] for at in range(1, SITES)}


def test_when_everybody_dies_after_too_many_releases_the_run_fails_and_says_why(
    federation: Make, tmp_path: Path
) -> None:
    scene = dead_with(federation, tmp_path, asked("unmask", 4, "before"))
    restarted(scene)
    failure = scene.drive().failure
    assert failure is not None
    assert "released" in failure.reason
    assert scene.instances() == {f"ward-{at}": [FIRST] for at in range(3)}


def test_a_sum_that_failed_for_want_of_shares_is_finished_when_the_sites_are_back(
    federation: Make, uninterrupted: bytes
) -> None:
    scene = Scene.of(federation)
    scene.watched.dying = {"ward-1": ("unmask", ROUND), "ward-3": ("unmask", ROUND)}
    failure = scene.drive().failure
    assert failure is not None
    assert "ward-1" in failure.reason
    assert scene.kept == KEPT
    begun = [told for told in scene.watched.replies if told[1:3] == ("advertise_keys", ROUND)]
    assert not begun  # whoever has released would refuse another instance
    scene.watched.dying = {}
    scene.members.home.journal("run-1").record(RunReopened(unix=0.0))
    assert scene.drive().failure is None
    assert scene.weights == uninterrupted
    assert {tuple(numbers) for numbers in scene.instances().values()} == {(FIRST,)}


def test_a_damaged_checkpoint_is_put_back_since_its_round_cannot_be_summed_again(
    federation: Make, monkeypatch: Patch, uninterrupted: bytes
) -> None:
    scene = Scene.of(federation)
    with monkeypatch.context() as patch:
        calls(RunJournal, "record", is_closing, first=False)(scene, patch)
        with pytest.raises(Killed):
            scene.drive()
    checkpoint = scene.folder / f"round-{ROUND}.safetensors"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[:-5])
    failure = scene.drive().failure
    assert failure is not None
    assert failure.code == ContentDamaged.code
    assert checkpoint.name in failure.reason
    checkpoint.write_bytes(whole)
    scene.members.home.journal("run-1").record(RunReopened(unix=0.0))
    assert scene.drive().failure is None
    assert scene.weights == uninterrupted


def one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def last_line(path: Path) -> None:
    *lines, last, end = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines, last.replace(b"A", b"B"), end]))


def other_format(path: Path) -> None:
    path.write_text('{"digest": "", "body": "{}"}\n')


def other_round(path: Path) -> None:
    for name in KEPT:
        file = path.with_name(name)
        file.rename(file.with_name(name.replace(str(ROUND), str(ROUND + 1))))


# What is damaged after how many answers are kept, and the instance in which the round is summed then.
DAMAGES: dict[str, tuple[str, Callable[[Path], object], int, int]] = {
    "one bit of the masked sum": (VECTOR, one_bit, 0, SECOND),
    "the masked sum cut off": (VECTOR, lambda path: path.write_bytes(path.read_bytes()[:-8]), 0, SECOND),
    "an odd length": (VECTOR, lambda path: path.write_bytes(path.read_bytes()[:-3]), 0, SECOND),
    "no masked sum": (VECTOR, Path.unlink, 0, SECOND),
    "one bit of what else is needed": (LINES, one_bit, 0, SECOND),
    "nothing else": (LINES, Path.unlink, 0, SECOND),
    "an empty file": (LINES, lambda path: path.write_bytes(b""), 0, SECOND),
    "no UTF-8": (LINES, lambda path: path.write_bytes(b"\xff\xfe\n"), 0, SECOND),
    "another format": (LINES, other_format, 0, SECOND),
    "files of another round": (LINES, other_round, 0, SECOND),
    "an answer": (LINES, last_line, 2, FIRST),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_never_summed(federation: Make, uninterrupted: bytes, tmp_path: Path, damage: str) -> None:
    name, spoil, answers, instance = DAMAGES[damage]
    scene = dead_with(federation, tmp_path, asked("unmask", answers + 1, "before"))
    spoil(scene.folder / name)
    assert scene.drive().failure is None
    assert scene.weights == uninterrupted
    assert {tuple(numbers) for numbers in scene.instances().values()} == {(instance,)}
    assert not scene.kept
