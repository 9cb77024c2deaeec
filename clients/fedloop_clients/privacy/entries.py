"""What a ledger's entries say, and the state that they add up to: pure, without disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from fedloop_core.errors import BudgetExhausted, BudgetFixed, UsageError
from fedloop_core.privacy.accounting import epsilon
from fedloop_core.privacy.charges import Charge, GaussianCharge, NonPrivateCharge, PureCharge, SampledGaussianCharge
from fedloop_core.privacy.filter import ROUNDING, LifetimeFilter
from fedloop_core.strict import Strict

__all__ = [
    "FORMAT",
    "MOST_RESUMPTIONS",
    "AnyEntry",
    "BlockState",
    "Entry",
    "Grounds",
    "LedgerState",
    "OpenEntry",
    "ReserveEntry",
    "ResumeEntry",
    "SettleEntry",
    "Spend",
    "WriterEntry",
    "parse_entry",
]

FORMAT = 2
"""Of the file and of its entries: 2 has signatures, writers and grounds."""

MOST_RESUMPTIONS = 3
"""How often work may begin anew under one reservation: that it broke off is seen from outside, so it is not free for ever."""


class WriterEntry(Strict):
    """Who writes the entries that follow, until the next such entry, and with what.

    ``key``: the public Ed25519 key that signs them, in hex; empty where nothing is signed. ``neighbours``: the relation that
    all charges are about. ``code``: hash of the site's packages.
    """

    kind: Literal["writer"] = "writer"
    time_unix: int
    format: Literal[2] = 2
    site: str
    key: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]
    neighbours: Literal["add-or-remove-one-unit"] = "add-or-remove-one-unit"
    software: Mapping[str, str]
    code: str


class Grounds(Strict):
    """What a release was computed from, by digests in hex: nobody can recover anything from them, and the site can compare.

    ``unit``: the column that names whose privacy is charged, empty where each row is a unit. ``rows``: of the rows that were
    read, keyed with the site's secret. ``model``: of the arrays that came with the question; empty where none did.
    """

    task: str
    unit: str
    rows: str
    model: str


class OpenEntry(Strict):
    """A block with its budget for life; ``order`` is the one order its filter uses, absent without a budget."""

    kind: Literal["open"] = "open"
    time_unix: int
    block: str
    epsilon: float
    delta: float
    order: float | None


class ReserveEntry(Strict):
    """The most that a release may cost each of these blocks; stands in full until a settlement.

    ``grounds`` are absent in entries before format 2, and for what devices have seen.
    """

    kind: Literal["reserve"] = "reserve"
    time_unix: int
    run_id: str
    purpose: str
    blocks: tuple[str, ...]
    charge: Charge
    grounds: Grounds | None = None


class SettleEntry(Strict):
    """What was executed of a reservation, named by its sequence number.

    ``released``: hex digest of the arrays that were answered; empty where none were, or where they are not known any more.
    """

    kind: Literal["settle"] = "settle"
    time_unix: int
    reservation: int
    executed: Charge
    released: str = ""


class ResumeEntry(Strict):
    """A reservation whose work broke off before anything was released carries the same work, begun anew."""

    kind: Literal["resume"] = "resume"
    time_unix: int
    reservation: int


AnyEntry = WriterEntry | OpenEntry | ReserveEntry | SettleEntry | ResumeEntry
Entry = Annotated[AnyEntry, Field(discriminator="kind")]
_ADAPTER: TypeAdapter[AnyEntry] = TypeAdapter(Entry)


def parse_entry(body: bytes) -> AnyEntry:
    """Reads an entry's JSON.

    Raises:
        pydantic.ValidationError: the bytes are not an entry.
    """
    return _ADAPTER.validate_json(body)


@dataclass(frozen=True)
class Spend:
    """What a block has spent for life: epsilon at its registered order, or infinite after an exact release."""

    epsilon: float
    delta: float
    budget: float
    unlimited: bool


@dataclass
class BlockState:
    """A block's budget and the charges that stand against it, by reservation number.

    ``unit`` is the column of units that the last run named, empty for rows, absent while none has; ``units`` are those of all runs.
    """

    opened: OpenEntry
    charges: dict[int, tuple[str, Charge]] = field(default_factory=dict)
    divergence: float = 0.0
    exact: bool = False
    unit: str | None = None
    units: tuple[str, ...] = ()
    last_run: str = ""

    @property
    def filter(self) -> LifetimeFilter:
        """Of this block."""
        return LifetimeFilter(self.opened.epsilon, self.opened.delta, self.opened.order)

    @property
    def capacity(self) -> float:
        """RDP at the registered order that the budget holds; infinite without a budget."""
        return self.filter.capacity

    def cost(self, charge: Charge) -> float:
        """RDP of a charge at this block's order; 0 where nothing is limited."""
        return self.filter.cost(charge)

    def admits(self, charge: Charge, slack: float = ROUNDING) -> bool:
        """Whether the filter holds with this charge added."""
        return self.filter.admits(self.divergence, charge, slack)

    def spend(self) -> Spend:
        """Spent for life."""
        unlimited, delta = self.opened.order is None, self.opened.delta
        if self.exact:
            spent = math.inf
        elif unlimited:
            spent = epsilon((charge for _, charge in self.charges.values()), delta)
        else:
            spent = self.filter.epsilon_of(self.divergence)
        return Spend(spent, delta, self.opened.epsilon, unlimited)


