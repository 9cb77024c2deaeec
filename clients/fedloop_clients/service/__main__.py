"""Entry point of the daemon process; ``fedloop site up`` starts it."""

from __future__ import annotations

import argparse
import logging
import pwd
import sys
from pathlib import Path

from fedloop_clients.home import SiteHome
from fedloop_core.errors import FedloopError, UsageError

__all__ = ["main"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main(arguments: list[str] | None = None) -> int:
    """Serves one site until SIGTERM; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedloop_clients.service", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the site's folder")
    parser.add_argument(
        "--allow-user",
        action="append",
        default=[],
        metavar="NAME",
        help="a user whose processes may bring questions, beside the daemon's own; may be given several times",
    )
    chosen = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format=_FORMAT, stream=sys.stderr)
    try:
        home = SiteHome(chosen.home)
        relay_users = frozenset(_number(name) for name in chosen.allow_user)
        home.membership()
        from fedloop_clients.service.process import SiteService  # only now: torch takes seconds to import

        service = SiteService(home, relay_users)
        service.stop_on_signals()
        service.run()
    except FedloopError as error:
        logging.getLogger(__name__).critical("%s", error)
        return error.exit_status
    return 0


def _number(user: str) -> int:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError as error:
        raise UsageError(f"there is no user {user!r} on this machine.", hint="See deploy/sysusers.d.") from error


if __name__ == "__main__":
    sys.exit(main())
