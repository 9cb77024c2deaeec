"""The service's door for the front, on a unix socket: joining, renewing, and which nodes may speak."""

from __future__ import annotations

import base64
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedloop_core.errors import (
    ClockSkewed,
    FedloopError,
    JoinRefused,
    RequestRefused,
    StorageError,
    TrustError,
    VersionRefused,
)
from fedloop_proto.membership.v1.membership_pb2 import JoinRequest, Refusal, RenewRequest
from fedloop_server.hub.board import MembershipBoard
from fedloop_server.membership import Members, MembershipDesk, SiteState
from fedloop_server.membership_http import MEMBERSHIP_BYTES, MEMBERSHIP_MEDIA_TYPE, PEER_HEADER

__all__ = ["build_door"]

_LOG = logging.getLogger(__name__)

_HOLD_SECONDS = 25.0
_STATUS: Mapping[type[FedloopError], int] = {
    JoinRefused: 403,
    VersionRefused: 409,
    ClockSkewed: 409,
    TrustError: 403,
    RequestRefused: 413,
    StorageError: 503,
}

Asked = TypeVar("Asked", bound=Message)


def build_door(desk: MembershipDesk, members: Members, board: MembershipBoard) -> Starlette:
    """The ASGI application: ``POST /membership/join`` and ``/membership/renew`` with protobuf bodies, ``GET /allowed?known=N``.

    A refusal is a ``Refusal`` message with status 4xx, or 503 when the coordinator has a trouble of its own.
    """

    async def join(request: Request) -> Response:
        return await _answered(request, JoinRequest, desk.handle_join)

    async def renew(request: Request) -> Response:
        return await _answered(request, RenewRequest, desk.handle_renew)

    async def allowed(request: Request) -> Response:
        known = request.query_params.get("known", "")
        if not known.isascii() or not known.isdigit():
            return JSONResponse({"error": "known must be a number"}, status_code=400)
        return JSONResponse(await run_in_threadpool(_allowed, members, board, int(known)))

    async def health(_: Request) -> Response:
        return JSONResponse({"healthy": True, "revision": board.revision})

    return Starlette(
        routes=[
            Route("/membership/join", join, methods=["POST"]),
            Route("/membership/renew", renew, methods=["POST"]),
            Route("/allowed", allowed),
            Route("/healthz", health),
        ]
    )


def _allowed(members: Members, board: MembershipBoard, known: int) -> dict[str, object]:
    """Answers at once when the front does not know the newest list, else when there is a newer one, or after a while."""
    board.wait(known, _HOLD_SECONDS)
    revision = members.revision()  # before the list: a change in between is told at the next call
    known_sites = [site for site in members.sites() if site.node_key]
    nodes, shut_out = (
        {base64.b64encode(site.node_key).decode(): site.name for site in known_sites if site.state in states}
        for states in ({SiteState.ACTIVE}, {SiteState.REVOKED, SiteState.LEFT})
    )
    return {"revision": revision, "nodes": nodes, "shut_out": shut_out}


async def _answered(request: Request, kind: type[Asked], handle: Callable[[Asked, str], Message]) -> Response:
    address = request.headers.get(PEER_HEADER, "")[:100]
    try:
        asked = kind.FromString(await _body(request))
        answer = await run_in_threadpool(handle, asked, address)
    except FedloopError as error:
        if not isinstance(error, TrustError):
            _LOG.error("a request to join or to renew cannot be answered: %s", error)
        return _refusal(error)
    except DecodeError:
        return _refusal(JoinRefused("the request cannot be read.", reason="request"))
    except ClientDisconnect:
        return Response(status_code=400)
    return Response(answer.SerializeToString(deterministic=True), media_type=MEMBERSHIP_MEDIA_TYPE)


async def _body(request: Request) -> bytes:
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > MEMBERSHIP_BYTES:
            raise RequestRefused(f"a request to join holds at most {MEMBERSHIP_BYTES} bytes.", reason="size")
    return bytes(content)


def _refusal(error: FedloopError) -> Response:
    """What is told: of refusals the sentence, of the coordinator's own troubles the code alone."""
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 503)
    sentence = f"{error.message} {error.hint}".strip() if isinstance(error, TrustError | RequestRefused) else ""
    wire = error.wire()
    told = Refusal(code=wire.code, fields=dict(wire.fields), sentence=sentence)
    return Response(told.SerializeToString(deterministic=True), status_code=status, media_type=MEMBERSHIP_MEDIA_TYPE)
