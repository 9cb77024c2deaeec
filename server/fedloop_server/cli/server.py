"""Set up, run and look after a coordinator, its sites and its authority."""

from __future__ import annotations

from pathlib import Path

import typer

from fedloop_core.commands import AS_JSON, operator, tell_json
from fedloop_core.errors import UsageError
from fedloop_server.cli import authority, consortium, sites
from fedloop_server.cli.backup import backup, restore
from fedloop_server.cli.budget import budget
from fedloop_server.cli.options import HOME, open_home
from fedloop_server.cli.retention import retention
from fedloop_server.cli.up import up
from fedloop_server.settings import OwnCertificate

__all__ = ["commands", "init", "status"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)
commands.add_typer(sites.commands, name="site")
commands.add_typer(authority.commands, name="authority")
commands.add_typer(consortium.commands, name="consortium")
commands.command()(up)
commands.command()(backup)
commands.command()(restore)
commands.command()(retention)
commands.command()(budget)


@commands.callback()
def _server() -> None:
    """Set up, run and look after a coordinator, its sites and its authority."""


@commands.command()
def init(
    home: Path = HOME,
    name: str = typer.Option("", "--name", help="Name of the federation."),
    public: list[str] = typer.Option(
        [], "--public", help="Host name or address by which sites reach it; may be repeated."
    ),
    listen: str | None = typer.Option(None, "--listen", help="Address to listen on; 0.0.0.0 when not said."),
    front_port: int | None = typer.Option(None, "--front-port", min=0, max=65535, help="0 takes a free one."),
    hub_port: int | None = typer.Option(None, "--hub-port", min=0, max=65535, help="0 takes a free one."),
    superlink_port: int | None = typer.Option(None, "--superlink-port", min=0, max=65535, help="On loopback."),
    health_port: int | None = typer.Option(None, "--health-port", min=0, max=65535, help="On loopback."),
    certificate: Path | None = typer.Option(
        None, "--certificate", help="The institution's own server certificate (PEM)."
    ),
    key: Path | None = typer.Option(None, "--key", help="Its key (PEM, no password)."),
    own_authority: Path | None = typer.Option(None, "--authority", help="The authority behind it (PEM)."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Say what would be made, and make nothing."),
    as_json: bool = AS_JSON,
) -> None:
    """Set up a coordinator: authority, keys, database, server.toml. Run again, it completes what is missing."""
    from fedloop_core.processes.progress import at_home
    from fedloop_server.founding import Wishes, found, front_fingerprint

    wishes = Wishes(
        name,
        tuple(public),
        listen,
        front_port,
        hub_port,
        superlink_port,
        health_port,
        _own(certificate, key, own_authority),
    )
    settings, steps = found(home, wishes, actor=operator(), dry_run=dry_run)
    print_name = front_fingerprint(open_home(home)) if not dry_run else ""
    if as_json:
        tell_json(
            {
                "home": str(home.resolve()),
                "name": settings.name,
                "front": settings.front.public,
                "hub": settings.hub.public,
                "superlink_port": settings.superlink_port,
                "health_port": settings.health_port,
                "fingerprint": print_name,
                "made": [] if dry_run else [step.what for step in steps if not step.there],
                "missing": [step.what for step in steps if not step.there] if dry_run else [],
            }
        )
        return
    words = "would be made" if dry_run else "made"
    for step in steps:
        print(f"  {step.what}: {'is there' if step.there else words}")
    if dry_run:
        return
    print(
        f"Coordinator {settings.name} in {home.resolve()}; sites reach it at {settings.front.public}, {settings.hub.public}."
    )
    print(f"Fingerprint of its authority: {print_name}")
    here = at_home(home)
    print(f"Next: fedloop server up{here}, then for each institution: fedloop server site add NAME{here}")


@commands.command()
def status(home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Show processes, sites and runs that are not over.

    The exit status is 0 also when nothing runs: --json says `"supervised": false` then.
    """
    from fedloop_server.cli.standing import standing_of, tell_standing

    standing = standing_of(open_home(home))
    if as_json:
        tell_json(standing.as_json())
    else:
        tell_standing(standing)


def _own(certificate: Path | None, key: Path | None, authority_file: Path | None) -> OwnCertificate | None:
    if certificate is None and key is None and authority_file is None:
        return None
    if certificate is None or key is None or authority_file is None:
        raise UsageError("--certificate, --key and --authority belong together.")
    paths = [str(path.resolve()) for path in (certificate, key, authority_file)]
    return OwnCertificate(certificate=paths[0], key=paths[1], authority=paths[2])
