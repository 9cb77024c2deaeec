"""The supervisor over real child processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.supervising import SLEEPS, Running, lives, python, spec, wait_for

from fedloop_core.errors import AlreadyRunning, ProcessFailed
from fedloop_core.processes import (
    FileThere,
    KnownDeath,
    PortOpen,
    ProcessState,
    SocketAnswers,
    Supervisor,
    launch,
    request_restart,
)
from fedloop_core.processes.logs import ProcessLog

Supervise = Callable[..., Running]


def test_starts_after_those_that_are_needed_and_stops_in_reverse(supervise: Supervise, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    code = """
    import pathlib, signal, sys, time
    name, journal, mark = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
    def say(word):
        with journal.open('a') as file: file.write(f'{word} {name}\\n')
    signal.signal(signal.SIGTERM, lambda *_: (say('end'), sys.exit(0)))
    say('start'); time.sleep(0.3); say('ready'); mark.touch(); time.sleep(600)
    """
    specs = [
        spec(
            name,
            (*python(code), name, str(journal), str(tmp_path / name)),
            tmp_path,
            ready=FileThere(tmp_path / name),
            after=after,
        )
        for name, after in (("first", ()), ("second", ("first",)), ("third", ("first", "second")))
    ]
    running = supervise(*specs)
    wait_for(running.healthy, "all run")
    running.end()
    assert journal.read_text().split("\n")[:-1] == [
        *(f"{word} {name}" for name in ("first", "second", "third") for word in ("start", "ready")),
        *(f"end {name}" for name in ("third", "second", "first")),
    ]
    assert [process.state for process in running.status().processes] == [ProcessState.STOPPED] * 3
    assert [process.last_exit for process in running.status().processes] == [0] * 3


@pytest.mark.parametrize("kind", ["port", "socket"])
def test_a_listening_probe_is_ready_when_somebody_listens(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "s"
    family, address = (socket.AF_INET, ("127.0.0.1", 0)) if kind == "port" else (socket.AF_UNIX, str(path))
    with socket.socket(family) as server:
        server.bind(address)
        probe = PortOpen(server.getsockname()[1]) if kind == "port" else SocketAnswers(path)
        assert not probe.ready()
        server.listen()
        assert probe.ready()
    assert not probe.ready()


def test_a_dead_process_comes_back_and_the_others_stay(supervise: Supervise, tmp_path: Path) -> None:
    running = supervise(spec("one", SLEEPS, tmp_path), spec("two", SLEEPS, tmp_path))
    wait_for(running.healthy)
    one, two = running.pid("one"), running.pid("two")
    assert one is not None
    os.kill(one, signal.SIGKILL)
    wait_for(lambda: running.pid("one") not in (None, one) and running.healthy(), "one is back")
    assert running.pid("two") == two
    found = running.status().processes[0]
    assert (found.restarts, found.last_exit) == (1, -9)
    assert any("one was killed by signal 9" in line for line in running.told)


def test_a_crash_loop_is_told_in_one_sentence_and_goes_on(supervise: Supervise, tmp_path: Path) -> None:
    running = supervise(
        spec("broken", python("print('no configuration'); raise SystemExit(3)"), tmp_path),
        spec("well", SLEEPS, tmp_path),
        start_seconds=0.1,
    )
    wait_for(lambda: any("keeps dying" in line for line in running.told), "told")
    sentence = next(line for line in running.told if "keeps dying" in line)
    assert "broken keeps dying (3 times in a row, it ended with status 3)" in sentence
    assert str(tmp_path / "logs" / "broken.log") in sentence
    starts = running.status().processes[0].restarts
    wait_for(lambda: running.status().processes[0].restarts > starts + 1, "it is tried again")
    assert "no configuration" in running.log("broken")


def test_a_death_that_is_known_is_told_as_what_it_is(supervise: Supervise, tmp_path: Path) -> None:
    code = f"""
    import pathlib, time
    deaths = pathlib.Path({str(tmp_path / "deaths")!r})
    count = int(deaths.read_text()) if deaths.exists() else 0
    if count < 4:
        deaths.write_text(str(count + 1))
        print('Exit Code: 305 [code: 2004] Failed to start it.')
        raise SystemExit(1)
    deaths.with_name("up").touch()
    time.sleep(600)
    """
    known = KnownDeath("code: 2004", "the other side still holds on to its old connection")
    running = supervise(
        spec("refused", python(code), tmp_path, ready=FileThere(tmp_path / "up"), while_refused=known),
        spec("broken", python("raise SystemExit(1)"), tmp_path, while_refused=known),
    )
    wait_for(lambda: any("broken keeps dying" in line for line in running.told), "another death is told as ever")
    wait_for(lambda: any("refused runs" in line for line in running.told), "it runs in the end")
    said = [line for line in running.told if line.startswith("refused")]
    assert not any("keeps dying" in line or "ended with status" in line for line in said)
    assert said[0] == f"refused does not run yet: {known.sentence}; the next try is in 0.05 s"
    assert not any(known.sentence in line for line in running.told if line.startswith("broken"))
    assert "Exit Code: 305" in running.log("refused")


def test_ready_is_who_lives_on(supervise: Supervise, tmp_path: Path) -> None:
    first = tmp_path / "first"
    code = f"""
    import pathlib, time
    first = pathlib.Path({str(first)!r})
    if not first.exists():
        first.touch(); time.sleep(1); raise SystemExit(1)
    time.sleep(600)
    """
    healthy: list[int] = []
    one = spec("one", python(code), tmp_path, ready=FileThere(first), steady_seconds=3.0)
    running = supervise(one, when_healthy=lambda: healthy.append(1))
    wait_for(lambda: healthy, "it runs")
    assert sum("one runs" in line for line in running.told) == 1
    assert running.status().processes[0].restarts == 1


def test_processes_that_wait_for_nobody_start_together(supervise: Supervise, tmp_path: Path) -> None:
    never = FileThere(tmp_path / "never")
    running = supervise(
        spec("slow", SLEEPS, tmp_path, ready=never),
        spec("waits", SLEEPS, tmp_path, after=("slow",)),
        spec("free", SLEEPS, tmp_path),
    )
    wait_for(lambda: running.pid("free"), "free was started")
    assert running.pid("slow")
    assert running.pid("waits") is None


def test_nobody_waits_for_a_process_that_comes_later(tmp_path: Path) -> None:
    specs = (spec("a", SLEEPS, tmp_path, after=("b",)), spec("b", SLEEPS, tmp_path))
    with pytest.raises(ValueError, match="process a waits for b"):
        Supervisor(tmp_path, specs, health=None)


def test_a_process_that_never_becomes_ready_does_not_hold_the_others_for_ever(
    supervise: Supervise, tmp_path: Path
) -> None:
    running = supervise(
        spec("slow", SLEEPS, tmp_path, ready=FileThere(tmp_path / "never")),
        spec("next", SLEEPS, tmp_path, after=("slow",)),
        start_seconds=0.3,
    )
    wait_for(lambda: running.pid("next"), "next was started")
    assert not running.healthy()
    assert any("slow is not ready after 0.3 s" in line for line in running.told)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("/no/such/program",), "cannot start /no/such/program"),
        ((str(Path(__file__)),), "Permission denied"),
    ],
    ids=["not there", "not a program"],
)
def test_a_program_that_cannot_be_started_is_named(
    command: tuple[str, ...], says: str, supervise: Supervise, tmp_path: Path
) -> None:
    if os.access(command[0], os.X_OK):
        pytest.skip("the checkout marks all files as programs")
    running = supervise(spec("broken", command, tmp_path))
    wait_for(lambda: says in running.log("broken"), says)
    assert running.status().processes[0].last_exit in (127, None)


def test_children_of_children_end_with_their_group(supervise: Supervise, tmp_path: Path) -> None:
    code = f"""
    import pathlib, subprocess, sys, time
    child = subprocess.Popen([sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)'], stdout=subprocess.PIPE)
    child.stdout.readline()
    pathlib.Path({str(tmp_path / "grandchild")!r}).write_text(str(child.pid))
    time.sleep(600)
    """
    running = supervise(spec("parent", python(code), tmp_path, stop_seconds=0.5))
    mark = tmp_path / "grandchild"
    wait_for(lambda: mark.exists() and mark.read_text())
    first = int(mark.read_text())
    parent = running.pid("parent")
    assert parent is not None
    mark.unlink()
    os.kill(parent, signal.SIGKILL)  # a crash: its child goes too
    wait_for(lambda: not lives(first), "the first grandchild has ended")
    wait_for(lambda: mark.exists() and mark.read_text())
    second = int(mark.read_text())
    running.end()  # a clean stop of one that ignores SIGTERM
    assert not lives(second)


def test_a_process_that_ignores_sigterm_is_killed(supervise: Supervise, tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    running = supervise(spec("deaf", python(code), tmp_path, stop_seconds=0.3))
    wait_for(lambda: " up" in running.log("deaf"))
    running.end()
    assert running.status().processes[0].last_exit == -9


def test_a_second_stop_waits_for_nobody(supervise: Supervise, tmp_path: Path) -> None:
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    )
    running = supervise(*(spec(name, python(code), tmp_path, stop_seconds=600.0) for name in ("a", "b")))
    wait_for(lambda: " up" in running.log("a") and " up" in running.log("b"))
    running.supervisor.stop()
    wait_for(lambda: running.status().processes[1].state is ProcessState.STOPPING)
    running.supervisor.stop()  # the same wish, as `timeout` repeats it
    assert lives(running.pid("a") or 0)
    time.sleep(1.1)  # from here on a stop is another
    running.end()
    assert [process.last_exit for process in running.status().processes] == [-9, -9]


def test_a_changed_file_and_a_request_restart_one_process(supervise: Supervise, tmp_path: Path) -> None:
    bundle = tmp_path / "authorities.pem"
    bundle.write_text("old")
    running = supervise(spec("reads", SLEEPS, tmp_path, restart_when=(bundle,)), spec("other", SLEEPS, tmp_path))
    wait_for(running.healthy)
    reads, other = running.pid("reads"), running.pid("other")
    bundle.write_text("newer")
    wait_for(lambda: running.pid("reads") not in (None, reads) and running.healthy(), "restarted by the file")
    reads = running.pid("reads")
    request_restart(tmp_path, "reads")
    wait_for(lambda: running.pid("reads") not in (None, reads) and running.healthy(), "restarted by the request")
    assert running.pid("other") == other
    assert not list((tmp_path / "restarts").iterdir())
    assert sum("restarts:" in line for line in running.told) == 2


def test_a_process_rests_while_a_file_is_there(supervise: Supervise, tmp_path: Path) -> None:
    mark = tmp_path / "shut-out"
    running = supervise(spec("rests", SLEEPS, tmp_path, rests_while=mark), spec("other", SLEEPS, tmp_path))
    wait_for(running.healthy)
    first, other = running.pid("rests"), running.pid("other")
    mark.write_text("")
    wait_for(lambda: running.status().processes[0].state is ProcessState.WAITING, "it rests")
    assert not running.status().healthy
    time.sleep(0.5)  # it would have been started again by now
    assert running.pid("rests") is None
    mark.unlink()
    wait_for(lambda: running.pid("rests") not in (None, first) and running.healthy(), "it was started again")
    assert running.pid("other") == other


def test_why_a_process_rests_is_told_once(supervise: Supervise, tmp_path: Path) -> None:
    mark, refused = tmp_path / "shut-out", tmp_path / "refused"
    code = f"""
    import pathlib, time
    if pathlib.Path({str(refused)!r}).exists():
        pathlib.Path({str(mark)!r}).write_text('the coordinator has\x1b[2J revoked this site.\\n')
        raise SystemExit(0)
    time.sleep(600)
    """
    refused.touch()
    running = supervise(spec("node", python(code), tmp_path, rests_while=mark))
    wait_for(lambda: any("rests" in line for line in running.told), "it was told")
    time.sleep(0.5)
    (said,) = [line for line in running.told if "rests" in line]
    assert said.startswith("node rests: the coordinator has")
    assert said.endswith("revoked this site.")
    assert "\x1b" not in said
    refused.unlink()
    mark.unlink()
    wait_for(running.healthy, "it was started again")
    mark.symlink_to("/etc/hostname")
    wait_for(lambda: running.told[-1] == f"node rests while {mark} is there", "a link is not read")


def test_a_process_falls_with_another(supervise: Supervise, tmp_path: Path) -> None:
    running = supervise(
        spec("node", SLEEPS, tmp_path, falls_with=("worker",)),
        spec("other", SLEEPS, tmp_path),
        spec("worker", SLEEPS, tmp_path),
    )
    wait_for(running.healthy)
    node, other, worker = (running.pid(name) or 0 for name in ("node", "other", "worker"))
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: running.pid("node") not in (None, node) and running.healthy(), "it was started again, too")
    assert running.pid("other") == other
    assert running.pid("worker") not in (None, worker)
    assert any("node restarts: worker has ended" in line for line in running.told)
    node, worker = running.pid("node") or 0, running.pid("worker") or 0
    request_restart(tmp_path, "node")
    wait_for(lambda: running.pid("node") not in (None, node) and running.healthy(), "the request")
    assert running.pid("worker") == worker  # it does not fall with those that fall with it


def test_falling_with_nobody_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="falls with worker, which is not there"):
        Supervisor(tmp_path, [spec("node", SLEEPS, tmp_path, falls_with=("worker",))], health=None)


def test_health_is_200_when_all_run_and_503_before(supervise: Supervise, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    running = supervise(spec("slow", SLEEPS, tmp_path, ready=FileThere(mark)), health=("127.0.0.1", 0))
    wait_for(lambda: running.supervisor.health_port and running.pid("slow"))

    def ask(path: str = "/healthz") -> tuple[int, bytes]:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{running.supervisor.health_port}{path}", timeout=60
            ) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    status, body = ask()
    assert (status, json.loads(body)["processes"][0]["state"]) == (503, "starting")
    mark.touch()
    wait_for(lambda: ask()[0] == 200, "healthy")
    assert json.loads(ask()[1]) == json.loads((tmp_path / "supervisor.json").read_bytes())
    assert ask("/docs")[0] == 404


def test_a_taken_health_port_is_one_sentence(supervise: Supervise, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        running = supervise(spec("a", SLEEPS, tmp_path), health=taken.getsockname()[:2])
        with pytest.raises(ProcessFailed, match="health endpoint cannot listen"):
            running.end()


def test_a_folder_has_one_supervisor(supervise: Supervise, tmp_path: Path) -> None:
    running = supervise(spec("a", SLEEPS, tmp_path))
    wait_for(running.healthy)
    second = supervise(spec("a", SLEEPS, tmp_path))
    with pytest.raises(AlreadyRunning, match="run already"):
        second.end()
    assert running.healthy()


def test_the_environment_is_built_from_nothing(
    supervise: Supervise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "leak")
    monkeypatch.setenv("PYTHONPATH", "/leak")
    monkeypatch.setenv("HTTPS_PROXY", "http://leak:1")
    running = supervise(
        spec(
            "env", python("import json, os; print(json.dumps(dict(os.environ)))"), tmp_path, environment={"GIVEN": "1"}
        )
    )
    wait_for(lambda: "GIVEN" in running.log("env"))
    line = next(line for line in running.log("env").splitlines() if "GIVEN" in line)
    seen = json.loads(line[line.index("{") :])
    assert seen.pop("LC_CTYPE", "C.UTF-8") == "C.UTF-8"  # Python's own
    assert seen == {
        "GIVEN": "1",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "FEDLOOP_SUPERVISED": str(tmp_path.resolve()),
    }


def test_logs_have_times_long_lines_and_both_streams(supervise: Supervise, tmp_path: Path) -> None:
    code = "import sys, time; print('out', flush=True); print('err', file=sys.stderr); print('x' * 40000); print('no end', end=''); sys.stdout.flush(); time.sleep(600)"
    running = supervise(spec("talks", python(code), tmp_path))
    wait_for(lambda: running.log("talks").count("x") >= 40000)
    running.end()
    lines = running.log("talks").splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z ", line) for line in lines)
    said = [line.partition(" ")[2] for line in lines]
    assert {"out", "err", "no end"} <= set(said)
    assert max(map(len, said)) <= 16 * 1024
    assert (tmp_path / "logs" / "talks.log").stat().st_mode & 0o007 == 0


def test_logs_rotate(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "logs" / "a.log", limit=1000, files=3)
    for number in range(200):
        log.feed(f"line {number}\n".encode())
    log.close()
    files = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert files == ["a.log", "a.log.1", "a.log.2"]
    assert all(path.stat().st_size <= 1000 for path in (tmp_path / "logs").iterdir())
    assert "line 199" in (tmp_path / "logs" / "a.log").read_text()


def test_colours_and_control_characters_stay_out_of_logs(tmp_path: Path) -> None:
    log = ProcessLog(tmp_path / "a.log")
    log.feed(b"\x1b[92mINFO\x1b[0m:\tfine\r\x08\x00\n")
    log.close()
    assert (tmp_path / "a.log").read_text().partition(" ")[2] == "INFO:\tfine\n"


def test_a_log_that_cannot_be_written_loses_lines_and_no_process(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    log = ProcessLog(Path("/dev/full"), limit=0)
    log.feed(b"one\ntwo\n")
    log.close()
    assert log.lost == 2


def test_a_link_in_place_of_a_log_is_refused(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        ProcessLog(tmp_path / "logs" / "a.log")


@pytest.mark.parametrize(
    ("name", "command"),
    [("Upper", SLEEPS), ("../up", SLEEPS), ("", SLEEPS), ("a", ("sleep", "1")), ("a", ())],
    ids=["capital", "path", "empty", "looked for on PATH", "no program"],
)
def test_specs_that_make_no_sense_are_refused(name: str, command: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="process"):
        spec(name, command, tmp_path)


def test_the_launcher_imports_nothing_of_ours() -> None:
    text = Path(str(launch.__file__)).read_text()
    assert set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)) == {
        "__future__",
        "ctypes",
        "os",
        "signal",
        "sys",
    }
