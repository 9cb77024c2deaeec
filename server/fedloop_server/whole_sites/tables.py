"""The table of charges to whole sites, which only grows: SQLite refuses whatever would change or delete a row."""

from __future__ import annotations

from sqlalchemy import DDL, LargeBinary, event
from sqlalchemy.orm import Mapped, mapped_column

from fedloop_server.database import Base

__all__ = ["SiteChargeRow"]


class SiteChargeRow(Base):
    """An entry by number: its JSON, and the SHA-256 over the digest before, the number and the JSON."""

    __tablename__ = "whole_site_charges"
    number: Mapped[int] = mapped_column(primary_key=True)
    body: Mapped[str]
    digest: Mapped[bytes] = mapped_column(LargeBinary)


for _verb in ("UPDATE", "DELETE"):
    _refuse = DDL(  # type: ignore[no-untyped-call]
        f"CREATE TRIGGER whole_site_charges_no_{_verb.lower()} BEFORE {_verb} ON whole_site_charges "
        "BEGIN SELECT RAISE(ABORT, 'charges are only ever added'); END"
    )
    event.listen(SiteChargeRow.__table__, "after_create", _refuse.execute_if(dialect="sqlite"))
