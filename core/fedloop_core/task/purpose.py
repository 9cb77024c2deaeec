"""What the models of a task are for, as a site's policy matches it and as people read it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fedloop_core.strict import Strict

__all__ = ["Purpose", "PurposeName"]

PurposeName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9\-]{0,62}$")]
"""Lower-case letters, digits and hyphens."""


class Purpose(Strict):
    """``name`` is what sites allow or refuse; ``text`` says in a sentence or two what is done with the models, and by whom."""

    name: PurposeName
    text: Annotated[str, Field(max_length=2000)] = ""
