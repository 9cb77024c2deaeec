"""Users, rights and handed files: what root gives to processes, and what an ordinary user gets."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.supervising import SLEEPS, Running, lives, spec, wait_for

from fedloop_core.errors import NotSetUp, ProcessFailed
from fedloop_core.processes import HandedFile, flower_environment, read_status
from fedloop_core.processes.handing import hand_over
from fedloop_core.processes.users import check_users, own_file, own_folder, own_tree

Supervise = Callable[..., Running]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as other users")
TELLS = (  # a shell: a Python below /root is closed to other users
    "/bin/sh",
    "-c",
    (
        "echo ids $(id -u) $(id -g); echo groups $(id -G); echo umask $(umask); "
        "grep -E '^(NoNewPrivs|CapEff|NSsid):' /proc/self/status; echo told; exec sleep 600"
    ),
)


def _told(running: Running, name: str) -> dict[str, list[str]]:
    wait_for(lambda: "Z told" in running.log(name))
    lines = [line.split() for line in running.log(name).splitlines()]
    return {words[1].rstrip(":"): words[2:] for words in lines}


def test_a_process_gains_no_rights_and_its_files_are_private(supervise: Supervise, tmp_path: Path) -> None:
    told = _told(supervise(spec("own", TELLS, tmp_path)), "own")
    assert told["ids"] == [str(os.getuid()), str(os.getgid())]
    assert (told["umask"], told["NoNewPrivs"]) == (["0077"], ["1"])


def test_a_confined_process_obeys_the_rights_of_files_even_as_root(supervise: Supervise, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o555)
    command = (
        "/bin/sh",
        "-c",
        f"touch {tmp_path}/closed/file; grep CapEff: /proc/self/status; echo told; exec sleep 60",
    )
    told = _told(supervise(spec("own", command, tmp_path, confined=True)), "own")
    assert told["CapEff"] == ["0" * 16]
    assert not list((tmp_path / "closed").iterdir())


@needs_root
def test_root_starts_a_process_as_its_user(supervise: Supervise) -> None:
    nobody = pwd.getpwnam("nobody")
    told = _told(supervise(spec("other", TELLS, Path("/"), user="nobody")), "other")
    assert told["ids"] == [str(nobody.pw_uid), str(nobody.pw_gid)]
    assert told["groups"] == [str(nobody.pw_gid)]
    assert (told["umask"], told["NoNewPrivs"], told["CapEff"]) == (["0077"], ["1"], ["0" * 16])


@needs_root
def test_a_process_of_another_user_dies_with_its_supervisor_too(
    supervisor_process: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The kernel forgets the death signal at a change of user, so it must be asked for afterwards."""
    supervisor = supervisor_process(
        """
        from pathlib import Path
        from fedloop_core.processes import ProcessSpec, Supervisor
        spec = ProcessSpec('other', ('/bin/sleep', '600'), {}, 'nobody', Path('/'))
        Supervisor(Path.cwd(), [spec], health=None).run()
        """
    )
    wait_for(lambda: (found := read_status(tmp_path)) is not None and found.healthy)
    found = read_status(tmp_path)
    pid = found.processes[0].pid if found else None
    assert pid is not None
    wait_for(lambda: Path(f"/proc/{pid}").stat().st_uid == pwd.getpwnam("nobody").pw_uid, "it is nobody's")
    wait_for(lambda: b"sleep" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0])
    supervisor.kill()
    wait_for(lambda: not lives(pid), "it has died")


@needs_root
def test_an_installation_that_a_user_cannot_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "home" / "python"
    program.parent.mkdir(mode=0o700)
    program.write_text("")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    with pytest.raises(NotSetUp, match=r"user nobody cannot run .* is closed to it"):
        check_users(["nobody"])
    check_users(["root"])


def test_a_missing_user_is_named_before_anything_starts() -> None:
    with pytest.raises(NotSetUp, match="no user fedloop-nowhere") as refused:
        check_users(["root", "fedloop-nowhere"])
    assert "--single-user" in refused.value.hint


