"""How many units a run trains on, and whether the data gate lets them in: in a private run by noised, charged numbers alone."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedloop_clients.charging import RunCharges
from fedloop_clients.context import KnownVerdict, RunContext
from fedloop_clients.data.gate import GateVerdict, NoisedCount, check_count, check_rows
from fedloop_clients.data.site_data import ORIGINAL
from fedloop_clients.privacy.mechanisms import noised_counts
from fedloop_clients.privacy.planning import count_charge
from fedloop_clients.training.rows import UnitIndex
from fedloop_core.errors import EnvelopeRefused
from fedloop_core.noise import NoiseSource
from fedloop_core.privacy.charges import NonPrivateCharge
from fedloop_core.task.document import DataGate

__all__ = ["count_units", "exact_verdict", "verdict_of"]

_LOG = logging.getLogger(__name__)
_MOST = 2**62  # an outbox keeps numbers up to there; noise of a tiny epsilon goes beyond


def verdict_of(context: RunContext, gate: DataGate) -> GateVerdict:
    """The data gate's verdict that may leave the site: on a private run's noised numbers, or else on the rows.

    Raises:
        EnvelopeRefused: nothing was counted yet for a private run.
    """
    if not context.task.privacy.private:
        return exact_verdict(context, gate)
    if context.known.counted is None:
        raise EnvelopeRefused(f"run {context.known.run_id} was not described to its end.", reason="undescribed")
    return check_count(context.known.counted, 1 / count_charge(context.task).epsilon, gate)


def exact_verdict(context: RunContext, gate: DataGate) -> GateVerdict:
    """The verdict on the run's training rows, found once; of a private run it is for nobody but the site's people."""
    if context.verdict is None or context.verdict.gate != gate:
        verdict = check_rows(context.training, context.data.skipped_share, context.task.feature_schema, gate)
        context.verdict = KnownVerdict(gate, verdict)
    return context.verdict.verdict


def count_units(charges: RunCharges, gate: DataGate, noise: NoiseSource) -> None:
    """Counts a run's units, charges that, and finds the blocks that hold the run: before anything is said of the rows.

    A private run's numbers are drawn once, and it is charged for them also when the data gate then refuses its rows: what is
    charged and what is refused follows from task, ledger and noised numbers alone. Whoever asks again hears the same.

    Args:
        charges: of the question.
        gate: the task's and the site's rules together.
        noise: of the numbers.

    Raises:
        PrivacyParameterInvalid: the task's parameters guard nothing with so many units as were told.
        BudgetExhausted: no block holds the run to its end.
    """
    context = charges.context
    if not context.task.privacy.private:
        if exact_verdict(context, gate).admitted:
            charges.release(NonPrivateCharge(), context.training_blocks, "number of rows")
            context.known = replace(context.known, rows_said=max(len(context.training), 1))
    elif context.known.counted is None:
        charges.leave_out_exhausted()  # before anything is charged
        _settle_on_blocks(charges, gate, _draw(charges, noise))
    elif verdict_of(context, gate).admitted:
        charges.require_room(charges.plan())


@dataclass(frozen=True)
class _Numbers:
    """With noise: units of each block, and the rows of the oldest block's file that were skipped, where they were counted."""

    units: Mapping[str, int]
    skipped: int | None

    def of(self, blocks: tuple[str, ...]) -> NoisedCount:
        units = _bounded(sum(self.units[block] for block in blocks))
        counted = self.skipped is not None and ORIGINAL in blocks
        return NoisedCount(units, _bounded(self.skipped or 0) if counted else None)


def _bounded(number: int) -> int:
    return min(max(number, -_MOST), _MOST)


def _draw(charges: RunCharges, noise: NoiseSource) -> _Numbers:
    """One release: a unit is in one block and moves its number by 1, however many rows it has, and no other number.

    Where each row is a unit, it is in a block or among the skipped ones, which are in the oldest block's file and
    charged to that block. With a unit column nobody knows whose a skipped row is, nor how many of them one unit has: they are
    not counted.
    """
    context = charges.context
    blocks = context.training_blocks
    charge = count_charge(context.task)
    charges.release(charge, blocks, "number of rows")
    exact = [len(UnitIndex.of(context.blocks[block].units)) for block in blocks]
    if context.task.privacy.unit_column is None and ORIGINAL in blocks:
        exact.append(context.data.skipped)
    noised = noised_counts(exact, 1 / charge.epsilon, noise)
    skipped = noised[len(blocks)] if len(noised) > len(blocks) else None
    return _Numbers(dict(zip(blocks, noised, strict=False)), skipped)


def _settle_on_blocks(charges: RunCharges, gate: DataGate, told: _Numbers) -> None:
    """Finds the blocks that hold the run to its end, and with them the number of units that it is planned from.

    Fewer units ask for another plan, which other blocks may not hold, so it is looked at until all hold it. The number is
    never outside the numbers of rows that the task's data gate lets in, which are public.
    """
    context = charges.context
    public = context.task.gates.data
    while True:
        counted = told.of(context.training_blocks)
        said = min(max(counted.units, public.minimum_rows, 1), public.maximum_rows)
        context.known = replace(context.known, rows_said=said, counted=counted)
        if not verdict_of(context, gate).admitted:
            return
        if not charges.leave_out_exhausted(charges.plan()):
            return
