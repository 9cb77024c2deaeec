"""The base of every document that fedloop reads: unknown keys are errors, values are not coerced, objects are frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Misfit", "Place", "Strict"]

Place = tuple[str | int, ...]


class Strict(BaseModel):
    """A frozen pydantic model that refuses unknown keys, NaN and silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, ser_json_inf_nan="constants"
    )


class Misfit(ValueError):
    """Parts of a document that are sound alone and do not fit together; a validator raises it.

    ``problems`` holds, for each, the place in the document (keys and positions from the top) and a sentence.
    """

    def __init__(self, *problems: tuple[Place, str]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems
