"""Join a federation as a site, run it, look after it, and decide what it takes part in."""

from __future__ import annotations

import typer

from fedloop_clients.cli import consortium, ledger
from fedloop_clients.cli.assessment import assessment
from fedloop_clients.cli.backup import backup, restore
from fedloop_clients.cli.doctor import doctor
from fedloop_clients.cli.erasing import erase, readmit
from fedloop_clients.cli.membership import join, leave, renew
from fedloop_clients.cli.retention import retention
from fedloop_clients.cli.standing import approve, pause, unpause
from fedloop_clients.cli.status import show_policy, status
from fedloop_clients.cli.up import up

__all__ = ["commands"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)
commands.add_typer(ledger.commands, name="ledger")
commands.add_typer(consortium.commands, name="consortium")
for _command in (
    join,
    up,
    doctor,
    status,
    show_policy,
    approve,
    pause,
    unpause,
    renew,
    backup,
    restore,
    erase,
    readmit,
    retention,
    assessment,
    leave,
):
    commands.command()(_command)


@commands.callback()
def _site() -> None:
    """Join a federation as a site, run it, look after it, and decide what it takes part in."""
