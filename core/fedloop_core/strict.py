"""The base of every document that fedloop reads: unknown keys are errors, values are not coerced, objects are frozen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Strict"]


class Strict(BaseModel):
    """A frozen pydantic model that refuses unknown keys, NaN and silent conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, validate_default=True, ser_json_inf_nan="constants"
    )
