"""The JSON that Flower's commands print, as far as it is read: what else they say is left aside."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ListedNode", "ListedRun", "Nodes", "Registered", "Reply", "Runs", "Started", "Traffic"]


class Reply(BaseModel):
    """What every command says. Flower writes ids as text or as numbers."""

    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=lambda name: name.replace("_", "-"))

    success: bool
    error_message: str = ""


class Started(Reply):
    """``flwr run``."""

    run_id: int


class Registered(Reply):
    """``flwr supernode register``."""

    node_id: int


class Traffic(Reply):
    """Bytes that the SuperLink received and sent for a run."""

    success: bool = True
    inbound_bytes: Annotated[int, Field(ge=0)] = 0
    outbound_bytes: Annotated[int, Field(ge=0)] = 0


class ListedRun(Reply):
    """A run in ``flwr list``; ``status`` is ``pending``, ``starting``, ``running`` or ``finished:<how>``."""

    success: bool = True
    run_id: int
    status: str
    status_details: str = ""
    network_traffic: Traffic = Traffic()


class Runs(Reply):
    """``flwr list``."""

    runs: tuple[ListedRun, ...]


class ListedNode(Reply):
    """A SuperNode in ``flwr supernode list``."""

    success: bool = True
    node_id: int
    status: str


class Nodes(Reply):
    """``flwr supernode list``."""

    nodes: tuple[ListedNode, ...]