def test_handed_files_are_private_copies(tmp_path: Path) -> None:
    secret = tmp_path / "keys" / "superexec.secret"
    secret.parent.mkdir()
    secret.write_text("first")
    target = tmp_path / "given"
    given = spec("a", SLEEPS, tmp_path, handed=(HandedFile(secret, target),))
    hand_over(given)
    secret.write_text("second")
    hand_over(given)
    assert target.read_text() == "second"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given", "keys"]


@needs_root
def test_handed_files_belong_to_the_user_of_the_process(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")
    hand_over(spec("a", SLEEPS, tmp_path, user="nobody", handed=(HandedFile(secret, tmp_path / "given", "root"),)))
    assert (tmp_path / "given").stat().st_uid == pwd.getpwnam("nobody").pw_uid


def _link(folder: Path) -> HandedFile:
    (folder / "real").write_text("root's")
    (folder / "source").symlink_to(folder / "real")
    return HandedFile(folder / "source", folder / "target")


def _folder(folder: Path) -> HandedFile:
    (folder / "source").mkdir()
    return HandedFile(folder / "source", folder / "target")


def _pipe(folder: Path) -> HandedFile:
    os.mkfifo(folder / "source")
    return HandedFile(folder / "source", folder / "target")


def _nothing(folder: Path) -> HandedFile:
    return HandedFile(folder / "source", folder / "target")


def _of_another(folder: Path) -> HandedFile:
    (folder / "source").write_text("x")
    if os.geteuid() != 0:
        pytest.skip("only root reads what belongs to others")
    return HandedFile(folder / "source", folder / "target", owner="nobody")


@pytest.mark.parametrize("prepare", [_link, _folder, _pipe, _nothing, _of_another])
def test_what_is_not_a_plain_file_of_its_owner_is_not_handed_on(
    prepare: Callable[[Path], HandedFile], tmp_path: Path
) -> None:
    file = prepare(tmp_path)
    with pytest.raises(ProcessFailed, match="process a cannot be given"):
        hand_over(spec("a", SLEEPS, tmp_path, handed=(file,)))
    assert not file.target.exists()


def test_a_file_that_cannot_be_handed_is_a_death_that_is_tried_again(supervise: Supervise, tmp_path: Path) -> None:
    source = tmp_path / "later.pem"
    running = supervise(spec("a", SLEEPS, tmp_path, handed=(HandedFile(source, tmp_path / "given"),)))
    wait_for(lambda: "cannot be given" in running.log("a"))
    source.write_text("now")
    wait_for(running.healthy)


@needs_root
def test_folders_and_files_get_their_owner_and_links_are_left_alone(tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody").pw_uid
    outside = tmp_path / "outside"
    outside.write_text("root's")
    own_folder(tmp_path / "home", mode=0o750, user="nobody")
    (tmp_path / "home" / "file").write_text("x")
    (tmp_path / "home" / "link").symlink_to(outside)
    os.link(outside, tmp_path / "home" / "twice")
    own_tree(tmp_path / "home", user="nobody")
    own_file(tmp_path / "home" / "link", mode=0o777, user="nobody")
    own_file(tmp_path / "home" / "file", mode=0o640, user="nobody")
    assert outside.stat().st_uid == 0
    assert stat.S_IMODE(outside.stat().st_mode) != 0o777
    assert (tmp_path / "home" / "file").stat().st_uid == nobody
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o750


def test_flower_calls_nobody_and_a_proxy_is_set_in_both_cases() -> None:
    plain = flower_environment(Path("/f"))
    assert not [name for name in plain if name.lower() in ("http_proxy", "https_proxy")]
    told = flower_environment(Path("/f"), "http://proxy:3128")
    assert {name for name, value in told.items() if value == "http://proxy:3128"} == {
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
    }
    for environment in (plain, told):
        assert environment["NO_PROXY"] == environment["no_proxy"] == "localhost,127.0.0.1,::1"
        assert environment["FLWR_TELEMETRY_ENABLED"] == "0"
        assert environment["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        assert environment["FLWR_HOME"] == "/f"
