"""Losses against plain formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedloop_core.errors import UsageError
from fedloop_core.models import cox_loss, per_row_loss
from fedloop_core.task.document import Task


def make_task(label: dict[str, object]) -> Task:
    return Task.model_validate(
        {
            "format": 1,
            "name": "trial",
            "features": ({"kind": "numeric", "name": "age", "range": (0.0, 120.0)},),
            "label": label,
            "model": {"kind": "logistic"},
            "privacy": {"epsilon": float("inf")},
        }
    )


def test_cross_entropy_is_one_value_for_each_row() -> None:
    task = make_task({"kind": "classes", "name": "y", "classes": ("a", "b")})
    outputs = torch.tensor([[0.0, 0.0], [0.0, 2.0]])
    losses = per_row_loss(task, outputs, torch.tensor([1, 0]))
    np.testing.assert_allclose(losses, [np.log(2), np.log1p(np.exp(2))], rtol=1e-6)


def test_survival_has_no_loss_of_a_row() -> None:
    task = make_task({"kind": "survival", "time": "days", "event": "died", "time_range": (0.0, 100.0)})
    with pytest.raises(UsageError, match="cox_loss"):
        per_row_loss(task, torch.zeros(2, 1), torch.zeros(2, 2))


@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.booleans(), st.floats(-3, 3, width=32)),
        min_size=1,
        max_size=12,
    )
)
def test_cox_loss_is_the_sum_over_risk_sets(rows: list[tuple[int, bool, float]]) -> None:
    time, event, hazard = (np.array(column, dtype=np.float64) for column in zip(*rows, strict=True))
    terms = [
        np.log(np.exp(hazard[time >= time[at]]).sum()) - hazard[at] for at in range(len(rows)) if event[at]
    ]  # Breslow: a tie shares its risk set
    expected = np.mean(terms) if terms else 0.0
    labels = torch.from_numpy(np.stack([time, event], axis=1).astype(np.float32))
    outputs = torch.from_numpy(hazard.astype(np.float32))[:, None].requires_grad_()
    loss = cox_loss(outputs, labels)
    torch.autograd.backward(loss)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()
