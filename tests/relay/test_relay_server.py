"""The warm relay: its children are as good as processes of their own, and nothing that happens to them harms it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.relay import COMMAND, write_shim
from fedloop_clients.relay_server import flower_command
from fedloop_core.errors import NotSetUp

SERVER = """
import os, sys, time, signal, logging
from pathlib import Path
from fedloop_clients.relay.zygote import Zygote
logging.basicConfig(level=logging.INFO)

def entry():
    word = sys.argv[1]
    if word == "say":
        print(sys.argv, os.environ.get("WORD"), os.getcwd(), os.environ.get("SERVERS_OWN"))
        print("to error", file=sys.stderr)
    elif word == "read":
        print("read", sys.stdin.read())
    elif word == "exit":
        sys.exit(int(sys.argv[2]))
    elif word == "exit-text":
        sys.exit("a sentence")
    elif word == "raise":
        raise ZeroDivisionError
    elif word == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif word == "files":
        print(sorted(int(n) for n in os.listdir("/proc/self/fd")))
    elif word == "sleep":
        print("sleeping", os.getpid(), flush=True)
        for _ in range(600):  # a signal that comes just before a sleep is handled after it
            time.sleep(0.1)
    elif word == "parent":
        from flwr.supercore.app_utils import start_parent_process_monitor
        start_parent_process_monitor(int(sys.argv[sys.argv.index("--parent-pid") + 1]))
        print("watching", os.getpid(), flush=True)
        for _ in range(600):  # the monitor's signal arrives in its own thread and interrupts no sleep
            time.sleep(0.1)

Zygote(Path(sys.argv[1]), entry, allowed_users=frozenset({int(sys.argv[2])})).serve()
"""


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while not (answer := what()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return answer


class Relay:
    def __init__(self, folder: Path, user: int | None = None) -> None:
        self.folder = folder
        self.socket = folder / "relay.sock"
        self.log = folder / "log"
        own = folder / "own"
        own.write_text('#!/bin/sh\necho "own $@"\n')
        own.chmod(0o755)
        self.shim = write_shim(folder, self.socket, own)
        self.user = os.getuid() if user is None else user
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(self.socket), str(self.user)],
                stderr=log,
                env=os.environ | {"SERVERS_OWN": "1"},
            )
        wait_for(self.answers)

    def answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            return peer.connect_ex(str(self.socket)) == 0

    def call(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.shim, *words], capture_output=True, text=True, timeout=60, check=False, **options)

    def begin(self, *words: str) -> tuple[subprocess.Popen[str], int]:
        """A call that goes on, and the pid of its child."""
        caller = subprocess.Popen([self.shim, *words], stdout=subprocess.PIPE, text=True)
        assert caller.stdout is not None
        return caller, int(caller.stdout.readline().split()[1])

    def children(self) -> list[str]:
        return Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()

    def close(self) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    relay = Relay(tmp_path_factory.mktemp("relay"))
    yield relay
    relay.close()


@pytest.fixture(autouse=True)
def no_zombies(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "warm" in request.fixturenames:
        relay = request.getfixturevalue("warm")
        wait_for(lambda: relay.children() == [])
        assert relay.process.poll() is None


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_child_has_the_callers_arguments_environment_folder_and_files(warm: Relay, tmp_path: Path) -> None:
    done = warm.call("say", "two words", "", cwd=tmp_path, env={"WORD": "hello"})
    assert done.stdout == f"{[COMMAND, 'say', 'two words', '']} hello {tmp_path} None\n"
    assert done.stderr == "to error\n"
    assert warm.call("read", input="something").stdout == "read something\n"


@pytest.mark.parametrize(
    ("words", "status"),
    [(("exit", "0"), 0), (("exit", "7"), 7), (("exit-text",), 1), (("raise",), 1), (("segfault",), 128 + 11)],
)
def test_a_child_ends_as_its_caller_ends(warm: Relay, words: tuple[str, ...], status: int) -> None:
    assert warm.call(*words).returncode == status
    assert warm.call("exit", "0").returncode == 0


def test_a_child_has_no_other_files(warm: Relay) -> None:
    assert warm.call("files").stdout == "[0, 1, 2, 3]\n"  # 3 lists the folder


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_to_the_caller_reach_the_child(warm: Relay, number: signal.Signals) -> None:
    caller, child = warm.begin("sleep")
    with caller:
        caller.send_signal(number)
        assert caller.wait(20) != 0
    wait_for(lambda: gone(child))


def test_a_caller_that_is_killed_takes_its_child_along(warm: Relay) -> None:
    caller, child = warm.begin("sleep")
    with caller:
        caller.kill()
    wait_for(lambda: gone(child))


def test_a_child_ends_with_the_parent_that_it_was_told_of(warm: Relay) -> None:
    with subprocess.Popen(["sleep", "60"]) as superexec:
        caller, child = warm.begin("parent", "--parent-pid", str(superexec.pid))
        superexec.kill()
    with caller:
        caller.wait(20)
    wait_for(lambda: gone(child))


def test_many_calls_at_once(warm: Relay) -> None:
    callers = [subprocess.Popen([warm.shim, "exit", str(number)]) for number in range(20)]
    assert [caller.wait(60) for caller in callers] == list(range(20))


@pytest.mark.parametrize(
    "sent", [b"", b"nonsense", b"{}", b'{"arguments": [1], "environment": {}, "folder": "/"}', b"x" * 150_000]
)
def test_nonsense_is_dropped(warm: Relay, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(30)
        peer.connect(str(warm.socket))
        socket.send_fds(peer, [sent or b"x"], [0, 1, 2] if sent else [0])
        assert peer.recv(64) == b""
    assert warm.call("exit", "3").returncode == 3


def test_a_peer_that_says_nothing_is_dropped(warm: Relay) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(30)
        peer.connect(str(warm.socket))
        assert peer.recv(64) == b""


def test_without_a_relay_server_the_call_becomes_flowers_own(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    relay.close()
    assert relay.call("a", "b c").stdout == "own a b c\n"
    relay.start()
    assert relay.call("exit", "3").returncode == 3
    relay.process.kill()  # its socket file stays
    relay.process.wait()
    assert relay.call("a").stdout == "own a\n"


def test_a_call_goes_on_when_the_relay_server_is_killed(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    caller, child = relay.begin("sleep")
    relay.process.kill()
    relay.process.wait()
    with caller:
        with pytest.raises(subprocess.TimeoutExpired):
            caller.wait(0.5)
        os.kill(child, signal.SIGKILL)
        assert caller.wait(20) == 1


def test_its_end_ends_its_children(tmp_path: Path) -> None:
    relay = Relay(tmp_path)
    caller, child = relay.begin("sleep")
    relay.close()
    with caller:
        assert caller.wait(20) != 0
    wait_for(lambda: gone(child))


def test_another_user_is_refused(tmp_path: Path) -> None:
    relay = Relay(tmp_path, user=os.getuid() + 1)
    assert relay.call("a").stdout == "own a\n"
    assert "is refused" in relay.log.read_text()
    relay.close()


def test_a_call_costs_milliseconds(warm: Relay) -> None:
    times = []
    for _ in range(10):
        started = time.perf_counter()
        warm.call("exit", "0")
        times.append(time.perf_counter() - started)
    assert min(times) < 1.0


def test_flowers_command_is_found_by_its_public_name() -> None:
    assert callable(flower_command())


def test_a_missing_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotSetUp):
        write_shim(tmp_path, tmp_path / "s", tmp_path / "none")


def test_the_relay_imports_no_torch() -> None:
    code = "import sys, fedloop_clients.app, fedloop_clients.relay_server as r; r.flower_command(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
