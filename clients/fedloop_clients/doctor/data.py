"""The site's rows and its ledger."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedloop_clients.data.claim import find_claim
from fedloop_clients.data.gate import GateVerdict, check_rows, stricter
from fedloop_clients.data.opening import open_source
from fedloop_clients.data.sentences import skipped_words
from fedloop_clients.data.source import read_site_rows
from fedloop_clients.doctor.finding import Finding, fine, problem, warning
from fedloop_clients.doctor.scene import Scene
from fedloop_clients.doctor.values import strange_values
from fedloop_clients.heads import FILE_NAME as GUARD
from fedloop_clients.heads import GuardState
from fedloop_clients.open_budgets import budgets_of, changed_budgets
from fedloop_clients.state_file import StateFile
from fedloop_core.errors import DataClaimed
from fedloop_core.task import Task

__all__ = ["DataCheck", "LedgerCheck"]

_TOLD = 3


@dataclass(frozen=True)
class DataCheck:
    """Whether the data file can be read, and, for a task, which of its rows fit."""

    name: str = "data"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        if scene.settings() is None:
            return
        yield from _claimed(scene)
        if _absent(scene.home.data_file):
            yield problem(
                f"{scene.home.data_file} is not there.",
                f"Put the site's rows there, or name their file under [data] in {scene.home.settings_file}.",
            )
        elif scene.task is None:
            yield self._without_task(scene)
        else:
            yield from self._for_task(scene, scene.task)

    def _for_task(self, scene: Scene, task: Task) -> Iterator[Finding]:
        reading = read_site_rows(scene.home, task)
        skipped, fit = reading.skipped, len(reading.rows)
        first = "".join(f" {why}" for why in skipped_words(reading, task.feature_schema)[:_TOLD])
        said = f"{scene.home.data_file}: {fit} rows fit task {task.name}, {skipped} do not.{first}"
        if reading.left_out:
            said = f"{said} {reading.left_out} rows of people who were erased are left out."
        if fit + skipped == 0:
            yield _no_rows(scene.home.data_file)
            return
        allowed = task.gates.data.maximum_skipped
        if fit == 0:
            yield problem(said, "Correct the file, or [data] in site.toml.")
        elif skipped > allowed * (fit + skipped):
            yield problem(said, f"The task allows a share of {allowed:g} to be skipped: correct these rows.")
        else:
            yield fine(said)
        if fit:
            gate = stricter(task.gates.data, scene.home.settings.policy.data_gate)
            yield from _beside_the_gate(scene.home.data_file, check_rows(reading.rows, 0.0, task.feature_schema, gate))
        yield from strange_values(scene.home.data_file, reading.rows, task)

    def _without_task(self, scene: Scene) -> Finding:
        source = open_source(scene.home.data_file, scene.home.settings.data)
        header = source.columns()
        first = header[:1] if header.count(header[0]) == 1 else ()
        batches = list(source.batches(first))
        rows = sum(len(batch.numbers) for batch in batches)
        broken = sum(len(batch.broken) for batch in batches)
        where = source.describe().where
        if rows + broken == 0:
            return _no_rows(scene.home.data_file)
        said = f"{where}: {rows + broken} rows of {len(header)} columns ({', '.join(header[:8])}{', …' if len(header) > 8 else ''})"
        if broken:
            return warning(
                f"{said}; {broken} rows have another number of cells and are skipped.", "Correct these rows."
            )
        return fine(f"{said}; give --task FILE to see which fit a task.")


def _beside_the_gate(path: Path, verdict: GateVerdict) -> Iterator[Finding]:
    """What the site's own people may know exactly: a private run is let in or not by numbers with noise."""
    broken = [rule for rule in verdict.failed if rule != "all-classes"]  # strange values say so with the class
    if broken:
        yield warning(
            f"{path}: the rows break these rules of the data gate: {', '.join(broken)}.",
            "A run without privacy leaves this site out. A private one may let it in, since it is judged by numbers with noise: correct "
            "the file, or pause the site.",
        )


def _claimed(scene: Scene) -> Iterator[Finding]:
    """Whether the rows are charged to another ledger; nothing before the site has joined, or where it is theirs."""
    home = scene.home
    if not (home.membership_file.exists() and home.fingerprint_secret_file.exists()):
        return
    try:
        found = find_claim(home)
    except DataClaimed as error:
        yield problem(error.message, error.hint)
        return
    if found.claim is not None and not found.own:
        said = f"{home.data_file} is charged to the ledger of site {found.claim.site} in {found.claim.home} too."
        if home.settings.data.second_ledger:
            yield warning(said, "What both spend adds up: data.second_ledger says that people know.")
        else:
            yield problem(said, f"The site refuses every run. Bring that ledger here, or see {found.file}.")


def _no_rows(path: Path) -> Finding:
    return problem(f"{path} has no rows.", "Put the site's rows there, or name another file in site.toml.")


def _absent(path: Path) -> bool:
    """False too where it cannot be said: reading it then says why."""
    try:
        path.stat()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True)
class LedgerCheck:
    """Whether the ledger's chain holds, the site is stopped because of it, or site.toml names other budgets than it."""

    name: str = "ledger"

    def look(self, scene: Scene) -> Iterator[Finding]:
        """See ``Check``."""
        home = scene.home
        stop = StateFile(home.folder / GUARD, GuardState()).read().stop
        if stop is not None:
            yield problem(
                stop.sentence,
                "Put the newest copy of the ledger back, or run `fedloop site ledger accept-restored`"
                " and tell the coordinator.",
            )
        if not home.ledger_file.exists():
            if home.membership_file.exists():
                yield fine("the ledger begins with the first run.")
            return
        ledger = home.ledger()
        try:
            head, budgets = ledger.verify(), budgets_of(ledger)
        finally:
            ledger.close()
        settings = scene.settings()
        for sentence in () if settings is None else changed_budgets(settings, budgets):
            yield problem(sentence, f"Put the first budget back under [budget] in {home.settings_file}.")
        yield fine(f"the ledger holds: {head.sequence} entries, head {head.digest.hex()[:16]}.")
