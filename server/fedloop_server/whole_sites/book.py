"""The coordinator's record of what runs have spent on whole sites: in its database, append-only and hash-chained."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError
from sqlalchemy import select
from sqlalchemy.orm import Session

from fedloop_core.errors import BudgetExhausted, StorageError
from fedloop_core.privacy.charges import GaussianCharge
from fedloop_server.database import Database
from fedloop_server.whole_sites.accounts import SiteCharge, WholeSitesState
from fedloop_server.whole_sites.budget import SiteBudget
from fedloop_server.whole_sites.tables import SiteChargeRow

__all__ = ["Paid", "WholeSites"]

_BEGINNING = bytes(32)


@dataclass(frozen=True)
class Paid:
    """What came of a charge: ``sites`` have paid for the run, now or before; ``refused`` have not, and why.

    ``spent``: the highest epsilon for life of those who paid.
    """

    sites: tuple[str, ...]
    refused: Mapping[str, BudgetExhausted]
    spent: float


class WholeSites:
    """Charges runs to whole sites, within the operator's budget. Processes may share the database; each call is one transaction.

    All methods raise ``StorageError`` when the database fails or what it holds was altered.
    """

    def __init__(self, database: Database, budget: SiteBudget, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self.budget = budget
        self._clock = clock

    def close(self) -> None:
        """Closes the database."""
        self._database.close()

    def state(self) -> WholeSitesState:
        """All accounts."""
        with self._database.reading() as session:
            return _read(session)[0]

    def refusals(self, run_id: str, sites: Iterable[str], charge: GaussianCharge) -> dict[str, BudgetExhausted]:
        """Those of these sites that do not hold the run, and why; a site that has paid for it holds it. Nothing is charged.

        Raises:
            BudgetFixed: a site's first charge was made under another budget.
            PrivacyParameterInvalid: the budget holds nothing.
        """
        return self._refused(self.state(), run_id, sites, charge)

    def charge(self, run_id: str, task: str, sites: Iterable[str], charge: GaussianCharge) -> Paid:
        """Charges a whole run to each of these sites that holds it and has not paid for it; done again, it changes nothing.

        It is on the disk when the call returns, and is never taken back.

        Raises:
            BudgetFixed: a site's first charge was made under another budget.
            PrivacyParameterInvalid: the budget holds nothing.
        """
        wanted = tuple(sorted(set(sites)))
        with self._database.writing() as session:
            state, number, digest = _read(session)
            refused = self._refused(state, run_id, wanted, charge)
            fresh = tuple(site for site in state.unpaid(run_id, wanted, charge) if site not in refused)
            if fresh:
                order = state.account(fresh[0], self.budget).filter.order
                entry = SiteCharge(
                    time_unix=int(self._clock()),
                    run_id=run_id,
                    task=task,
                    sites=fresh,
                    charge=charge,
                    epsilon=self.budget.epsilon,
                    delta=self.budget.delta,
                    order=order,
                )
                body = entry.model_dump_json()
                session.add(SiteChargeRow(number=number + 1, body=body, digest=_digest(digest, number + 1, body)))
                state.apply(entry)
        paid = tuple(site for site in wanted if site not in refused)
        return Paid(paid, refused, max((state.accounts[site].spent for site in paid), default=0.0))

    def _refused(
        self, state: WholeSitesState, run_id: str, sites: Iterable[str], charge: GaussianCharge
    ) -> dict[str, BudgetExhausted]:
        refused: dict[str, BudgetExhausted] = {}
        for site in state.unpaid(run_id, sites, charge):
            try:
                state.account(site, self.budget).check(run_id, charge)
            except BudgetExhausted as error:
                refused[site] = error
        return refused


def _read(session: Session) -> tuple[WholeSitesState, int, bytes]:
    """All entries added up, with number and digest of the newest."""
    state, number, digest = WholeSitesState(), 0, _BEGINNING
    for row in session.scalars(select(SiteChargeRow).order_by(SiteChargeRow.number)):
        number += 1
        if row.number != number or row.digest != _digest(digest, number, row.body):
            raise _altered(number)
        try:
            state.apply(SiteCharge.model_validate_json(row.body))
        except ValidationError as error:
            raise _altered(number) from error
        digest = row.digest
    return state, number, digest


def _digest(before: bytes, number: int, body: str) -> bytes:
    return hashlib.sha256(before + number.to_bytes(8, "big") + body.encode()).digest()


def _altered(number: int) -> StorageError:
    return StorageError(
        f"entry {number} of the charges to whole sites is not what was written: it was altered, or one before it is gone.",
        hint="Stop: nothing more is released to hide whole sites. Restore the coordinator's database from its newest backup.",
    )
