"""A real SuperLink with TLS, node authentication and process isolation, its superexec, and a tiny ServerApp."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedloop_core.processes.environment import flower_environment, python_environment
from fedloop_server.manager.flower import FlowerControl

SECONDS = 60.0

STAND_IN = '''
"""Drives nothing: takes the lock, journals and waits, as the words in its run's folder say."""

import fcntl, json, os, pathlib, sys, time

from flwr.serverapp import ServerApp

app = ServerApp()


@app.main()
def main(grid, context):
    folder = pathlib.Path(context.run_config["fedloop-home"]) / "runs" / context.run_config["fedloop-run"]
    with (folder / "driver.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        journal = folder / "journal.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        attempt = 1 + sum("attempt-started" in line for line in lines)
        with journal.open("a") as file:
            file.write(json.dumps({"event": "attempt-started", "attempt": attempt, "unix": time.time()}) + "\\n")
        print(f"the stand-in drives {folder.name}", flush=True)
        wanted = folder / "finish"
        while not wanted.exists():
            time.sleep(0.05)
        with journal.open("a") as file:
            file.write(json.dumps({"event": "run-finished", "unix": time.time()}) + "\\n")
'''

BUNDLE = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "standin"
version = "1.0.0"
description = "A stand-in"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedloop"

[tool.flwr.app.components]
serverapp = "manager_stand_in:app"
clientapp = "manager_stand_in:app"

[tool.flwr.app.config]
fedloop-home = ""
fedloop-run = ""
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_for(condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.1)


@dataclass
class Link:
    """SuperLink and superexec as processes that can be stopped and started, and the way to control them."""

    folder: Path
    port: int
    control: FlowerControl
    bundle: Path
    superlink: subprocess.Popen[bytes] | None = None
    superexec: subprocess.Popen[bytes] | None = None

    def start_superlink(self) -> None:
        keys = self.folder / "keys"
        self.superlink = self._start(
            "flower-superlink",
            *(
                "--ssl-ca-certfile",
                keys / "ca.pem",
                "--ssl-certfile",
                keys / "tls.pem",
                "--ssl-keyfile",
                keys / "tls.key",
            ),
            *("--enable-supernode-auth", "--host", "127.0.0.1", "--port", self.port, "--isolation", "process"),
            *("--database", self.folder / "state.db", "--superexec-auth-secret-file", keys / "secret"),
            "--disable-runtime-dependency-installation",
        )
        wait_for(self._answers, "the SuperLink")

    def start_superexec(self) -> None:
        keys = self.folder / "keys"
        self.superexec = self._start(
            "flower-superexec",
            *("--runtime-api-address", f"127.0.0.1:{self.port}", "--root-certificates", keys / "ca.pem"),
            *("--superexec-auth-secret-file", keys / "secret"),
        )

    def close(self) -> None:
        for process in (self.superexec, self.superlink):
            if process is not None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def _answers(self) -> bool:
        with socket.socket() as client:
            client.settimeout(1)
            return client.connect_ex(("127.0.0.1", self.port)) == 0

    def _start(self, *words: object) -> subprocess.Popen[bytes]:
        name = str(words[0])
        environment = {**python_environment(), **flower_environment(self.folder / name)}
        # The stand-in is no part of the installation.
        environment["PYTHONPATH"] = str(self.bundle.parent / "modules")
        (self.folder / name).mkdir(exist_ok=True)
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [str(Path(sys.executable).with_name(name)), *map(str, words[1:])],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )


def make_keys(folder: Path) -> None:
    """A private authority and the SuperLink's certificate for loopback."""
    folder.mkdir(parents=True)
    config = "[v3]\nsubjectAltName=DNS:localhost,IP:127.0.0.1\n"
    (folder / "v3.cnf").write_text(config)

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out")
    openssl(*curve, "ca.key")
    openssl("req", "-x509", "-new", "-key", "ca.key", "-days", "30", "-subj", "/CN=test authority", "-out", "ca.pem")
    openssl(*curve, "tls.key")
    openssl("req", "-new", "-key", "tls.key", "-subj", "/CN=localhost", "-out", "tls.csr")
    signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30", "-extfile", "v3.cnf")
    openssl("x509", "-req", "-in", "tls.csr", *signing, "-extensions", "v3", "-out", "tls.pem")
    (folder / "secret").write_text("a secret of the test, long enough to be one\n")
    assert x509.load_pem_x509_certificate((folder / "tls.pem").read_bytes())


@pytest.fixture
def node_key() -> bytes:
    """A SuperNode's public key, OpenSSH."""
    public = ec.generate_private_key(ec.SECP384R1()).public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


@pytest.fixture(scope="session")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Link]:
    folder = tmp_path_factory.mktemp("flower")
    make_keys(folder / "keys")
    bundle, modules = folder / "bundle", folder / "modules"
    bundle.mkdir()
    modules.mkdir()
    (bundle / "pyproject.toml").write_text(BUNDLE)
    (modules / "manager_stand_in.py").write_text(STAND_IN)
    port, python_path = free_port(), {"PYTHONPATH": str(modules)}
    control = FlowerControl(
        folder / "cli", f"127.0.0.1:{port}", folder / "keys" / "ca.pem", app=bundle, environment=python_path
    )
    made = Link(folder, port, control, bundle)
    try:
        made.start_superlink()
        made.start_superexec()
        yield made
    finally:
        made.close()
        shutil.rmtree(folder, ignore_errors=True)
