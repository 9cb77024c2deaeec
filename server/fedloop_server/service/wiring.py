"""What stands behind the service's protocols at a coordinator."""

from __future__ import annotations

from fedloop_server.home import CoordinatorHome
from fedloop_server.service.parts import NodeRegistrar, Ticker

__all__ = ["registrar_of", "ticker_of"]


def registrar_of(home: CoordinatorHome) -> NodeRegistrar | None:
    """Flower's list of nodes, through its commands."""
    from fedloop_server.manager.flower import FlowerControl  # Flower's packages are slow to import

    return FlowerControl(
        home.folder / "flower" / "cli", f"127.0.0.1:{home.settings.superlink_port}", home.keys / "superlink-ca.pem"
    )


def ticker_of(home: CoordinatorHome) -> Ticker | None:  # noqa: ARG001 - the run manager takes it
    """The run manager."""
    return None
