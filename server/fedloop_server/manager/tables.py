"""The queue's table. What the machine knows of a run is one JSON document; the columns beside it are what is looked up."""

from __future__ import annotations

from sqlalchemy.orm import Mapped, mapped_column

from fedloop_server.database import Base

__all__ = ["QueuedRunRow"]


class QueuedRunRow(Base):
    """A run that was submitted; ``number`` is the order of submission.

    ``wish`` is written by people and taken back by the manager; ``job`` is written by the manager alone. A
    run is ``settled`` when it is over and nothing of it is left at Flower.
    """

    __tablename__ = "run_queue"
    number: Mapped[int] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(unique=True)
    status: Mapped[str]
    settled: Mapped[bool] = mapped_column(index=True)
    wish: Mapped[str]
    job: Mapped[str]
