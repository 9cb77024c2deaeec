"""The manager of a coordinator that is set up: over its own SuperLink, members and notices."""

from __future__ import annotations

from fedloop_server.database import Database
from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.cancels import Cancels
from fedloop_server.manager.flower import FlowerControl
from fedloop_server.manager.manager import RunManager
from fedloop_server.manager.queue import RunQueue
from fedloop_server.membership import Members, Notices, SiteState

__all__ = ["flower_control", "run_manager"]


def flower_control(home: CoordinatorHome) -> FlowerControl:
    """Flower's commands for this coordinator's SuperLink.

    Raises:
        SettingsInvalid: server.toml cannot be read or has mistakes.
    """
    flower = home.folder / "flower"
    address = f"127.0.0.1:{home.settings.superlink_port}"
    return FlowerControl(flower / "cli", address, home.keys / "superlink-ca.pem", app=flower / "app")


def run_manager(home: CoordinatorHome, database: Database, control: FlowerControl | None = None) -> RunManager:
    """The manager; ``database`` is the caller's to close.

    Raises:
        SettingsInvalid: server.toml cannot be read or has mistakes.
    """
    members = Members(database)

    def active() -> list[str]:
        return [site.name for site in members.sites() if site.state is SiteState.ACTIVE]

    cancels = Cancels(home.envelope_key, Notices(database), active)
    return RunManager(home, RunQueue(database), control or flower_control(home), cancels, audit=home.audit())
