"""Approval by hand: what waits for a person at the site, and what the person has decided.

``approvals.json`` in the site's home is written by the daemon, which adds what was asked, and by ``fedloop site approve``,
which decides. A decision is bound to the digest of the task's document, so that a run cannot be changed after it was
approved. The newest decision on a run, or on every run of its task, is the one that holds: an approval can be taken back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field

from fedloop_clients.policy import ApprovalMode
from fedloop_clients.state_file import StateFile
from fedloop_core.errors import PolicyRefused, UsageError
from fedloop_core.federation.rules import PolicyRule
from fedloop_core.strict import Strict
from fedloop_core.task.document import Task

__all__ = ["FILE_NAME", "ApprovalState", "Approvals", "Asked", "Decision"]

FILE_NAME = "approvals.json"
_MOST_WAITING = 100
_MOST_DECIDED = 100
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Asked(Strict):
    """A run that a site was asked to take part in: what it would spend on which unit (None: a row), who signed it (a key's id), when, and what it is for."""

    run_id: str
    task: str
    task_digest: _Hex
    rounds: int
    epsilon: float
    evaluation_epsilon: float
    delta: float
    signed_by: _Hex
    asked_unix: int
    purpose: str = ""
    unit_column: str | None = None

    @classmethod
    def of(cls, run_id: str, task: Task, signed_by: str, now_unix: int) -> Self:
        """What a run of this task asks for."""
        return cls(
            run_id=run_id,
            task=task.name,
            task_digest=task.digest.hex(),
            rounds=task.rounds.count,
            epsilon=task.privacy.epsilon,
            evaluation_epsilon=task.privacy.epsilon_of_evaluations,
            delta=task.privacy.delta,
            signed_by=signed_by,
            asked_unix=now_unix,
            purpose=task.purpose_name,
            unit_column=task.privacy.unit_column,
        )


class Decision(Strict):
    """A person's decision on one run, or on every run of a task when ``run_id`` is empty."""

    run_id: str
    task: str
    task_digest: _Hex
    approved: bool
    by: str
    unix: int


class ApprovalState(Strict):
    """The file: what waits and which runs were decided on, oldest first, and what was decided."""

    format: Literal[1] = 1
    waiting: tuple[Asked, ...] = ()
    decisions: tuple[Decision, ...] = ()
    decided_on: tuple[Asked, ...] = ()

    def decision(self, run_id: str, task_digest: str, *, for_task: bool) -> Decision | None:
        """The newest decision on a run, or on every run of its task; that approves only where approvals of tasks count."""
        for decision in reversed(self.decisions):
            if decision.task_digest != task_digest or decision.run_id not in {"", run_id}:
                continue
            if decision.run_id or for_task or not decision.approved:
                return decision
        return None

    def standing(self) -> tuple[Decision, ...]:
        """The decisions that no later one on the same run, or on every run of the same task, has replaced."""
        left: list[Decision] = []
        for decision in self.decisions:
            left = [old for old in left if not _replaces(decision, old)] + [decision]
        return tuple(left)

    def named(self, run_id: str) -> Asked | Decision | None:
        """The run of this name that waits, or else the last one that was decided on."""
        waiting = [asked for asked in self.waiting if asked.run_id == run_id]
        decided = [asked for asked in self.decided_on if asked.run_id == run_id]
        return next(iter((*waiting, *reversed(decided))), None) or next(
            (decision for decision in reversed(self.decisions) if decision.run_id == run_id), None
        )

    def with_asked(self, asked: Asked) -> ApprovalState:
        """With one more that waits; the moment of the first question stays."""
        if any(self._same(old, asked) for old in self.waiting):
            return self
        return self.model_copy(update={"waiting": (*self.waiting, asked)[-_MOST_WAITING:]})

    def decided(self, decision: Decision) -> ApprovalState:
        """With a decision; what it decides waits no longer."""
        done = [asked for asked in self.waiting if _is_about(decision, asked.run_id, asked.task_digest)]
        left = tuple(asked for asked in self.waiting if asked not in done)
        after = self.model_copy(update={"waiting": left, "decisions": (*self.decisions, decision)})
        for asked in done:
            after = after.with_decided_on(asked)
        return after

    def with_decided_on(self, asked: Asked) -> ApprovalState:
        """With a run that a decision is about, so that it can be named when somebody decides otherwise."""
        if any(self._same(old, asked) for old in self.decided_on):
            return self
        return self.model_copy(update={"decided_on": (*self.decided_on, asked)[-_MOST_DECIDED:]})

    @staticmethod
    def _same(one: Asked, other: Asked) -> bool:
        return (one.run_id, one.task_digest) == (other.run_id, other.task_digest)


def _is_about(decision: Decision, run_id: str, task_digest: str) -> bool:
    return decision.task_digest == task_digest and decision.run_id in {"", run_id}


def _refuse_declined(decision: Decision | None, run_id: str, site: str) -> None:
    if decision is not None and not decision.approved:
        raise PolicyRefused(f"a person at site {site} has declined run {run_id}.", rule=PolicyRule.DECLINED.value)


def _replaces(later: Decision, earlier: Decision) -> bool:
    return _is_about(later, earlier.run_id, earlier.task_digest)


class Approvals:
    """Opens ``approvals.json`` at ``path``; None keeps everything in memory."""

    def __init__(self, path: Path | None) -> None:
        self._file = StateFile(path, ApprovalState())

    def require(self, mode: ApprovalMode, asked: Asked, site: str) -> None:
        """Whether a person has approved, where the policy asks for one; what was not decided yet waits from now on.

        Raises:
            PolicyRefused: rule ``approval`` while nobody has decided, ``declined`` when somebody has decided against it.
            StorageError: the file cannot be read or written.
        """
        decision = self._file.read().decision(asked.run_id, asked.task_digest, for_task=mode != "each-run")
        _refuse_declined(decision, asked.run_id, site)
        if decision is not None and not decision.run_id:
            self._file.change(lambda state: state.with_decided_on(asked))
        if mode == "none" or decision is not None:
            return
        self._file.change(lambda state: state.with_asked(asked))
        raise PolicyRefused(
            f"run {asked.run_id} of task {asked.task!r} waits until a person at site {site} approves it.",
            hint=f"At the site: fedloop site approve {asked.run_id}.",
            rule=PolicyRule.APPROVAL.value,
        )

    def require_not_declined(self, run_id: str, task_digest: str, site: str) -> None:
        """Whether nobody has decided against a run; asked at each step of its training.

        Raises:
            PolicyRefused: rule ``declined``.
            StorageError: the file cannot be read.
        """
        _refuse_declined(self._file.read().decision(run_id, task_digest, for_task=True), run_id, site)

    def state(self) -> ApprovalState:
        """All that waits and all decisions.

        Raises:
            StorageError: the file cannot be read.
        """
        return self._file.read()

    def decide(
        self, run_id: str, *, approved: bool, by: str, now_unix: int, every_run_of_task: bool = False
    ) -> Decision:
        """Decides on a run, or on every run of its task, also otherwise than before; returns the decision, for the audit log.

        Args:
            run_id: a run that waits, or that was decided on.
            approved: whether it may go on.
            by: who decides, as the audit log will name them.
            now_unix: seconds since 1970.
            every_run_of_task: decides on all runs of this very task document, later ones too.

        Raises:
            UsageError: no such run waits, and none was decided on.
            StorageError: the file cannot be written.
        """
        made: list[Decision] = []

        def add(state: ApprovalState) -> ApprovalState:
            asked = state.named(run_id)
            if asked is None:
                waiting = ", ".join(asked.run_id for asked in state.waiting) or "none"
                raise UsageError(
                    f"no run {run_id!r} waits for approval, and none was decided on.", hint=f"Waiting: {waiting}."
                )
            decision = Decision(
                run_id="" if every_run_of_task else run_id,
                task=asked.task,
                task_digest=asked.task_digest,
                approved=approved,
                by=by,
                unix=now_unix,
            )
            made.append(decision)
            return state.decided(decision)

        self._file.change(add)
        return made[0]
