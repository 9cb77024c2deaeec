"""What an audit of private training found, as a file that others can read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError

from fedloop_core.durable import write_bytes
from fedloop_core.errors import UsageError
from fedloop_core.strict import Strict

__all__ = ["AuditResult", "audit_sentence"]

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Natural = Annotated[int, Field(ge=0)]


class AuditResult(Strict):
    """What an audit found.

    ``claimed``: epsilon of the audited rounds at ``delta``, by Rényi divergence. ``bound``: what the guesses refute, with
    ``confidence``: a lower bound, and no proof that epsilon is as claimed. ``highest``: the bound had every guess been right.
    ``private`` is false where the audit can be repeated from a seed, and shows nothing.
    """

    format: Literal[1] = 1
    task: str
    claimed: NotNegative
    delta: Annotated[float, Field(gt=0, lt=1)]
    bound: NotNegative
    highest: NotNegative
    confidence: Annotated[float, Field(gt=0, lt=1)]
    canaries: Natural
    guesses: Natural
    correct: Natural
    runs: Natural
    rounds: Natural
    noise_multiplier: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    sampling_rate: Annotated[float, Field(gt=0, le=1)]
    private: bool

    @property
    def refuted(self) -> bool:
        """Whether the claim cannot be true, but for the chance of an error that ``confidence`` leaves."""
        return self.bound > self.claimed

    def write(self, path: Path) -> None:
        """Writes it whole or not at all.

        Raises:
            StorageError: the file cannot be written.
        """
        write_bytes(path, (self.model_dump_json(indent=1) + "\n").encode())

    @classmethod
    def read(cls, path: Path, task: str) -> Self:
        """Reads what ``write`` wrote, of an audit of this task.

        Raises:
            UsageError: it cannot be read, is no audit, or is of another task.
        """
        try:
            found = cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise UsageError(
                f"{path} holds no result of an audit.", hint="`fedloop privacy audit TASK --out FILE` writes one."
            ) from error
        if found.task != task:
            raise UsageError(f"{path} is of an audit of task {found.task}, not of {task}.", hint=f"Audit {task}.")
        return found


def audit_sentence(found: AuditResult) -> str:
    """What it shows, and what it does not."""
    if found.refuted:
        shows = "That refutes the claim: the training does not keep its promise, or this was the one case in twenty."
    else:
        shows = "A lower bound is no proof that epsilon is as claimed."
    repeatable = (
        ""
        if found.private
        else " It can be repeated from its seed, and shows nothing about the noise that a site draws."
    )
    return (
        f"An audit of the training with {found.canaries} canaries, at a claim of epsilon {found.claimed:.3f} (delta {found.delta:g}, "
        f"{found.rounds} rounds), found a lower bound of epsilon {found.bound:.3f} with {found.confidence:.0%} confidence. {shows}{repeatable}"
    )
