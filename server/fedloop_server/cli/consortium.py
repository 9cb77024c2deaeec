"""The list of sites and their keys that sites need for secure aggregation."""

from __future__ import annotations

from pathlib import Path

import typer

from fedloop_core.commands import AS_JSON, tell_json
from fedloop_core.errors import UsageError
from fedloop_server.cli.options import HOME, open_home

__all__ = ["commands", "export"]

commands = typer.Typer(no_args_is_help=True, suggest_commands=False, add_completion=False)

_OUT: Path | None = typer.Option(None, "--out", help="Where to write; standard output without it.")


@commands.callback()
def _consortium() -> None:
    """The list of sites and their keys that sites need for secure aggregation."""


@commands.command()
def export(out: Path | None = _OUT, home: Path = HOME, as_json: bool = AS_JSON) -> None:
    """Write names and keys of all active sites as a file; people at the sites compare it with each other before they accept it."""
    from fedloop_core.durable import write_bytes
    from fedloop_core.secure_aggregation.consortium import consortium_fingerprint, consortium_of, written_consortium
    from fedloop_core.secure_aggregation.identity import LEAST_SITES, MOST_SITES
    from fedloop_server.membership import SiteState

    active = [site for site in open_home(home).members().sites() if site.state is SiteState.ACTIVE]
    if not LEAST_SITES <= len(active) <= MOST_SITES:
        raise UsageError(
            f"{len(active)} sites are active; secure aggregation takes {LEAST_SITES} to {MOST_SITES}.",
            hint="`fedloop server site list` shows them all.",
        )
    keys = {site.name: site.signing_key.hex() for site in active}
    text, whole = written_consortium(keys), consortium_fingerprint(consortium_of(keys))
    if out is not None:
        write_bytes(out, text.encode())
    if as_json:
        tell_json({"sites": keys, "fingerprint": whole, "file": "" if out is None else str(out)})
    elif out is None:
        print(text, end="")
    else:
        print(f"Wrote the keys of {len(keys)} sites to {out}; fingerprint of the whole: {whole}")
        print(
            "Send it to each site. There: fedloop site consortium accept FILE. Its people compare the fingerprint among themselves."
        )
