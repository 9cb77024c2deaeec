"""A site's home as joining leaves it, and a small hub that speaks SiteHub under mutual TLS."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from fedloop_clients.home import Membership, SiteHome
from fedloop_clients.joining.keys import load_or_create_keys
from fedloop_core.arrays import digest
from fedloop_core.certificates import CertificateAuthority, key_to_pem, load_or_create_key
from fedloop_core.federation.answers import open_answer
from fedloop_core.federation.protocol import PROTOCOL
from fedloop_core.keys import SigningKey, seal
from fedloop_core.models import initial_arrays
from fedloop_core.scaling import Scaler
from fedloop_core.schema import ClassLabel, NumericFeature
from fedloop_core.task.document import FederatedAveraging, LogisticModel, Privacy, Rounds, Task
from fedloop_proto.coordination.v1.coordination_pb2 import Answer, DescribeData, Instruction, TrainLocally
from fedloop_proto.membership.v1 import membership_pb2_grpc
from fedloop_proto.membership.v1.membership_pb2 import Notice, ReportReceived, SiteReport, WatchRequest

DEADLINE = 60.0
SETTINGS = """
format = 1
site = "north"

[data]
file = "data.csv"
evaluation_share = 0.25

[budget]
training = { epsilon = inf, delta = 1e-6 }
evaluation = { epsilon = inf, delta = 1e-6 }

[policy]
"""


def until(holds: Callable[[], bool], what: str) -> None:
    """Waits until something holds."""
    end = time.monotonic() + DEADLINE
    while not holds():
        assert time.monotonic() < end, f"after {DEADLINE:g} s not: {what}"
        time.sleep(0.02)


def make_task(name: str = "tabular", *, steps: int = 5) -> Task:
    return Task(
        format=1,
        name=name,
        features=tuple(NumericFeature(kind="numeric", name=f"x{at}", range=(-4.0, 4.0)) for at in range(2)),
        label=ClassLabel(kind="classes", name="y", classes=("no", "yes")),
        model=LogisticModel(kind="logistic"),
        training=FederatedAveraging(algorithm="fedavg", local_steps=steps, batch_size=20),
        privacy=Privacy(epsilon=float("inf"), delta=1e-4),
        rounds=Rounds(count=4),
    )


def write_rows(path: Path, count: int) -> None:
    values = np.random.default_rng(count).uniform(-2, 2, size=(count, 2))
    lines = [f"{a:.4f},{b:.4f},{'yes' if a + b > 0 else 'no'}" for a, b in values]
    path.write_text("x0,x1,y\n" + "\n".join(lines) + "\n")


class Coordinator:
    """The coordinator's keys and authority; makes homes that have joined, and instructions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = SigningKey.generate()
        self.authority = CertificateAuthority.create("coordinator", int(time.time()))

    def certify(self, home: SiteHome, authority: CertificateAuthority | None = None, *, days: int = 90) -> None:
        """Gives a home its certificate and the authority that it trusts."""
        by = authority or self.authority
        keys = load_or_create_keys(home)
        home.site_certificate.write_bytes(by.issue_site(keys.request, "north", now_unix=int(time.time()), days=days))
        home.authorities.write_bytes(by.certificate)

    def home(self, hub: str, name: str = "north-home") -> SiteHome:
        home = SiteHome(self.folder / name)
        home.prepare()
        self.certify(home)
        home.store_membership(
            Membership(
                site="north",
                coordinator_key=self.key.verifying.raw.hex(),
                fleet_address="127.0.0.1:1",
                hub_address=hub,
                protocol=PROTOCOL,
                joined_unix=int(time.time()),
            )
        )
        home.settings_file.write_text(SETTINGS)
        write_rows(home.folder / "data.csv", 120)
        return home

    def instruction(self, task: Task, arrays: Any, **parts: Any) -> bytes:
        base: dict[str, Any] = {
            "run_id": "run-1",
            "attempt": 1,
            "site": "north",
            "task_digest": task.digest,
            "arrays_digest": digest(arrays),
            "expires_unix": int(time.time()) + 600,
            "protocol": PROTOCOL,
        }
        return seal(Instruction(**(base | parts)), self.key)

    def describe(self, task: Task, **parts: Any) -> bytes:
        return self.instruction(task, {}, describe_data=DescribeData(task_document=task.canonical()), **parts)

    def train(self, task: Task, number: int, **parts: Any) -> tuple[bytes, dict[str, Any]]:
        arrays = {**initial_arrays(task, 1), **Scaler.from_ranges(task.feature_schema).arrays()}
        work = TrainLocally(rounds_planned=task.rounds.count)
        return self.instruction(task, arrays, round=number, train_locally=work, **parts), arrays

    def open(self, home: SiteHome, content: bytes) -> Answer:
        return open_answer(content, home.signing_key().verifying, site="north")


