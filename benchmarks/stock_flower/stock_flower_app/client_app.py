"""The ClientApp: loads the weights into a torch model, does nothing, and sends them back."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

__all__ = ["app"]

app = ClientApp()


def _model(message: Message) -> torch.nn.Module:
    model = torch.nn.Linear(10, 2)
    arrays = message.content["arrays"]
    if isinstance(arrays, ArrayRecord):
        model.load_state_dict(arrays.to_torch_state_dict())
    return model


@app.train()
def train(message: Message, context: Context) -> Message:  # noqa: ARG001  Flower calls with both
    """Sends the weights back as they came."""
    model = _model(message)
    metrics = MetricRecord({"train_loss": 0.0, "num-examples": 1})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:  # noqa: ARG001
    """Measures nothing."""
    _model(message)
    metrics = MetricRecord({"eval_loss": 0.0, "eval_acc": 1.0, "num-examples": 1})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
