"""``python -m fedloop_server.front --home H``: runs the front of a coordinator."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from fedloop_core.errors import FedloopError
from fedloop_server.front.home import from_home
from fedloop_server.front.server import run_front

_LOG = logging.getLogger("fedloop_server.front")


def main() -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedloop_server.front", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="the coordinator's folder")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # it tells of each bad request, which the front itself counts
    try:
        asyncio.run(run_front(from_home(arguments.home)))
    except FedloopError as error:
        _LOG.error("%s", error)
        return error.exit_status
    except OSError as error:
        _LOG.error("the front cannot start: %s", error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
