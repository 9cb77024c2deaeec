"""What a task is, in a few lines."""

from __future__ import annotations

from fedloop_core.schema import ClassLabel, RegressionLabel, SurvivalLabel
from fedloop_core.task.document import (
    CnnModel,
    CustomModel,
    FederatedAveraging,
    LogisticModel,
    MlpModel,
    SignalCnnModel,
    Task,
)

__all__ = ["describe"]


def describe(task: Task) -> tuple[str, ...]:
    """Purpose, features, label, model, training, privacy and artifacts of a task, a line each."""
    return (
        f"task:     {task.name}{f' ({task.description})' if task.description else ''}",
        f"purpose:  {_purpose(task)}",
        f"features: {_features(task)}",
        f"label:    {_label(task)}",
        f"model:    {_model(task)}, scaling: {task.preprocessing.scaling}",
        f"training: {_training(task)}",
        f"privacy:  {_privacy(task)}",
        f"export:   {', '.join(task.export.targets)}",
        f"digest:   {task.digest.hex()}",
    )


def _purpose(task: Task) -> str:
    purpose = task.purpose
    if purpose is None:
        return "none is named: sites that allow some purposes only will refuse it"
    return f"{purpose.name}{f' ({purpose.text})' if purpose.text else ''}"


def _features(task: Task) -> str:
    kinds = [feature.kind for feature in task.features]
    counts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return ", ".join(counts)


def _label(task: Task) -> str:
    match task.label:
        case ClassLabel(name=name, classes=classes):
            shown = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
            return f"{name}, one of {len(classes)} classes: {shown}"
        case RegressionLabel(name=name, range=(low, high), unit=unit):
            return f"{name}, a number from {low:g} to {high:g}{f' {unit}' if unit else ''}"
        case SurvivalLabel(time=time, event=event):
            return f"time to an event ({time}, {event})"


def _model(task: Task) -> str:
    match task.model:
        case LogisticModel():
            return "logistic regression"
        case MlpModel(hidden=hidden):
            return f"fully connected, hidden layers {', '.join(map(str, hidden))}"
        case CnnModel(channels=channels):
            return f"convolutions over an image, channels {', '.join(map(str, channels))}"
        case SignalCnnModel(channels=channels):
            return f"convolutions over a signal, channels {', '.join(map(str, channels))}"
        case CustomModel(factory=factory):
            return f"custom, {factory}"


def _training(task: Task) -> str:
    rounds = f"{task.rounds.count} rounds"
    match task.training:
        case FederatedAveraging(local_steps=steps, batch_size=batch, learning_rate=rate, proximal=proximal):
            name = "FedProx" if proximal > 0 else "FedAvg"
            return f"{name}, {rounds} of {steps} steps with batches of {batch}, learning rate {rate:g}"
        case newton:
            return f"Newton-Raphson, {rounds}, ridge {newton.ridge:g}"


def _privacy(task: Task) -> str:
    privacy = task.privacy
    if not privacy.private:
        return "none (epsilon = inf)"
    unit = f"unit named by {privacy.unit_column!r}" if privacy.unit_column else "row"
    return f"epsilon {privacy.epsilon:g}, delta {privacy.delta:g} for each {unit} at its site, in one run"