class Hub(membership_pb2_grpc.SiteHubServicer):
    """A hub of a few lines: what is in ``notices`` and not acknowledged is sent, reports are kept."""

    def __init__(self, coordinator: Coordinator, *, names: tuple[str, ...] = ("127.0.0.1",), port: int = 0) -> None:
        self.coordinator = coordinator
        self.names = names
        self.notices: dict[int, bytes] = {}
        self.reports: list[SiteReport] = []
        self.watches: list[WatchRequest] = []
        self.refuse: tuple[grpc.StatusCode, str] | None = None
        self.refuse_reports: tuple[grpc.StatusCode, str] | None = None
        self.ahead = 0
        self.protocol = PROTOCOL
        self.renewal_due = False
        self._changed = threading.Condition()
        self._up = True
        self.start(port)

    def start(self, port: int = 0, authority: CertificateAuthority | None = None) -> None:
        by = authority or self.coordinator.authority
        key = load_or_create_key(self.coordinator.folder / "hub.key")
        certificate = by.issue_server(key.public_key(), self.names, now_unix=int(time.time()))
        self.server = grpc.server(ThreadPoolExecutor(max_workers=8))
        membership_pb2_grpc.add_SiteHubServicer_to_server(self, self.server)  # type: ignore[no-untyped-call]
        credentials = grpc.ssl_server_credentials(
            [(key_to_pem(key), certificate)], root_certificates=by.certificate, require_client_auth=True
        )
        self.port = self.server.add_secure_port(f"127.0.0.1:{port}", credentials)
        self._up = True
        self.server.start()

    @property
    def address(self) -> str:
        return f"{self.names[0]}:{self.port}"

    def stop(self) -> None:
        self._up = False
        self.poke()
        self.server.stop(0.2).wait()

    def post(self, envelope: bytes) -> int:
        number = max(self.notices, default=0) + 1
        self.notices[number] = envelope
        self.poke()
        return number

    def poke(self) -> None:
        with self._changed:
            self._changed.notify_all()

    @property
    def acknowledged(self) -> int:
        return max((report.acknowledged for report in self.reports), default=0)

    @property
    def last(self) -> SiteReport:
        return self.reports[-1] if self.reports else SiteReport()

    def Watch(self, request: WatchRequest, context: grpc.ServicerContext) -> Iterator[Notice]:  # noqa: N802
        self.watches.append(request)
        self._admit(context)
        told = request.acknowledged
        yield self._notice(0, b"")
        while context.is_active() and self._up:
            self._admit(context)
            for number in sorted(self.notices):
                if number > told:
                    yield self._notice(number, self.notices[number])
                    told = number
            with self._changed:
                self._changed.wait(0.1)

    def Report(self, request: SiteReport, context: grpc.ServicerContext) -> ReportReceived:  # noqa: N802
        self._admit(context)
        if self.refuse_reports is not None:
            context.abort(*self.refuse_reports)
        self.reports.append(request)
        return ReportReceived(now_unix=self._now(), protocol=self.protocol, certificate_renewal_due=self.renewal_due)

    def _admit(self, context: grpc.ServicerContext) -> None:
        if self.refuse is not None:
            context.abort(*self.refuse)

    def _notice(self, number: int, envelope: bytes) -> Notice:
        return Notice(number=number, envelope=envelope, protocol=self.protocol, now_unix=self._now())

    def _now(self) -> int:
        return int(time.time()) + self.ahead


@pytest.fixture
def coordinator(tmp_path: Path) -> Coordinator:
    return Coordinator(tmp_path)


@pytest.fixture
def hub(coordinator: Coordinator) -> Iterator[Hub]:
    made = Hub(coordinator)
    yield made
    made.stop()


@pytest.fixture
def home(coordinator: Coordinator, hub: Hub) -> SiteHome:
    return coordinator.home(hub.address)


@pytest.fixture
def task() -> Task:
    return make_task()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool], str], None]:
    return until


@pytest.fixture
def make_hub(coordinator: Coordinator) -> Iterator[Callable[..., Hub]]:
    made: list[Hub] = []

    def make(**parts: Any) -> Hub:
        made.append(Hub(coordinator, **parts))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def tasks() -> Callable[..., Task]:
    return make_task


@pytest.fixture
def rows() -> Callable[[Path, int], None]:
    return write_rows