@dataclass
class LedgerState:
    """All blocks; changed by ``apply`` alone."""

    blocks: dict[str, BlockState] = field(default_factory=dict)
    reserved: dict[int, ReserveEntry] = field(default_factory=dict)
    resumed: dict[int, int] = field(default_factory=dict)
    writer: WriterEntry | None = None

    def block(self, name: str) -> BlockState:
        """A block by name.

        Raises:
            UsageError: no such block was opened.
        """
        if name not in self.blocks:
            raise UsageError(f"the ledger has no block {name!r}.", hint="Open it with its budget first.")
        return self.blocks[name]

    def apply(self, sequence: int, entry: AnyEntry) -> None:
        """Adds one entry that was admitted."""
        match entry:
            case WriterEntry():
                self.writer = entry
            case OpenEntry():
                self.blocks[entry.block] = BlockState(entry)
            case ReserveEntry():
                if not isinstance(entry.charge, NonPrivateCharge):
                    self.reserved[sequence] = entry
                for name in entry.blocks:
                    self._add(self.blocks[name], sequence, entry)
            case ResumeEntry():
                self.resumed[entry.reservation] = self.resumed.get(entry.reservation, 0) + 1
            case SettleEntry():
                reservation = self.reserved.pop(entry.reservation)
                self.resumed.pop(entry.reservation, None)
                for name in reservation.blocks:
                    block = self.blocks[name]
                    block.charges[entry.reservation] = (reservation.run_id, entry.executed)
                    block.divergence += block.cost(entry.executed) - block.cost(reservation.charge)

    @staticmethod
    def _add(block: BlockState, sequence: int, entry: ReserveEntry) -> None:
        if isinstance(entry.charge, NonPrivateCharge):
            block.exact = True  # nothing more can be learnt from the list of charges, so it does not grow
            return
        block.charges[sequence] = (entry.run_id, entry.charge)
        block.divergence += block.cost(entry.charge)
        if entry.grounds is not None:
            block.unit, block.last_run = entry.grounds.unit, entry.run_id
            if block.unit not in block.units:
                block.units = (*block.units, block.unit)

    def check_open(self, block: str, budget: float, delta: float) -> OpenEntry | None:
        """The entry that opens a block, without its time; absent when the block is open with this budget already.

        Raises:
            BudgetFixed: the block is open with another budget, which is for life.
            PrivacyParameterInvalid: the budget holds nothing.
        """
        known = self.blocks.get(block)
        if known is None:
            order = LifetimeFilter.of(budget, delta).order
            return OpenEntry(time_unix=0, block=block, epsilon=budget, delta=delta, order=order)
        if (known.opened.epsilon, known.opened.delta) != (budget, delta):
            raise BudgetFixed(
                f"block {block!r} was opened with epsilon {known.opened.epsilon:g} at delta {known.opened.delta:g} for "
                f"life; it cannot be changed to {budget:g} at {delta:g}.",
                hint="Write the first budget under [budget] in site.toml again: a block keeps it for life.",
                block=block,
            )
        return None

    def check_reserve(self, entry: ReserveEntry, slack: float = ROUNDING) -> None:
        """Whether every block admits the charge, up to a relative ``slack`` of its capacity.

        Raises:
            BudgetExhausted: names the first block that does not, what it spent, what was asked and its budget.
        """
        for name in entry.blocks:
            block = self.block(name)
            if block.admits(entry.charge, slack):
                continue
            spend = block.spend()
            asked = block.filter.epsilon_of(block.cost(entry.charge))
            wish = (
                "asks for an exact release, which no budget holds"
                if math.isinf(asked)
                else f"asks for {asked:.3g} more (epsilons of single releases do not simply add up)"
            )
            raise BudgetExhausted(
                f"block {name!r} has spent epsilon {spend.epsilon:.3f} of {spend.budget:g} for life; {entry.purpose} "
                f"{wish}.",
                hint="Train on newer blocks, or plan less. Fine-tuning from the last release costs these rows nothing only where it trains on other rows.",
                block=name,
                spent=spend.epsilon,
                asked=asked,
                budget=spend.budget,
            )

    def resumable(self, like: ReserveEntry) -> tuple[int, ...]:
        """Reservations of just this release that are not settled and may carry its work once more, newest first."""
        return tuple(
            sequence
            for sequence, entry in sorted(self.reserved.items(), reverse=True)
            if (entry.run_id, entry.purpose, entry.blocks, entry.charge)
            == (like.run_id, like.purpose, like.blocks, like.charge)
            and self.resumed.get(sequence, 0) < MOST_RESUMPTIONS
        )

    def check_settle(self, reservation: int, executed: Charge) -> None:
        """Whether ``executed`` lies within the reservation.

        Raises:
            UsageError: the reservation is unknown or settled, or less than what was executed.
        """
        if reservation not in self.reserved:
            raise UsageError(f"reservation {reservation} is unknown or settled already.")
        if not _covers(self.reserved[reservation].charge, executed):
            raise UsageError(f"reservation {reservation} does not cover what was executed; it stands in full.")


def _covers(reserved: Charge, executed: Charge) -> bool:
    match reserved, executed:
        case SampledGaussianCharge(), SampledGaussianCharge():
            same = reserved.model_copy(update={"steps": executed.steps}) == executed
            return same and executed.steps <= reserved.steps
        case GaussianCharge(), GaussianCharge():
            return reserved.noise_multiplier == executed.noise_multiplier and executed.count <= reserved.count
        case PureCharge(), PureCharge():
            return reserved.epsilon == executed.epsilon and executed.count <= reserved.count
        case _:
            return reserved == executed
