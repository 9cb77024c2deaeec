"""The health endpoint: ``GET /healthz`` on loopback answers 200 when every process runs, else 503, with the same JSON."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedloop_core.errors import ProcessFailed
from fedloop_core.processes.status import SupervisorStatus

__all__ = ["health_endpoint"]

Status = Callable[[], SupervisorStatus]


@contextmanager
def health_endpoint(address: tuple[str, int] | None, status: Status) -> Iterator[int | None]:
    """Serves meanwhile; gives the port (None without an address).

    Args:
        address: host and port; port 0 is a free one.
        status: asked at each request, from other threads.

    Raises:
        ProcessFailed: the address is taken.
    """
    if address is None:
        yield None
        return
    try:
        server = ThreadingHTTPServer(address, _handler(status))
    except OSError as error:
        raise ProcessFailed(
            f"the health endpoint cannot listen on {address[0]}:{address[1]}: {error.strerror}.",
            hint="Choose another health_port, or give --no-health.",
        ) from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="health", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(status: Status) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5.0
        server_version = "fedloop"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path != "/healthz":
                self.send_error(404)
                return
            now = status()
            body = now.model_dump_json().encode()
            self.send_response(200 if now.healthy else 503)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's signature
            """Says nothing: probes come every few seconds."""

    return Handler
