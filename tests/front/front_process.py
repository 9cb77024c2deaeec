"""Runs a front whose configuration is the first argument, as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from fedloop_server.front.config import FrontConfig
from fedloop_server.front.server import run_front
from fedloop_server.settings import FrontLimits

_PATHS = ("internal_authority", "certificate", "key", "service_socket", "own_socket")

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    settings = json.loads(sys.argv[1])
    settings |= {name: Path(settings[name]) for name in _PATHS} | {"listen": tuple(settings["listen"])}
    settings["limits"] = FrontLimits(
        **{name: settings.pop(name) for name in FrontLimits.model_fields if name in settings}
    )
    asyncio.run(run_front(FrontConfig(**settings)))
