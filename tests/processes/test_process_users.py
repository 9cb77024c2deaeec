"""Users, rights and handed files: what root gives to processes, and what an ordinary user gets."""

from __future__ import annotations

import json
import os
import pwd
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.processes.supervising import SLEEPS, Running, python, spec, wait_for

from fedloop_core.errors import NotSetUp, ProcessFailed
from fedloop_core.processes import HandedFile, flower_environment
from fedloop_core.processes.handing import hand_over
from fedloop_core.processes.users import check_users, own_file, own_folder, own_tree

Supervise = Callable[..., Running]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes as other users")
TELLS = python(
    """
    import json, os, re
    status = open('/proc/self/status').read()
    field = lambda name: re.search(rf'^{name}:\\s*(.*)$', status, re.M).group(1)
    umask = os.umask(0)
    print(json.dumps({
        'ids': [os.getuid(), os.geteuid(), os.getgid(), os.getegid()], 'groups': os.getgroups(), 'umask': umask,
        'new_privileges': field('NoNewPrivs'), 'capabilities': field('CapEff'), 'leader': os.getsid(0) == os.getpid(),
    }), flush=True)
    import time; time.sleep(600)
    """
)


def _told(running: Running, name: str) -> dict[str, object]:
    wait_for(lambda: "new_privileges" in running.log(name))
    line = next(line for line in running.log(name).splitlines() if "new_privileges" in line)
    told: dict[str, object] = json.loads(line[line.index("{") :])
    return told


def test_a_process_gains_no_rights_and_its_files_are_private(supervise: Supervise, tmp_path: Path) -> None:
    told = _told(supervise(spec("own", TELLS, tmp_path)), "own")
    assert told["ids"] == [os.getuid(), os.geteuid(), os.getgid(), os.getegid()]
    assert (told["umask"], told["new_privileges"], told["leader"]) == (0o077, "1", True)


@needs_root
def test_root_starts_a_process_as_its_user(supervise: Supervise, tmp_path: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    told = _told(supervise(spec("other", TELLS, Path("/"), user="nobody")), "other")
    assert told["ids"] == [nobody.pw_uid, nobody.pw_uid, nobody.pw_gid, nobody.pw_gid]
    assert told["groups"] == [nobody.pw_gid]
    assert (told["umask"], told["new_privileges"], told["capabilities"]) == (0o077, "1", "0" * 16)


@needs_root
def test_a_process_of_another_user_dies_with_its_supervisor_too(supervise: Supervise) -> None:
    """The death signal is cleared by a change of user, so it must be set after it: read back what the kernel holds."""
    code = """
    import ctypes
    held = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(held), 0, 0, 0)
    print('signal', held.value, flush=True)
    import time; time.sleep(600)
    """
    running = supervise(spec("other", python(code), Path("/"), user="nobody"))
    wait_for(lambda: "signal 9" in running.log("other"))


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
