"""What stands behind the service's protocols at a coordinator: Flower's commands and the run manager."""

from __future__ import annotations

from fedloop_server.home import CoordinatorHome
from fedloop_server.manager.deployed import flower_control, run_manager
from fedloop_server.service.process import Service

__all__ = ["deployed_service"]


def deployed_service(home: CoordinatorHome) -> Service:
    """The service with all its parts.

    Raises:
        FedloopError: as ``Service``.
    """
    control = flower_control(home)
    return Service(home, registrar=control, ticker=run_manager(home, home.database(), control))
