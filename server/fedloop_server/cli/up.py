"""``fedloop server up``: all processes of a coordinator, until Ctrl-C or SIGTERM."""

from __future__ import annotations

from pathlib import Path

import typer

from fedloop_core.commands import AS_JSON
from fedloop_server.cli.options import HOME_AS_ROOT

__all__ = ["up"]


def up(
    home: Path = HOME_AS_ROOT,
    single_user: bool = typer.Option(False, "--single-user", help="As root: run all processes as root all the same."),
    no_health: bool = typer.Option(False, "--no-health", help="Open no health endpoint."),
    as_json: bool = AS_JSON,
) -> None:
    """Run all processes of the coordinator until Ctrl-C or SIGTERM."""
    from fedloop_core.processes.progress import Progress
    from fedloop_core.processes.roles import Roles
    from fedloop_core.processes.supervisor import Supervisor, check_not_running
    from fedloop_server.settings import load_settings
    from fedloop_server.up import SERVER_USERS, check_server, prepare_server, server_specs

    folder = home.resolve()
    settings = load_settings(folder)
    health = None if no_health else ("127.0.0.1", settings.health_port)
    check_not_running(folder)
    roles = Roles.choose(SERVER_USERS, single_user=single_user)
    check_server(folder, settings, health)
    progress = Progress(folder, health, "fedloop server site add NAME", as_json=as_json)
    progress.begin(f"coordinator {settings.name}", roles)
    prepare_server(folder, roles)
    specs = server_specs(folder, settings, roles)
    days = settings.retention.log_days
    Supervisor(folder, specs, health=health, tell=progress.tell, when_healthy=progress.all_run, log_days=days).run()
    progress.end()
