"""The daemon process itself: its socket, its end, and what a kill leaves."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedloop_clients.endpoint import Question
from fedloop_clients.home import SiteHome
from fedloop_clients.privacy.ledger import Ledger
from fedloop_clients.socket_endpoint import SocketEndpoint
from fedloop_clients.status import read_status
from fedloop_core.errors import ProcessFailed
from fedloop_core.task.document import Task
from fedloop_proto.membership.v1.membership_pb2 import SITE_ACTIVITY_TRAINING

Wait = Callable[[Callable[[], bool], str], None]
pytestmark = pytest.mark.slow


class Service:
    """A daemon process and its log."""

    def __init__(self, home: SiteHome, *more: str) -> None:
        self.home = home
        self.log = home.folder / "service.log"
        command = [sys.executable, "-m", "fedloop_clients.service", "--home", str(home.folder), *more]
        with self.log.open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)

    def ask(self, envelope: bytes, arrays: Any, patience: float = 60.0) -> bytes:
        return SocketEndpoint(self.home.daemon_socket, patience).answer(Question(envelope, arrays)).answer

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(60)


@pytest.fixture
def short_home(hub: Any, coordinator: Any) -> Iterator[SiteHome]:
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:  # a socket's path is short
        coordinator.folder = Path(folder)
        yield coordinator.home(hub.address, "s")


@pytest.fixture
def serve(short_home: SiteHome) -> Iterator[Callable[..., Service]]:
    made: list[Service] = []

    def start(*more: str) -> Service:
        made.append(Service(short_home, *more))
        return made[-1]

    yield start
    for one in made:
        one.end(signal.SIGKILL)


def test_it_answers_reports_and_ends_cleanly(
    serve: Callable[..., Service], short_home: SiteHome, hub: Any, coordinator: Any, task: Task, wait_until: Wait
) -> None:
    service = serve()
    answer = coordinator.open(short_home, service.ask(coordinator.describe(task), {}))
    assert answer.data_description.admitted
    first = coordinator.open(short_home, service.ask(*coordinator.train(task, 1)))
    wait_until(lambda: bool(hub.reports and hub.watches), "the hub hears of it")
    wait_until(lambda: read_status(short_home.folder).hub == "", "the status is written")
    assert stat.S_IMODE(short_home.daemon_socket.stat().st_mode) == 0o600
    assert service.end() == 0
    assert not short_home.daemon_socket.exists()
    assert "Traceback" not in service.log.read_text()
    again = coordinator.open(short_home, serve().ask(*coordinator.train(task, 1, attempt=2)))
    assert (again.local_update, again.attempt) == (first.local_update, 2)


def test_a_kill_while_training_loses_and_doubles_no_charge(
    serve: Callable[..., Service], short_home: SiteHome, hub: Any, coordinator: Any, tasks: Any, wait_until: Wait
) -> None:
    task, service = tasks(steps=30_000), serve()
    service.ask(coordinator.describe(task), {})
    replies: list[bytes] = []
    question = coordinator.train(task, 1)
    asking = threading.Thread(target=lambda: replies.append(service.ask(*question)), daemon=True)
    asking.start()
    wait_until(lambda: hub.last.activity == SITE_ACTIVITY_TRAINING, "it trains")
    service.end(signal.SIGKILL)
    serve()  # the relay's question waits, and is asked again
    asking.join(120)
    assert coordinator.open(short_home, replies[0]).local_update.steps == 30_000
    ledger = Ledger(short_home.ledger_file, lambda: 0)
    ledger.verify()
    ledger.close()


def test_it_ends_in_time_also_while_it_trains(
    serve: Callable[..., Service], hub: Any, coordinator: Any, tasks: Any, wait_until: Wait
) -> None:
    task, service = tasks(steps=100_000), serve()
    service.ask(coordinator.describe(task), {})
    question = coordinator.train(task, 1)
    asking = threading.Thread(target=_ignoring, args=(service, question), daemon=True)
    asking.start()
    wait_until(lambda: hub.last.activity == SITE_ACTIVITY_TRAINING, "it trains")
    assert service.end() == 0
    log = service.log.read_text()
    assert (
        "FL-PROC-001: the daemon ends while it works for run run-1" in log
    )  # at the next step, and not at the last one
    assert "Traceback" not in log


def _ignoring(service: Service, question: Any) -> None:
    with contextlib.suppress(ProcessFailed):  # nobody answers any more
        envelope, arrays = question
        service.ask(envelope, arrays, patience=0.5)


@pytest.mark.parametrize(
    ("more", "status", "sentence"),
    [(("--allow-user", "no-such-user-here"), 2, "no user"), ((), 3, "fedloop site join")],
    ids=["a user that is none", "a home that has not joined"],
)
def test_what_it_cannot_start_with_is_one_sentence(
    serve: Callable[..., Service], short_home: SiteHome, more: tuple[str, ...], status: int, sentence: str
) -> None:
    if not more:
        short_home.membership_file.unlink()
    service = serve(*more)
    assert service.process.wait(60) == status
    text = service.log.read_text()
    assert sentence in text
    assert "Traceback" not in text
