"""``fedloop site up``: all processes of a site, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fedloop_clients.cli.data_file import is_missing, missing_words
from fedloop_clients.cli.options import HOME_AS_ROOT
from fedloop_core.commands import AS_JSON

if TYPE_CHECKING:
    from fedloop_core.processes.progress import Progress

__all__ = ["up", "when_all_run"]

_SINGLE_USER: bool = typer.Option(False, "--single-user", help="As root: run all processes as root all the same.")
_NO_HEALTH: bool = typer.Option(False, "--no-health", help="Open no health endpoint.")


def up(
    home: Path = HOME_AS_ROOT, single_user: bool = _SINGLE_USER, no_health: bool = _NO_HEALTH, as_json: bool = AS_JSON
) -> None:
    """Run all processes of the site until Ctrl-C or SIGTERM."""
    from fedloop_clients.home import SiteHome
    from fedloop_clients.up import SITE_USERS, check_site, prepare_site, site_specs
    from fedloop_core.processes.ports import free_port
    from fedloop_core.processes.progress import Progress
    from fedloop_core.processes.roles import Roles
    from fedloop_core.processes.supervisor import Supervisor, check_not_running

    site = SiteHome(home.resolve())
    settings, membership = site.settings, site.membership()
    health = None if no_health or settings.health_port == 0 else ("127.0.0.1", settings.health_port)
    check_not_running(site.folder)
    roles = Roles.choose(SITE_USERS, single_user=single_user)
    check_site(site, health)
    progress = Progress(site.folder, health, "fedloop site status", as_json=as_json)
    progress.begin(f"site {membership.site}", roles)
    prepare_site(site, roles)
    said = when_all_run(progress, site.data_file)
    specs = site_specs(site, settings, roles, node_port=free_port())
    days = settings.retention.log_days
    Supervisor(site.folder, specs, health=health, tell=progress.tell, when_healthy=said, log_days=days).run()
    progress.end()


def when_all_run(progress: Progress, data_file: Path) -> Callable[[], None]:
    """What to tell when all processes run for the first time: that they do, and that there is no data, where there is none."""

    def tell() -> None:
        progress.all_run()
        if is_missing(data_file):
            progress.tell(f"but {missing_words(data_file)}")

    return tell
