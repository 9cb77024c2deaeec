"""The front's configuration out of a coordinator's folder."""

from __future__ import annotations

from pathlib import Path

from fedloop_server.front.config import FrontConfig
from fedloop_server.settings import load_settings

__all__ = ["from_home"]


def from_home(home: Path) -> FrontConfig:
    """Reads ``server.toml``.

    Raises:
        SettingsInvalid: it names file, line and key.
    """
    settings = load_settings(home)
    return FrontConfig(
        listen=(settings.front.host, settings.front.port),
        superlink_port=settings.superlink_port,
        internal_authority=home / "front" / "authorities.pem",
        certificate=home / "front" / "tls.pem",
        key=home / "front" / "tls.key",
        service_socket=home / "sockets" / "service.sock",
        own_socket=home / "sockets" / "front.sock",
        limits=settings.limits,
    )
