"""Every store of a coordinator: what it holds, for how long, who deletes, and what stays and why. Pure."""

from __future__ import annotations

from fedloop_core.retention import Store, backups, kept_for_ever, logs, passing
from fedloop_server.settings import RetentionSettings

__all__ = ["coordinator_stores"]

_SERVICE = "the coordinator's service, each hour"


def coordinator_stores(limits: RetentionSettings) -> tuple[Store, ...]:
    """All stores of a coordinator with these limits; those that fedloop deletes from come first."""
    return (*_limited(limits), *_passing(), *_kept())


def _limited(limits: RetentionSettings) -> tuple[Store, ...]:
    return (
        Store(
            name="runs without a version",
            place="runs/",
            holds="plans, journals (who took part, norms and spending that sites told) and the last two models",
            days=limits.run_days,
            setting="retention.run_days",
            kept=f"{limits.run_days} days after they ended; `fedloop run remove` takes them away before",
            deleted_by=_SERVICE,
            stays="the name of each run, since sites know it and must not be asked under it again",
        ),
        Store(
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
        logs(limits.log_days),
    )


def _passing() -> tuple[Store, ...]:
    return (
        passing(
            "updates of a round",
            "memory of the run's process",
            "each site's update, where a rule compares them; else their sum alone",
            "until the round closes",
            "the run's process",
            "nothing: no update is written to the disk by fedloop",
        ),
        passing(
            "sums about to be unmasked",
            "runs/*/unmasking-*",
            "the masked sum of a round and what takes the masks off it",
            "until the round is safe",
            "the run's process",
        ),
        passing(
            "Flower",
            "flower/superlink/state.db",
            "messages to sites and their replies, with the updates in them",
            "until the run's process has taken the reply; what is left of a run when it is stopped",
            "Flower",
            "records of runs and nodes; pages that Flower has freed are used again and not overwritten before",
        ),
        passing(
            "notices",
            "coordinator.db",
            "signed envelopes that wait for a site: runs that were called off, new authorities",
            "until the site has acted on them or they expire; at most 500 for a site",
            "the coordinator's service",
        ),
    )


def _kept() -> tuple[Store, ...]:
    return (
        kept_for_ever(
            "versions",
            "coordinator.db and blobs/",
            "tasks, versions with their statements and measures, and the files that devices run",
            "a device may run a version, go back to it, and show by it what was promised",
        ),
        kept_for_ever(
            "sites",
            "coordinator.db",
            "names, keys, addresses and states of sites, and how far each ledger was seen",
            "a ledger that was put back is noticed by it, also when a site comes back",
        ),
        kept_for_ever(
            "audit log",
            "audit.jsonl",
            "who did what, and what was refused",
            "sites have signed its entries, each of which is under the digest of the next",
        ),
        backups(
            "fedloop server backup",
            "database, keys, runs, blobs and audit log, as they were",
            "the coordinator's people",
        ),
    )
