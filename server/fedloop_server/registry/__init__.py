"""The model registry: what was trained, from what, how good it is, what it spent, and what was live when."""

from fedloop_server.registry.records import (
    ArtifactRecord,
    GateResult,
    RunRecord,
    RunState,
    Stage,
    StageChange,
    TaskRecord,
    Verdict,
    VersionMetric,
    VersionRecord,
)
from fedloop_server.registry.registry import Registry
from fedloop_server.registry.stages import live_version

__all__ = [
    "ArtifactRecord",
    "GateResult",
    "Registry",
    "RunRecord",
    "RunState",
    "Stage",
    "StageChange",
    "TaskRecord",
    "Verdict",
    "VersionMetric",
    "VersionRecord",
    "live_version",
]
