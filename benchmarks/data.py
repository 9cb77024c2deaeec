"""What it takes to check a site's table and to turn it into training tensors, against pyarrow's bare readers of the same files.

    python benchmarks/data.py [--short] [--json]

A table of 1,000,000 rows and 50 columns: 40 numbers of which one in fifty is missing, nine categories and a label, once as CSV and once
as Parquet. Every subject runs in a process of its own, with as many threads, three times; the least time counts.

- ours: ``RowReader`` over the source: rows of the wrong width, quotation marks, encoding, missing values, ranges, vocabularies and labels
  are checked, and inputs, labels and the fingerprint's rows are there as the trainer takes them.
- pyarrow: ``pyarrow.csv.read_csv`` with its own guesses of types, and ``pyarrow.parquet.read_table``: a table in memory, nothing checked.

Memory is the growth of the peak of the resident set (VmHWM) over what was resident before, beside the size of the tensors.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before imports

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq

_ROWS, _SHORT_ROWS = 1_000_000, 50_000
_NUMBERS, _CATEGORIES = 40, 9
_VALUES = ("alpha", "beta", "gamma", "delta")
_TIMES = 3
_CHUNK = 100_000


def write_tables(folder: Path, rows: int) -> None:
    """The same table as CSV and as Parquet."""
    random = np.random.default_rng(0)
    schema: pa.Schema | None = None
    with pa.OSFile(str(folder / "t.csv"), "wb") as text:
        parquet: pq.ParquetWriter | None = None
        for begin in range(0, rows, _CHUNK):
            part = _part(random, min(_CHUNK, rows - begin))
            options = arrow_csv.WriteOptions(include_header=begin == 0, quoting_style="needed")
            arrow_csv.write_csv(part, text, options)
            if parquet is None:
                schema = part.schema
                parquet = pq.ParquetWriter(folder / "t.parquet", schema)
            parquet.write_table(part)
        if parquet is not None:
            parquet.close()


def _part(random: np.random.Generator, rows: int) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for at in range(_NUMBERS):
        missing = random.random(rows) < 0.02
        columns[f"n{at}"] = pa.array(np.round(random.normal(size=rows) * 100, 3), mask=missing)
    for at in range(_CATEGORIES):
        columns[f"c{at}"] = pa.array(np.array(_VALUES)[random.integers(0, len(_VALUES), rows)])
    columns["y"] = pa.array(np.array(["no", "yes"])[random.integers(0, 2, rows)])
    return pa.table(columns)


def ours(path: Path) -> int:
    """Rows that fit."""
    from fedloop_clients.data.opening import read_file
    from fedloop_core.task import Task

    numbers = [
        {"kind": "numeric", "name": f"n{at}", "range": (-1000.0, 1000.0), "missing": "mean"} for at in range(_NUMBERS)
    ]
    categories = [{"kind": "categorical", "name": f"c{at}", "values": _VALUES} for at in range(_CATEGORIES)]
    task = Task.model_validate(
        {
            "format": 1,
            "name": "benchmark",
            "features": (*numbers, *categories),
            "label": {"kind": "classes", "name": "y", "classes": ("no", "yes")},
            "model": {"kind": "logistic"},
            "privacy": {"epsilon": 1.0},
        }
    )
    reading = read_file(path, task)
    if reading.skipped:
        raise SystemExit(f"{reading.skipped} rows were skipped: the benchmark is broken")
    return len(reading.rows)


def arrow(path: Path) -> int:
    """Rows of the table."""
    table = arrow_csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    return int(table.num_rows)


SUBJECTS: dict[str, Callable[[Path], int]] = {"ours": ours, "pyarrow": arrow}


def measure(subject: str, path: Path, threads: int) -> dict[str, float]:
    """Least seconds, and growth of the peak of memory in MiB; in this process."""
    pa.set_cpu_count(threads)
    pa.set_io_thread_count(threads)
    SUBJECTS[subject](_warm(path))
    before = _status("VmRSS")
    seconds: list[float] = []
    for _ in range(_TIMES):
        Path("/proc/self/clear_refs").write_text("5")
        begin = time.perf_counter()
        rows = SUBJECTS[subject](path)
        seconds.append(time.perf_counter() - begin)
        peak = _status("VmHWM")
    return {"seconds": min(seconds), "peak_mib": (peak - before) / 1024, "rows": rows}


def _warm(path: Path) -> Path:
    """A small table of the same kind, so that imports are not timed."""
    folder = path.parent / "warm"
    if not folder.exists():
        folder.mkdir()
        write_tables(folder, 1000)
    return folder / path.name


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1])


def compare(rows: int, threads: int) -> dict[str, Any]:
    """All subjects on both files."""
    found: dict[str, Any] = {"rows": rows, "columns": _NUMBERS + _CATEGORIES + 1, "threads": threads}
    found["tensors_mib"] = rows * (_NUMBERS * 4 + _CATEGORIES * 8 + 8) / 2**20
    with TemporaryDirectory() as folder:
        write_tables(Path(folder), rows)
        for kind in ("csv", "parquet"):
            path = Path(folder) / f"t.{kind}"
            told = {subject: _in_a_process(subject, path, threads) for subject in SUBJECTS}
            found[kind] = told | {
                "file_mib": path.stat().st_size / 2**20,
                "ratio": told["ours"]["seconds"] / told["pyarrow"]["seconds"],
            }
    found["load"] = os.getloadavg()[0]
    return found


def _in_a_process(subject: str, path: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--subject", subject, "--file", str(path), "--threads", str(threads)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    told: dict[str, float] = json.loads(ran.stdout)
    return told


def main() -> None:
    """Prints the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help=f"{_SHORT_ROWS} rows")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--subject", choices=SUBJECTS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject:
        print(json.dumps(measure(options.subject, options.file, options.threads)))
        return
    found = compare(_SHORT_ROWS if options.short else _ROWS, options.threads)
    if options.json:
        print(json.dumps(found, indent=1))
        return
    print(
        f"{found['rows']} rows, {found['columns']} columns, {threads_words(found)}, tensors {found['tensors_mib']:.0f} MiB"
    )
    for kind in ("csv", "parquet"):
        for subject in SUBJECTS:
            told = found[kind][subject]
            print(f"{kind:8} {subject:8} {told['seconds']:7.2f} s  peak {told['peak_mib']:7.0f} MiB")
        print(f"{kind:8} ours / pyarrow {found[kind]['ratio']:.2f} (at most 3)")


def threads_words(found: dict[str, Any]) -> str:
    """How many threads, and how busy the machine was."""
    return f"{found['threads']} threads, load {found['load']:.1f}"


if __name__ == "__main__":
    main()
