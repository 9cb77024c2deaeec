"""How a graph that may keep or mix something is refused."""

from __future__ import annotations

from fedloop_core.errors import ArtifactRefused

__all__ = ["refused"]


def refused(why: str) -> ArtifactRefused:
    """The refusal of a graph; it says why, since that depends on the artifact alone."""
    return ArtifactRefused(
        f"the artifact is not evaluated on rows of a private run: {why}.",
        hint="Export the model with operators that keep nothing and whose tensors have shapes that no value decides.",
        reason="operators",
    )
