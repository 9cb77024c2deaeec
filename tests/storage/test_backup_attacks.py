"""Archives that are damaged, foreign or made to harm: each is refused before anything is written."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.backup_sides import SIDES, Side

from fedloop_core.backup import Manifest, ManifestFile
from fedloop_core.errors import BackupRefused, FedloopError

Members = list[tuple[tarfile.TarInfo, bytes]]
Change = Callable[[Members, Side], Members]


@pytest.fixture(scope="module", params=SIDES, ids=[side.noun for side in SIDES])
def side(request: pytest.FixtureRequest) -> Side:
    made: Side = request.param
    return made


@pytest.fixture(scope="module")
def good(side: Side, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("backup")
    side.back_up(side.make(folder / "home"), folder / "good.tar", unix=5)
    return folder / "good.tar"


def read(archive: Path) -> Members:
    with tarfile.open(archive) as opened:
        return [(info, (opened.extractfile(info) or io.BytesIO()).read()) for info in opened]


def write(target: Path, members: Members, form: int = tarfile.USTAR_FORMAT) -> None:
    with tarfile.open(target, "w", format=form) as archive:
        for info, content in members:
            archive.addfile(info, io.BytesIO(content))


def member(path: str, content: bytes = b"x", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(path)
    info.size = len(content)
    for name, value in fields.items():
        setattr(info, name, value)
    return info, content


def with_manifest(change: Callable[[Manifest], Manifest]) -> Change:
    """The archive with another manifest, sealed as somebody with the code would."""

    def changed(members: Members, side: Side) -> Members:
        *files, (_, content) = members
        return [*files, member("manifest.json", change(Manifest.from_bytes("", content)).sealed().to_bytes())]

    return changed


def smuggled(path: str, **fields: Any) -> Change:
    """The archive with one more file, which its manifest names; ``DIR`` and ``FILE`` are what each side has."""

    def changed(members: Members, side: Side) -> Members:
        where = path.replace("DIR", side.folder).replace("FILE", side.file)
        *files, (_, content) = members
        sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        more = ManifestFile(path=where, length=1, sha256=sha256, mode=0o644)
        manifest = Manifest.from_bytes("", content)
        manifest = manifest.model_copy(update={"files": (*manifest.files, more)}).sealed()
        return [*files, member(where, **fields), member("manifest.json", manifest.to_bytes())]

    return changed


def first_altered(members: Members, _: Side) -> Members:
    info, content = members[-2]
    return [*members[:-2], (info, bytes([content[0] ^ 1]) + content[1:]), members[-1]]


ATTACKS: list[tuple[str, Change, str]] = [
    ("an altered file", first_altered, "is damaged"),
    ("a removed file", lambda m, _: m[1:], "does not hold the files"),
    ("a file that is not named", lambda m, side: [member(f"{side.folder}/x"), *m], "does not hold the files"),
    ("files in another order", lambda m, _: [m[1], m[0], *m[2:]], "does not hold the files"),
    ("no manifest", lambda m, _: m[:-1], "no manifest"),
    ("nothing", lambda m, _: [], "no manifest"),
    ("a file after the manifest", lambda m, _: [*m, member("runs/x")], "stands after the end"),
    ("an altered manifest", lambda m, _: [*m[:-1], member("manifest.json", m[-1][1].replace(b'"keys":true', b'"keys":false'))],
     "was altered or damaged"),
    ("a manifest that is no JSON", lambda m, _: [*m[:-1], member("manifest.json", b"{")], "is not one that this release"),
    ("a newer form", lambda m, _: [*m[:-1], member("manifest.json", m[-1][1].replace(b'"format":1', b'"format":2'))],
     "is not one that this release"),
    ("another product's", lambda m, side: [*m[:-1], member("manifest.json", m[-1][1].replace(f"fedloop-{side.noun}".encode(), b"other"))],
     "is not one that this release"),
    ("another audit log", with_manifest(lambda m: m.model_copy(update={"audit_sequence": 7})), "does not end where"),
    ("a path out of the home", smuggled("../evil"), "is no path"),
    ("a path out of the home in the middle", smuggled("DIR/../../evil"), "is no path"),
    ("an absolute path", smuggled("/tmp/evil"), "is no path"),  # noqa: S108
    ("an empty part", smuggled("DIR//evil"), "is no path"),
    ("a dot", smuggled("DIR/./evil"), "is no path"),
    ("a backslash", smuggled("DIR\\evil"), "is no path"),
    ("a line end", smuggled("DIR/e\nvil"), "is no path"),
    ("a very deep path", smuggled("/".join("a" * 20)), "is no path"),
    ("a folder that backups never have", smuggled("flower/superexec/apps/evil"), "no backup holds"),
    ("a lock", smuggled("DIR/driver.lock"), "no backup holds"),
    ("a path twice", smuggled("audit.jsonl"), "does not hold the files"),
    ("a file in a file", smuggled("FILE/evil"), "lies in another file"),
    ("a symbolic link", smuggled("DIR/evil", type=tarfile.SYMTYPE, linkname="/etc/passwd", size=0), "is a symbolic link"),
    ("a hard link", smuggled("DIR/evil", type=tarfile.LNKTYPE, linkname="/etc/passwd", size=0), "is a hard link"),
    ("a device", smuggled("DIR/evil", type=tarfile.CHRTYPE, size=0), "is a device"),
    ("a pipe", smuggled("DIR/evil", type=tarfile.FIFOTYPE, size=0), "is a pipe"),
    ("a folder", smuggled("DIR/evil", type=tarfile.DIRTYPE, size=0), "is a folder"),
    ("a sparse file", smuggled("DIR/evil", type=tarfile.GNUTYPE_SPARSE), "is a special entry"),
    ("an extension header", smuggled("DIR/evil", pax_headers={"path": "../evil"}), "is a special entry"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in ATTACKS], ids=[row[0] for row in ATTACKS])
def test_it_is_refused_and_nothing_is_written(
    change: Change, sentence: str, side: Side, good: Path, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.tar"
    members = change(read(good), side)
    write(bad, members, tarfile.PAX_FORMAT if any(info.pax_headers for info, _ in members) else tarfile.USTAR_FORMAT)
    with pytest.raises(BackupRefused, match=sentence):
        side.restore(bad, tmp_path / "new" / "home", actor="operator:test")
    assert sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*")) in (["bad.tar"], ["bad.tar", "new"])


def huge(content: bytes) -> bytes:
    """The first file says that it has an exabyte."""
    info = tarfile.TarInfo.frombuf(content[:512], "utf-8", "strict")
    info.size = 1 << 60
    return info.tobuf(tarfile.GNU_FORMAT) + content[512:]


RAW: list[tuple[str, Callable[[bytes], bytes], str]] = [
    ("an empty file", lambda c: b"", "is no backup"),
    ("junk", lambda c: b"no archive at all" * 100, "is no backup"),
    ("half of it", lambda c: c[: len(c) // 2], "cut short"),
    ("all but its last file's end", lambda c: c.rstrip(b"\0")[:-10], "cut short"),
    ("no end mark", lambda c: c.rstrip(b"\0") + bytes(-len(c.rstrip(b"\0")) % 512), "is no backup, or is damaged or cut short"),
    ("a header with a wrong sum", lambda c: b"X" + c[1:], "is no backup, or is damaged"),
    ("a file that says it is larger than the archive", huge, "is cut short in"),
    ("a compressed archive", lambda c: b"\x1f\x8b" + c, "is no backup"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "sentence"), [row[1:] for row in RAW], ids=[row[0] for row in RAW])
def test_bytes_that_are_no_backup_are_refused(
    change: Callable[[bytes], bytes], sentence: str, side: Side, good: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.tar").write_bytes(change(good.read_bytes()))
    with pytest.raises(BackupRefused, match=sentence):
        side.restore(tmp_path / "bad.tar", tmp_path / "new", actor="operator:test")
    assert [p.name for p in tmp_path.iterdir()] == ["bad.tar"]


def test_a_disk_that_is_too_small_is_told_before_anything_is_written(
    side: Side, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage)
    with pytest.raises(BackupRefused, match="too large for this disk"):
        side.restore(good, tmp_path / "new", actor="operator:test")
    assert list(tmp_path.iterdir()) == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_flipped_byte_goes_unnoticed_where_it_matters(
    data: st.DataObject, side: Side, good: Path, tmp_path: Path
) -> None:
    """A byte that differs is refused, or stands where nothing is read: in padding or in a header's unused fields."""
    content = bytearray(good.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    bad, new = tmp_path / "flipped.tar", tmp_path / f"new-{os.urandom(4).hex()}"
    bad.write_bytes(content)
    try:
        side.restore(bad, new, actor="operator:test")
    except FedloopError:
        assert not new.exists()
        return
    whole = tmp_path / f"whole-{os.urandom(4).hex()}"
    side.restore(good, whole, actor="operator:test")
    for name in side.same:
        assert (new / name).read_bytes() == (whole / name).read_bytes()
