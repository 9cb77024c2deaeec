"""What a deployment takes: memory of each process, disk, traffic and times, by number of sites and size of model.

    python benchmarks/sizing.py [--short] [--json]

Each case is a whole deployment from empty folders (``deployment.py``): one coordinator and its sites as real processes on this
machine, all as one user, over TLS on loopback, on the invented tables of ``examples/own-data`` (360 rows a site), private, with
export. Cases: 1 and 3 sites, each with a logistic regression (11 parameters) and with a network of about a million parameters
(4 MB). ``--short`` takes one site, the small model and two rounds without export.

Memory is read from /proc/PID/smaps_rollup twice a second, of every process that ``supervisor.json`` names together with its
children, and of the supervisor. ``pss`` counts a page that n processes share as 1/n of a page, so that sums are right; ``rss``
counts it in each. ``idle`` is the last reading before the run, ``peak`` the largest during it, both in MiB. The peaks of different
processes need not fall together; ``peak_together`` is the largest sum of pss over one whole home at one moment.

Disk is in bytes after the run, by first folder or file of each home; a sparse file counts what it occupies. Traffic is what the
run's journal counted (messages and arrays) and what SuperLink counted (Flower's messages around them). ``load`` is the
machine's load average when a case began: seconds mean nothing on a busy machine, memory and bytes do.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deployment import Deployment, SiteSetup

EXAMPLE = Path(__file__).parents[1] / "examples" / "own-data"
SITES = ("north", "south", "west")
MODELS = {"small": 'kind = "logistic"', "large": 'kind = "mlp"\nhidden = [1000, 1000]'}
ROUNDS = 5
_SAMPLE_SECONDS = 0.5
_MIB = 2**20


@dataclass
class Memory:
    """Of one process and its children, in MiB."""

    idle_pss: float = 0.0
    peak_pss: float = 0.0
    peak_rss: float = 0.0


@dataclass
class Home:
    """One coordinator or site: memory by process, disk by first folder or file."""

    processes: dict[str, Memory] = field(default_factory=dict)
    idle_together: float = 0.0
    peak_together: float = 0.0
    disk: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """One deployment, measured. Seconds; bytes over the whole run and all sites."""

    sites: int
    model: str
    model_bytes: int
    rounds: int
    load: float
    up_seconds: float
    join_and_up_seconds: float
    run_seconds: float
    round_seconds: float
    first_round_seconds: float
    bytes_to_sites: int
    bytes_back: int
    superlink_bytes_in: int
    superlink_bytes_out: int
    coordinator: Home
    site: Home


def children() -> dict[int, list[int]]:
    """The processes of this machine by their parent."""
    found: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            found[int(fields[1])].append(int(entry.name))
    return found


def memory_of(pid: int, by_parent: dict[int, list[int]], apart: frozenset[int]) -> tuple[float, float]:
    """Pss and rss of a process and its children, in MiB, without those that are counted on their own."""
    pss = rss = 0.0
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        text = ""
    for key, kib in re.findall(r"^(Pss|Rss):\s+(\d+) kB", text, re.MULTILINE):
        pss += int(kib) / 1024 if key == "Pss" else 0.0
        rss += int(kib) / 1024 if key == "Rss" else 0.0
    for child in by_parent.get(pid, ()):
        if child not in apart:
            more = memory_of(child, by_parent, apart)
            pss, rss = pss + more[0], rss + more[1]
    return pss, rss


class Watcher:
    """Samples the memory of all homes until it is closed."""

    def __init__(self, deployment: Deployment, names: Sequence[str]) -> None:
        self._deployment = deployment
        self.homes = {name: Home() for name in names}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def idle(self) -> None:
        """Takes the readings of a deployment that has nothing to do, and begins to look for peaks."""
        for name, home in self.homes.items():
            readings = self._read(name)
            home.processes = {process: Memory(pss, pss, rss) for process, (pss, rss) in readings.items()}
            home.idle_together = sum(pss for pss, _ in readings.values())
        self._thread.start()

    def close(self) -> None:
        """Ends the sampling."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_SECONDS):
            for name, home in self.homes.items():
                readings = self._read(name)
                for process, (pss, rss) in readings.items():
                    memory = home.processes.setdefault(process, Memory())
                    memory.peak_pss = max(memory.peak_pss, pss)
                    memory.peak_rss = max(memory.peak_rss, rss)
                home.peak_together = max(home.peak_together, sum(pss for pss, _ in readings.values()))

    def _read(self, name: str) -> dict[str, tuple[float, float]]:
        supervisor = self._deployment.running[name].pid
        pids = {"supervisor": supervisor, **self._deployment.processes(name)}
        by_parent, apart = children(), frozenset(pids.values())
        return {process: memory_of(pid, by_parent, apart) for process, pid in pids.items()}


def disk_of(folder: Path) -> dict[str, int]:
    """Bytes occupied by each first folder or file of a home."""
    return {entry.name: sum(_occupied(path) for path in _files(entry)) for entry in sorted(folder.iterdir())}


def _files(entry: Path) -> Iterator[Path]:
    yield from (path for path in (entry.rglob("*") if entry.is_dir() else (entry,)) if path.is_file())


