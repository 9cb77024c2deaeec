"""``python -m fedloop_server.service --home H``: runs until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from fedloop_core.errors import FedloopError
from fedloop_server.home import CoordinatorHome
from fedloop_server.service.wiring import deployed_service
from fedloop_server.settings import load_settings

__all__ = ["main"]


def main() -> NoReturn:
    """Runs the service and ends the process."""
    parser = argparse.ArgumentParser(prog="python -m fedloop_server.service", description=__doc__)
    parser.add_argument("--home", type=Path, required=True, help="The coordinator's folder.")
    home = CoordinatorHome(parser.parse_args().home)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    try:
        load_settings(home.folder)  # a folder without them would be a simulation's
        service = deployed_service(home)
        service.start()
    except FedloopError as error:
        print(f"the service cannot start: {error}", file=sys.stderr)  # noqa: T201 - a sentence, no traceback
        sys.exit(error.exit_status)
    end.wait()
    service.stop()
    sys.exit(0)


if __name__ == "__main__":
    main()
