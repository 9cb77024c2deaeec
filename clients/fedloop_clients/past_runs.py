"""The runs that a site was asked to take part in, as its own records tell them."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ValidationError

from fedloop_clients.home import SiteHome
from fedloop_core.task.document import Task

__all__ = ["known_tasks"]


def known_tasks(home: SiteHome) -> Iterator[Task]:
    """The tasks whose documents the outbox keeps; one that an earlier release wrote and this one cannot read is passed over.

    Raises:
        StorageError: the outbox cannot be read.
    """
    if not home.outbox_file.exists():
        return
    outbox = home.outbox()
    try:
        documents = outbox.tasks()
    finally:
        outbox.close()
    for document in documents:
        try:
            yield Task.from_canonical(document)
        except ValidationError:
            continue