def _occupied(path: Path) -> int:
    return path.lstat().st_blocks * 512


def task_file(folder: Path, model: str, rounds: int) -> Path:
    """The example's task with another model and number of rounds."""
    text = (EXAMPLE / "task.toml").read_text(encoding="utf-8")
    text = re.sub(r'kind = "mlp"\nhidden = \[32\]', MODELS[model], text)
    text = re.sub(r"count = 12\nevaluate_every = 4", f"count = {rounds}\nevaluate_every = {rounds}", text)
    (folder / "task.toml").write_text(text, encoding="utf-8")
    return folder / "task.toml"


def site_setup(folder: Path, name: str) -> SiteSetup:
    """A site with a table of the example and more budget than any case spends."""
    budget = "epsilon = 1000.0\ndelta = 1e-4\n"
    return SiteSetup(
        name, f'[data]\nfile = "{folder}/{name}.csv"\n\n[budget.training]\n{budget}\n[budget.evaluation]\n{budget}'
    )


def measure(folder: Path, sites: int, model: str, rounds: int, *, export: bool) -> Case:
    """One case from empty folders, its processes ended."""
    load = os.getloadavg()[0]
    subprocess.run([sys.executable, EXAMPLE / "make_tables.py", folder], check=True)
    task, names = task_file(folder, model, rounds), SITES[:sites]
    deployment = Deployment(folder)
    try:
        began = time.monotonic()
        deployment.begin()
        up = time.monotonic()
        for name in names:
            deployment.add_site(site_setup(folder, name))
        joined = time.monotonic()
        watcher = Watcher(deployment, ("coordinator", *names))
        watcher.idle()
        run = deployment.start_run(str(task), *([] if export else ["--no-export"]))
        ended = deployment.wait_for_end(run, 900.0)
        watcher.close()
        if ended != "run-finished":
            raise RuntimeError(f"{run}: {deployment.events(run, ended)}")
        shown = deployment.show(run)
    finally:
        deployment.close()
    planned = json.loads(
        deployment.fedloop("run", "start", str(task), "--home", str(deployment.home), "--dry-run", "--json")
    )
    homes = watcher.homes
    homes["coordinator"].disk = disk_of(deployment.home)
    homes[names[0]].disk = disk_of(deployment.site_home(names[0]))
    seconds = [float(r["seconds"]) for r in shown["rounds"]]
    return Case(
        sites=sites,
        model=model,
        model_bytes=int(planned["model_bytes"]),
        rounds=rounds,
        load=load,
        up_seconds=up - began,
        join_and_up_seconds=(joined - up) / sites,
        run_seconds=float(shown["seconds"]),
        round_seconds=statistics.median(seconds[1:]),
        first_round_seconds=seconds[0],
        bytes_to_sites=int(shown["bytes_out"]),
        bytes_back=int(shown["bytes_in"]),
        superlink_bytes_in=int(shown["superlink_bytes_in"]),
        superlink_bytes_out=int(shown["superlink_bytes_out"]),
        coordinator=homes["coordinator"],
        site=homes[names[0]],
    )


def told(case: Case) -> Iterator[str]:
    """A case as lines of text."""
    yield f"{case.sites} sites, {case.model} model ({case.model_bytes} bytes), {case.rounds} rounds; load {case.load:.1f}"
    yield f"  coordinator up {case.up_seconds:.1f} s; join and up {case.join_and_up_seconds:.1f} s a site"
    yield f"  run {case.run_seconds:.1f} s; first round {case.first_round_seconds:.2f} s, others {case.round_seconds:.2f} s"
    yield f"  to sites {case.bytes_to_sites}, back {case.bytes_back} bytes; SuperLink in {case.superlink_bytes_in}, out {case.superlink_bytes_out}"
    for name, home in (("coordinator", case.coordinator), ("site", case.site)):
        yield f"  {name}: together {home.idle_together:.0f} MiB idle, {home.peak_together:.0f} MiB at most (pss)"
        for process, memory in home.processes.items():
            yield f"    {process:11} idle {memory.idle_pss:6.0f}  peak {memory.peak_pss:6.0f}  rss {memory.peak_rss:6.0f}"
        disk = ", ".join(f"{entry} {size / 1024:.0f}" for entry, size in home.disk.items() if size)
        yield f"    disk {sum(home.disk.values()) / _MIB:.1f} MiB; in KiB: {disk}"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="one site, the small model, two rounds, no export")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the deployment's processes end too
    chosen = [(1, "small")] if arguments.short else [(sites, model) for model in MODELS for sites in (1, 3)]
    cases = []
    for sites, model in chosen:
        with tempfile.TemporaryDirectory(prefix="sizing-") as folder:
            rounds = 2 if arguments.short else ROUNDS
            cases.append(measure(Path(folder), sites, model, rounds, export=not arguments.short))
        if not arguments.json:
            print("\n".join(told(cases[-1])), flush=True)
    if arguments.json:
        machine = {"platform": platform.platform(), "cpus": os.cpu_count(), "python": platform.python_version()}
        print(json.dumps({"machine": machine, "cases": [asdict(case) for case in cases]}, indent=2))


if __name__ == "__main__":
    main()
