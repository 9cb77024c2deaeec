"""``python -m fedloop_clients.relay_server --socket S``: the warm relay of a site.

It loads Flower and the relay once. Each ``flwr-clientapp`` call is handed to it by a small program (``--shim`` writes it)
and runs in a child that it forks, which saves the second that loading takes.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

from fedloop_clients.relay.shim import COMMAND, write_shim
from fedloop_clients.relay.zygote import Zygote
from fedloop_core.errors import FedloopError, NotSetUp, ProcessFailed
from fedloop_core.federation.closed_apps import closed

__all__ = ["flower_command", "main"]

_LOG = logging.getLogger("fedloop_clients.relay_server")


def flower_command() -> Callable[[], object]:
    """Flower's own command, found by its public name.

    Raises:
        NotSetUp: Flower is not installed.
    """
    found = entry_points(group="console_scripts", name=COMMAND)
    if not found:
        raise NotSetUp(f"this installation has no {COMMAND}.", hint="Install fedloop[site].")
    command: Callable[[], object] = next(iter(found)).load()
    return command


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedloop_clients.relay_server", description=__doc__)
    parser.add_argument("--socket", type=Path, required=True, help="the unix socket to listen on")
    parser.add_argument("--shim", type=Path, help="a folder to write the small flwr-clientapp into")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        if arguments.shim is not None:
            write_shim(arguments.shim, arguments.socket)
        command = flower_command()
        importlib.import_module("fedloop_clients.app")
        if threading.active_count() > 1:
            raise ProcessFailed("a library started a thread, so that this process cannot be forked safely.")
        zygote = Zygote(arguments.socket, closed(command), allowed_users=frozenset({os.getuid()}))
        _LOG.info("the relay is warm")
        zygote.serve()
    except FedloopError as error:
        _LOG.error("%s", error)
        return error.exit_status
    except OSError as error:
        _LOG.error("the relay cannot run: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
