"""What a site holds of one run while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

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
    """A run's task and rows; ``data`` is what they were taken from.

    Rows are those of the moment when the site was first asked: feedback that arrives during a run waits for the next.
    """

    known: KnownRun
    task: Task
    task_digest: bytes
    data: SiteData
    training_blocks: tuple[str, ...]
    training: Dataset
    evaluation: dict[RowChoice, EvaluationRowsOf]
    verdict: KnownVerdict | None = None
    plans: dict[tuple[int, int], PrivacyPlan] = field(default_factory=dict)
    digests: dict[tuple[str, ...], bytes] = field(default_factory=dict)

    @classmethod
    def begin(cls, known: KnownRun, task: Task, data: SiteData) -> RunContext:
        """Takes the site's rows as they are now."""
        evaluation = {
            choice: EvaluationRowsOf(data.evaluation_blocks(choice), data.evaluation(choice)) for choice in RowChoice
        }
        return cls(known, task, task.digest, data, data.training_blocks, data.training(), evaluation)

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

    def grounds(self, blocks: tuple[str, ...], received: bytes) -> Grounds:
        """What a release from these blocks is computed from; ``received``: digest of the arrays that came, or nothing."""
        return Grounds(
            task=self.task_digest.hex(),
            unit=self.task.privacy.unit_column or "",
            rows=self.rows_digest(blocks).hex(),
            model=received.hex(),
        )
