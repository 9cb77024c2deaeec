"""What the coordinator's own processes ask the front, over a unix socket: ring the doorbell, read refusals, health."""

from __future__ import annotations

from dataclasses import asdict

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fedloop_server.front.app import FrontApp

__all__ = ["local_app"]

_LONGEST_WAIT = 60.0


def local_app(front: FrontApp) -> Starlette:
    """``POST /doorbell``, ``GET`` of ``/refusals?since=N``, ``/replies?since=N&milliseconds=M``, ``/idle``, ``/healthz``."""

    async def doorbell(request: Request) -> Response:  # noqa: ARG001  Starlette calls with it
        front.polls.ring()
        return Response(status_code=204)

    async def refusals(request: Request) -> Response:
        since = request.query_params.get("since", "0")
        if not since.isdigit():
            return Response(status_code=400)
        return JSONResponse([asdict(refusal) for refusal in front.book.since(int(since))])

    async def replies(request: Request) -> Response:
        since, seconds = (request.query_params.get(name, "0") for name in ("since", "milliseconds"))
        if not since.isdigit() or not seconds.isdigit():
            return Response(status_code=400)
        arrived = await front.arrivals.since(int(since), min(int(seconds) / 1000, _LONGEST_WAIT))
        return JSONResponse(asdict(arrived))

    async def idle(request: Request) -> Response:  # noqa: ARG001  Starlette calls with it
        return JSONResponse(front.polls.idle_seconds())

    async def health(request: Request) -> Response:  # noqa: ARG001  Starlette calls with it
        ready = front.allowed is not None
        content = {
            "ready": ready,
            "nodes": len(front.allowed.nodes) if front.allowed is not None else 0,
            "held": front.polls.held,
            "refused": {str(reason): count for reason, count in front.book.counts.items()},
        }
        return JSONResponse(content, 200 if ready else 503)

    return Starlette(
        routes=[
            Route("/doorbell", doorbell, methods=["POST"]),
            Route("/refusals", refusals, methods=["GET"]),
            Route("/replies", replies, methods=["GET"]),
            Route("/idle", idle, methods=["GET"]),
            Route("/healthz", health, methods=["GET"]),
        ]
    )
