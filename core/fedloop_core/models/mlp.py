"""Fully connected layers with ReLU; categories enter through one embedding table."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedloop_core.models.preprocessing import CodeOffsets
from fedloop_core.schema import FeatureSchema
from fedloop_core.task.document import MlpModel

__all__ = ["Mlp"]


class Mlp(nn.Module):
    """Scaled numbers and ``embedding`` values for each categorical feature, then the hidden layers, then the head."""

    def __init__(self, schema: FeatureSchema, model: MlpModel) -> None:
        super().__init__()
        width = len(schema.numeric)
        self.offsets: CodeOffsets | None = None
        if schema.categorical:
            self.offsets = CodeOffsets(schema.categorical)
            self.embedding = nn.Embedding(self.offsets.entries, model.embedding)
            width += len(schema.categorical) * model.embedding
        layers: list[nn.Module] = []
        for before, after in pairwise((width, *model.hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(model.hidden[-1], schema.outputs))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Scores prepared inputs."""
        columns = inputs[0]
        if self.offsets is not None:
            embedded = self.embedding(self.offsets(inputs[-1])).flatten(1)
            columns = torch.cat([*inputs[:-1], embedded], dim=1)
        outputs: Tensor = self.layers(columns)
        return outputs
