"""What a site holds of one run while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedloop_clients.data.gate import GateVerdict
from fedloop_clients.data.site_data import RowChoice, SiteData
from fedloop_clients.outbox import KnownRun
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

    @classmethod
    def begin(cls, known: KnownRun, task: Task, data: SiteData) -> RunContext:
        """Takes the site's rows as they are now."""
        evaluation = {
            choice: EvaluationRowsOf(data.evaluation_blocks(choice), data.evaluation(choice)) for choice in RowChoice
        }
        return cls(known, task, task.digest, data, data.training_blocks, data.training(), evaluation)
