"""What a site holds of one run while it goes on."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from fedloop_clients.data.gate import GateVerdict
from fedloop_clients.data.site_data import RowChoice, SiteData
from fedloop_clients.outbox import KnownRun
from fedloop_clients.privacy.entries import Grounds
from fedloop_clients.privacy.planning import PrivacyPlan
from fedloop_core.dataset import Dataset
from fedloop_core.task.document import DataGate, Task

__all__ = ["EvaluationRowsOf", "KnownVerdict", "RunContext"]


@dataclass(frozen=True)
class EvaluationRowsOf:
    """Evaluation rows of one choice and the blocks that they lie in."""

    blocks: tuple[str, ...]
    rows: Dataset


@dataclass(frozen=True)
class KnownVerdict:
    """What a data gate said of the run's rows."""

    gate: DataGate
    verdict: GateVerdict


@dataclass
class RunContext:
    """A run's task and rows; ``data`` is what they were taken from, ``blocks`` its training rows by block.

    Rows are those of the moment when the site was first asked: feedback that arrives during a run waits for the next.
    ``training_blocks`` are trained on, and ``training`` are their rows: all but ``known.left_out``.
    """

    known: KnownRun
    task: Task
    task_digest: bytes
    data: SiteData
    blocks: dict[str, Dataset]
    training_blocks: tuple[str, ...]
    training: Dataset
    evaluation: dict[RowChoice, EvaluationRowsOf]
    verdict: KnownVerdict | None = None
    plan: PrivacyPlan | None = None
    digests: dict[tuple[str, ...], bytes] = field(default_factory=dict)

    @classmethod
    def begin(cls, known: KnownRun, task: Task, data: SiteData) -> RunContext:
        """Takes the site's rows as they are now."""
        evaluation = {
            choice: EvaluationRowsOf(data.evaluation_blocks(choice), data.evaluation(choice)) for choice in RowChoice
        }
        blocks = {block: data.training((block,)) for block in data.training_blocks}
        begun = cls(known, task, task.digest, data, blocks, data.training_blocks, data.training(), evaluation)
        if known.left_out:
            begun.leave_out(known.left_out)
        return begun

    def leave_out(self, blocks: Iterable[str]) -> None:
        """Trains on the rest from now on; what follows from the rows is found anew."""
        out = {*self.known.left_out, *blocks}
        self.known = replace(self.known, left_out=tuple(block for block in self.blocks if block in out))
        self.training_blocks = tuple(block for block in self.blocks if block not in out)
        self.training = self.data.training(()) if not self.training_blocks else self.blocks[self.training_blocks[0]]
        for block in self.training_blocks[1:]:
            self.training = self.training.concatenate(self.blocks[block])
        self.verdict = None
        self.plan = None
        self.digests.clear()

    def rows_digest(self, blocks: tuple[str, ...]) -> bytes:
        """Digest of the run's rows in these blocks, keyed with the site's secret; found once."""
        if blocks not in self.digests:
            read = [
                (self.training_blocks, self.training),
                *((one.blocks, one.rows) for one in self.evaluation.values()),
            ]
            rows = next((rows for names, rows in read if names == blocks), None)
            self.digests[blocks] = b"" if rows is None else self.data.fingerprint(rows)
        return self.digests[blocks]

    def told_digest(self) -> bytes:
        """The digest of the training rows that the coordinator gets: of a private run, another one in each run.

        Digests that can be compared would say whether two tasks, whose vocabularies differ, read the same rows, and whether
        a file has changed: one bit each, exactly. The site finds it again from run and ``rows_digest``. It is told once.
        """
        if not self.task.privacy.private:
            return self.rows_digest(self.training_blocks)
        if not self.known.fingerprint:
            key = self.rows_digest(self.training_blocks)
            told = hmac.digest(key, b"fedloop rows of a run\0" + self.known.run_id.encode(), hashlib.sha256)
            self.known = replace(self.known, fingerprint=told)
        return self.known.fingerprint

    def grounds(self, blocks: tuple[str, ...], received: bytes) -> Grounds:
        """What a release from these blocks is computed from; ``received``: digest of the arrays that came, or nothing."""
        return Grounds(
            task=self.task_digest.hex(),
            unit=self.task.privacy.unit_column or "",
            rows=self.rows_digest(blocks).hex(),
            model=received.hex(),
        )
