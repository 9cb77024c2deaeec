"""Answers of models that a coordinator sends, so that no row of a private run has a part in another row's answer."""

from fedloop_clients.scoring.artifact import ArtifactApart
from fedloop_clients.scoring.model import outputs_apart

__all__ = ["ArtifactApart", "outputs_apart"]
