"""A real CONNECT proxy that records what it was asked for."""

from __future__ import annotations

import base64
import select
import socket
import socketserver
import threading
from typing import Any

__all__ = ["ConnectProxy"]


class ConnectProxy:
    """An HTTP proxy that knows CONNECT and the names under ``.test``; ``asked`` are all targets that it was asked for."""

    def __init__(self, password: str = "", status: int = 200) -> None:
        self.asked: list[str] = []
        self.other: list[bytes] = []
        expected = f"Basic {base64.b64encode(password.encode()).decode()}" if password else ""
        proxy = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                first = self.rfile.readline().strip()
                heads = {}
                while line := self.rfile.readline().strip():
                    name, _, value = line.decode().partition(": ")
                    heads[name.lower()] = value
                method, _, rest = first.partition(b" ")
                target = rest.partition(b" ")[0].decode()
                if method != b"CONNECT":
                    proxy.other.append(first)
                    self.wfile.write(b"HTTP/1.1 405 No\r\ncontent-length: 0\r\n\r\n")
                    return
                proxy.asked.append(target)
                if expected and heads.get("proxy-authorization") != expected:
                    self.wfile.write(b'HTTP/1.1 407 Who\r\nproxy-authenticate: Basic realm="x"\r\n\r\n')
                    return
                host, _, port = target.rpartition(":")
                if status != 200 or not host.endswith(".test") or host == "unknown.test":
                    answer = status if status != 200 else 502
                    self.wfile.write(f"HTTP/1.1 {answer} No\r\ncontent-length: 0\r\n\r\n".encode())
                    return
                self.lead(int(port))

            def lead(self, port: int) -> None:
                with socket.create_connection(("127.0.0.1", port), 10) as there:
                    self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    ends = {there: self.connection, self.connection: there}
                    while True:
                        for ready in select.select(list(ends), [], [], 20)[0]:
                            content = ready.recv(65_536)
                            if not content:
                                return
                            ends[ready].sendall(content)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://{password + '@' if password else ''}127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
