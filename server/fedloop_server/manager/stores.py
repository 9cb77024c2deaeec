"""Every store of a coordinator: what it holds, for how long, who deletes, and what stays and why. Pure."""

from __future__ import annotations

from fedloop_core.strict import Strict
from fedloop_server.settings import RetentionSettings

__all__ = ["CoordinatorStore", "coordinator_stores"]

_NOBODY = "nobody"
_SERVICE = "the coordinator's service, each hour"


class CoordinatorStore(Strict):
    """A place where a coordinator keeps something.

    ``days``: None where nothing is deleted by age. ``setting``: the key of server.toml that says so.
    """

    name: str
    place: str
    holds: str
    days: int | None
    setting: str
    kept: str
    deleted_by: str
    stays: str


def coordinator_stores(limits: RetentionSettings) -> tuple[CoordinatorStore, ...]:
    """All stores of a coordinator with these limits; those that fedloop deletes from come first."""
    return (*_limited(limits), *_passing(), *_kept())


def _limited(limits: RetentionSettings) -> tuple[CoordinatorStore, ...]:
    return (
        CoordinatorStore(
            name="runs without a version",
            place="runs/",
            holds="plans, journals (who took part, norms and spending that sites told) and the last two models",
            days=limits.run_days,
            setting="retention.run_days",
            kept=f"{limits.run_days} days after they ended; `fedloop run remove` takes them away before",
            deleted_by=_SERVICE,
            stays="the name of each run, since sites know it and must not be asked under it again",
        ),
        CoordinatorStore(
            name="weights of versions",
            place="runs/*/round-*.safetensors",
            holds="the last two models of a run that made a version, from which a later run may start",
            days=limits.weights_days,
            setting="retention.weights_days",
            kept=f"{limits.weights_days} days after the run ended; longer while the version is its task's newest, served, or about to be "
            "started from",
            deleted_by=_SERVICE,
            stays="plan and journal: they say where the version comes from",
        ),
        CoordinatorStore(
            name="logs",
            place="logs/",
            holds="what the processes have said",
            days=limits.log_days,
            setting="retention.log_days",
            kept=f"{limits.log_days} days; and at most five files of 10 MiB for each process",
            deleted_by="the supervisor, each hour",
            stays="nothing",
        ),
    )


def _passing() -> tuple[CoordinatorStore, ...]:
    return (
        CoordinatorStore(
            name="updates of a round",
            place="memory of the run's process",
            holds="each site's update, where a rule compares them; else their sum alone",
            days=None,
            setting="",
            kept="until the round closes",
            deleted_by="the run's process",
            stays="nothing: no update is written to the disk by fedloop",
        ),
        CoordinatorStore(
            name="sums about to be unmasked",
            place="runs/*/unmasking-*",
            holds="the masked sum of a round and what takes the masks off it",
            days=None,
            setting="",
            kept="until the round is safe",
            deleted_by="the run's process",
            stays="nothing",
        ),
        CoordinatorStore(
            name="Flower",
            place="flower/superlink/state.db",
            holds="messages to sites and their replies, with the updates in them",
            days=None,
            setting="",
            kept="until the run's process has taken the reply; what is left of a run when it is stopped",
            deleted_by="Flower",
            stays="records of runs and nodes; pages that Flower has freed are used again and not overwritten before",
        ),
        CoordinatorStore(
            name="notices",
            place="coordinator.db",
            holds="signed envelopes that wait for a site: runs that were called off, new authorities",
            days=None,
            setting="",
            kept="until the site has acted on them or they expire; at most 500 for a site",
            deleted_by="the coordinator's service",
            stays="nothing",
        ),
    )


def _kept() -> tuple[CoordinatorStore, ...]:
    return (
        CoordinatorStore(
            name="versions",
            place="coordinator.db and blobs/",
            holds="tasks, versions with their statements and measures, and the files that devices run",
            days=None,
            setting="",
            kept="for ever",
            deleted_by=_NOBODY,
            stays="all of it: a device may run a version, go back to it, and show by it what was promised",
        ),
        CoordinatorStore(
            name="sites",
            place="coordinator.db",
            holds="names, keys, addresses and states of sites, and how far each ledger was seen",
            days=None,
            setting="",
            kept="for ever",
            deleted_by=_NOBODY,
            stays="all of it: a ledger that was put back is noticed by it, also when a site comes back",
        ),
        CoordinatorStore(
            name="audit log",
            place="audit.jsonl",
            holds="who did what, and what was refused",
            days=None,
            setting="",
            kept="for ever",
            deleted_by=_NOBODY,
            stays="all of it: sites have signed its entries, each of which is under the digest of the next",
        ),
        CoordinatorStore(
            name="backups",
            place="where `fedloop server backup` was told to write",
            holds="database, keys, runs, blobs and audit log, as they were",
            days=None,
            setting="",
            kept="as the coordinator's people decide",
            deleted_by="the coordinator's people",
            stays="what was deleted here since the backup was made: delete backups when they are as old as the limits above",
        ),
    )
