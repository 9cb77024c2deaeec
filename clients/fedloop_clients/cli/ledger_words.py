"""A ledger in plain words: whose privacy, since when, how much of it is spent, and how far the rest reaches."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fedloop_clients.data.site_data import is_evaluation_block

if TYPE_CHECKING:
    from fedloop_clients.privacy.accounts import BlockAccount

__all__ = ["block_sentences", "plural_of_unit"]

_TOLD = 0.5  # of what is spent: what the first charge takes once for all is told from here on
_UNIT = re.compile(r"([a-z][a-z ]+?)s?[ _.-]*(?:id|ids|no|nr|num|number|key|code|hash|pseudonym)?", re.IGNORECASE)


def block_sentences(accounts: Sequence[BlockAccount]) -> tuple[str, ...]:
    """A sentence for each block, those that are trained on first."""
    training = [account for account in accounts if not is_evaluation_block(account.name)]
    evaluation = [account for account in accounts if is_evaluation_block(account.name)]
    return (*_sentences(training, ""), *_sentences(evaluation, " that are only evaluated on"))


def plural_of_unit(unit: str | None) -> str:
    """What to call the units that a column names: ``patient_id`` names patients."""
    if not unit:
        return "rows"
    found = _UNIT.fullmatch(unit)
    return f"{found[1].strip().lower()}s" if found else f"units by {unit!r}"


def _sentences(accounts: Sequence[BlockAccount], aside: str) -> Iterable[str]:
    for at, account in enumerate(accounts):
        ends = accounts[at + 1].opened_unix if at + 1 < len(accounts) else 0
        who = " and ".join(map(plural_of_unit, account.units or (account.unit,))) + aside
        yield f"{who}{_when(account.opened_unix if at else 0, ends)}: {_state(account)}.{_mixed(account)}"


def _mixed(account: BlockAccount) -> str:
    """What one sum of charges to different units does not say."""
    if len(account.units) < 2:
        return ""
    listed = " and ".join("by row" if not unit else f"by {unit!r}" for unit in account.units)
    by_row = (
        " A charge by row counts for a person about as many times as the person has rows."
        if "" in account.units
        else ""
    )
    return f" It was charged {listed}: each charge protects its own unit, and the sum is of no one unit.{by_row}"


def _when(begins: int, ends: int) -> str:
    if begins and ends:
        first, last = _day(begins), _day(ends)
        if first == last:
            first, last = _minute(begins), _minute(ends)
        return f" first seen from {first} to {last}"
    if begins:
        return f" first seen since {_day(begins)}"
    return f" first seen before {_day(ends)}" if ends else " seen so far"


def _state(account: BlockAccount) -> str:
    spend = account.spend
    if math.isinf(spend.epsilon):
        return "no budget is kept, and exact answers were given: no epsilon bounds them"
    spent = "nothing" if account.charges == 0 else f"{spend.epsilon:.2g}"
    if spend.unlimited:
        return f"{spent} spent, and no budget is kept"
    once = (
        f", {account.once:.2g} of it once for all by the first charge" if account.once > _TOLD * spend.epsilon else ""
    )
    return f"{spent} of {spend.budget:g} spent{once}{_reach(account.runs_left)}"


def _reach(runs_left: float | None) -> str:
    if runs_left is None:
        return ""
    if runs_left < 1:
        return "; not one more run like the last: such a run leaves them out"
    return f"; about {math.floor(runs_left)} more run{'' if runs_left < 2 else 's'} like the last"


def _day(unix: int) -> str:
    return dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%d")


def _minute(unix: int) -> str:
    return dt.datetime.fromtimestamp(unix, dt.UTC).strftime("%Y-%m-%d %H:%M")
