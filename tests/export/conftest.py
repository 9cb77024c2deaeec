"""Tasks and requests for exports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedloop_core.artifact import Lineage
from fedloop_core.models import initial_arrays
from fedloop_core.privacy_statement import PrivacyStatement, SitePrivacy
from fedloop_core.scaling import Scaler
from fedloop_core.task.document import Task
from fedloop_server.export import ExportRequest

RequestMaker = Callable[..., ExportRequest]

CLASSES = {"kind": "classes", "name": "y", "classes": ("a", "b", "c", "d")}


@pytest.fixture(scope="session")
def make_request() -> RequestMaker:
    """``make_request(features, model, label=..., **task_keys)``: starting weights, twice as large as torch's."""

    def make(
        features: tuple[dict[str, Any], ...],
        model: dict[str, Any],
        label: dict[str, Any] = CLASSES,
        **keys: Any,
    ) -> ExportRequest:
        task = Task.model_validate(
            {
                "format": 1,
                "name": "trial",
                "features": features,
                "label": label,
                "model": model,
                "privacy": {"epsilon": float("inf")},
                **keys,
            }
        )
        arrays = {name: 2 * array.astype(np.float32) for name, array in initial_arrays(task, 4).items()}
        scaler = Scaler.from_ranges(task.feature_schema)
        site = SitePrivacy(site="north", epsilon=float("inf"), delta=1e-5, lifetime_epsilon=2.0, evaluation_epsilon=0.5)
        return ExportRequest(
            task=task,
            version=3,
            arrays=arrays | (scaler.arrays() if task.feature_schema.numeric else {}),
            lineage=Lineage(
                run_id="run-1",
                parent_version=2,
                task_digest=task.digest.hex(),
                data_fingerprints={"north": "0" * 64},
                software={"torch": "2.13.0"},
            ),
            privacy=PrivacyStatement(
                private=False, unit="record", adjacency="add-or-remove", mechanism="none", sites=(site,)
            ),
            seed=11,
        )

    return make
