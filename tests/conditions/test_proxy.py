"""A site behind a CONNECT proxy, while the environment names another: it speaks to its coordinator and to nobody else."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conditions.small_federation import Federation
from tests.onboarding.connect_proxy import ConnectProxy

from fedloop_server.home import CoordinatorHome

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]  # the first test sets the federation up

NAME = "coordinator.test"  # which the proxy knows and this machine does not
_INTERNET = re.compile(r'AF_INET6?,.*?port=htons\((\d+)\).*?"([0-9a-f.:]+)"')


@dataclass(frozen=True)
class Proxied:
    """Site north behind ``right``; the environment of every command names ``wrong``. ``calls``: what strace saw, if it is there."""

    federation: Federation
    right: ConnectProxy
    wrong: ConnectProxy
    calls: Path

    def doors(self) -> set[str]:
        """The coordinator's, as a site names them."""
        settings = CoordinatorHome(self.federation.home).settings
        return {settings.front.public, settings.hub.public}


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    folder = tmp_path_factory.mktemp("p")
    with contextlib.ExitStack() as stack:
        right, wrong = (stack.enter_context(contextlib.closing(ConnectProxy())) for _ in range(2))
        names = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy")
        environment = {spelled: wrong.url for name in names for spelled in (name, name.upper())}
        federation = stack.enter_context(contextlib.closing(Federation(folder, environment)))
        calls = folder / "calls"
        federation.begin(NAME)
        _watch(federation, calls)
        federation.add_site(federation.small_site("north"), "--proxy", right.url)
        federation.begin_run(rounds=3)
        yield Proxied(federation, right, wrong, calls)


def _watch(federation: Federation, calls: Path) -> None:
    """Has strace see every connection that a process of the site opens."""
    strace = shutil.which("strace")
    if strace is None:
        return
    script = federation.folder / "watched"
    words = (strace, "-D", "-f", "-qq", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg", "-o", str(calls))
    script.write_text(f'#!/bin/sh\nexec {" ".join(words)} {federation.program("north")} "$@"\n')
    script.chmod(0o755)
    federation.programs["north"] = str(script)


def test_a_site_joins_looks_and_trains_through_the_proxy_of_its_settings(proxied: Proxied) -> None:
    federation = proxied.federation
    assert federation.wait_for_end(federation.run) == "run-finished"
    said = federation.fedloop("site", "doctor", "--home", str(federation.site_home("north")))
    assert f"leads to {min(proxied.doors())}" in said
    assert set(proxied.right.asked) == proxied.doors()
    assert proxied.right.other == []


def test_nobody_asks_the_proxy_of_the_environment(proxied: Proxied) -> None:
    assert (proxied.wrong.asked, proxied.wrong.other) == ([], [])


def test_no_process_of_the_site_connects_to_anyone_but_the_proxy(proxied: Proxied) -> None:
    if not proxied.calls.exists():
        pytest.skip("strace is not installed")
    processes = proxied.federation.processes("north")
    command = Path(f"/proc/{processes['supernode']}/cmdline").read_bytes().decode().split("\0")
    node_port = int(command[command.index("--port") + 1])  # superexec and relay ask the SuperNode on loopback
    found = _INTERNET.findall(proxied.calls.read_text(errors="replace"))
    reached = {(host.removeprefix("::ffff:"), int(port)) for port, host in found}  # gRPC writes IPv4 as IPv6
    assert reached == {("127.0.0.1", proxied.right.port), ("127.0.0.1", node_port)}
