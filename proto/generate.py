"""Writes the Python code of every .proto file, or checks that what is committed is what would be written.

Usage: ``python proto/generate.py [--check]``.
"""

from __future__ import annotations

import argparse
import filecmp
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent


def generate(destination: Path) -> list[Path]:
    """Runs protoc over all .proto files; returns the files written, relative to ``destination``."""
    from grpc_tools import protoc

    sources = sorted(ROOT.glob("fedloop_proto/**/*.proto"))
    include = Path(protoc.__file__).parent / "_proto"
    for source in sources:
        arguments = [
            "protoc",
            f"-I{ROOT}",
            f"-I{include}",
            f"--python_out={destination}",
            f"--pyi_out={destination}",
        ]
        if "service " in source.read_text():
            arguments.append(f"--grpc_python_out={destination}")
        if protoc.main([*arguments, str(source)]) != 0:
            sys.exit(f"protoc failed on {source.relative_to(ROOT)}")
    return sorted(path.relative_to(destination) for path in destination.glob("fedloop_proto/**/*_pb2*.py*"))


def check() -> int:
    """Compares with a fresh generation; prints each stale or missing file."""
    with tempfile.TemporaryDirectory() as folder:
        fresh = generate(Path(folder))
        stale = [
            path
            for path in fresh
            if not (ROOT / path).is_file() or not filecmp.cmp(ROOT / path, Path(folder) / path, shallow=False)
        ]
        known = set(fresh)
        orphans = [
            path.relative_to(ROOT)
            for path in ROOT.glob("fedloop_proto/**/*_pb2*.py*")
            if path.suffix in {".py", ".pyi"} and path.relative_to(ROOT) not in known
        ]
    for path in stale:
        sys.stderr.write(f"proto/{path} is not what protoc writes: run `make proto`\n")
    for path in orphans:
        sys.stderr.write(f"proto/{path} belongs to no .proto file: delete it\n")
    return 1 if stale or orphans else 0


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when something is stale")
    if parser.parse_args().check:
        return check()
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
