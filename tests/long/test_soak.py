"""Load a command as nobody does by hand, and see whether it stays as it began.

    pytest tests/long/test_soak.py -k steps         100,000 steps of a tiny model
    ... -k sweep            2,000 runs of a sweep in one folder, then its report
    ... -k table            a table of 5 million rows: finetune, evaluate
    ... -k predict          2 GB through a pipe
    ... -k labels           10,000 labels: finetune, evaluate, inspect, predict

    [--load N] a smaller or larger load

A line at the end for each command: how long it took, its largest memory, and, of work that can
be counted, memory, open files and CPU time for each unit in the second tenth of the work and in
the last one. Memory is that of all processes of a command, without mapped files, which the system
takes back as it likes; CPU time, since a machine has other work, too, and judged against that of a
fixed piece of work, since other work slows a core down.

Flat is: in the last tenth at most 5 % and 16 MiB more memory than in the second, at most two more
open files, and at most a quarter more CPU time for each unit. Where a command has no units, it is
run on a tenth of the load, too: it may take 13 times the CPU time for all of it, and each row of a
table 1,000 bytes of memory on top, each label or run 128 KiB.
"""

import contextlib
import csv
import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.timeout(0)

MEMORY_SHARE, MEMORY_BYTES = 0.05, 16 * 2**20
MORE_FILES = 2
MORE_CPU = 1.25
MORE_TIME = 13.0
"""What the last tenth may need beyond the second; what ten times the load may take: see above."""

SECONDS_BETWEEN_LOOKS = 0.5
TICKS = os.sysconf("SC_CLK_TCK")

SHAPE = (
    "model=tiny", "model.width=16", "model.heads=2", "model.depth=1", "model.feedforward=32",
    "model.positions=32", "tokenizer.size=300", "data.length=16",
)  # fmt: skip
THINGS = ("bridge", "market", "harbour", "garden", "tower")
CITIES = ("Lima", "Oslo", "Quito", "Riga", "Turin", "Vaduz")


# ----------------------------------------------------------------------------------- watching


@dataclass(frozen=True)
class Look:
    """What a command and its processes hold at a moment."""

    done: float
    memory: int
    files: int
    cpu: float
    yardstick: float


@dataclass
class Watched:
    """A command that has ended."""

    words: tuple[str, ...]
    looks: list[Look] = field(default_factory=list)
    seconds: float = 0.0
    out: str = ""

    @property
    def peak(self) -> int:
        """The largest memory that was seen, in bytes."""
        return max((look.memory for look in self.looks), default=0)

    def tenth(self, number: int) -> list[Look]:
        """Return the looks at a tenth of the work, counted from 0."""
        whole = self.looks[-1].done
        return [look for look in self.looks if number <= 10 * look.done / whole <= number + 1]


@dataclass
class Folder:
    """Where everything is made, and how commands are started there."""

    path: Path

    def transfer(
        self,
        *words: str,
        done: Callable[[], float] = lambda: 0.0,
        stdin: Callable[[IO[bytes]], object] | None = None,
        stdout: Callable[[IO[bytes]], object] | None = None,
    ) -> Watched:
        """Run a command and look at it now and then.

        Raises:
            RuntimeError: It did not end well.
        """
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "TRANSFER_CACHE": str(self.path / "cache"),
            "TRANSFER_DATA": str(self.path / "data"),
        }  # fmt: skip
        watched, began = Watched(words), time.monotonic()
        with (self.path / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "transfer_cli", *words],
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=log if stdout is None else subprocess.PIPE,
                stderr=log,
                env=environment,
            )
        ends = [(stdin, process.stdin), (stdout, process.stdout)]
        threads = [threading.Thread(target=to, args=(pipe,)) for to, pipe in ends if to and pipe]
        for thread in threads:
            thread.start()
        try:
            while process.poll() is None:
                look = look_at(process.pid, done())
                if look is not None:
                    watched.looks.append(look)
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            process.kill()  # if it is not yet over
            process.wait()
        for thread in threads:
            thread.join()
        watched.seconds = time.monotonic() - began
        if process.returncode != 0:
            last = (self.path / "log.txt").read_text(encoding="utf-8", errors="replace")
            text = "\n".join(last.splitlines()[-5:])
            raise RuntimeError(f"{' '.join(words)}\nexit code {process.returncode}: {text}")
        return watched

    def pretrained(self) -> str:
        """Return the override that starts from a tiny run, made now if it is missing."""
        run = self.path / "base"
        if not run.exists():
            self.transfer("pretrain", *self.text(), "loop.steps=20", f"run.dir={run}")
        return f"init_from={run}"

    def text(self) -> tuple[str, ...]:
        """Return the overrides of a tiny model of a text of 80 lines."""
        file = self.path / "text.txt"
        if not file.exists():
            file.write_text("".join(f"{sentence(n)}\n" for n in range(80)), encoding="utf-8")
        where = ("data=text", f"data.train={file}", "data.validation_share=0.1")
        return (*SHAPE, *where, "device=cpu", "loop.batch=4")


def sentence(number: int) -> str:
    """Return a sentence; there are 30 but for their number."""
    return f"The {THINGS[number % 5]} of {CITIES[number % 6]} is {number} years older ; who cares ?"


def look_at(process: int, done: float) -> Look | None:
    """Return what a process and all below it hold now; None if it has just ended."""
    memory, files, ticks = 0, 0, 0
    for member in below(process):
        with contextlib.suppress(OSError, LookupError, ValueError):  # it may just have ended
            memory += memory_of(member)
            files += len(os.listdir(f"/proc/{member}/fd"))  # noqa: PTH208 - counted, no paths are read
            # After the name, which may hold anything: utime, stime, and both of its dead children.
            numbers = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, numbers[11:15]))
    return Look(done, memory, files, ticks / TICKS, yardstick()) if memory else None


def yardstick() -> float:
    """Return the CPU seconds of a piece of work that is always the same."""
    began = time.thread_time()
    sorted(number * 7919 % 10007 for number in range(5000))
    return time.thread_time() - began


def memory_of(process: int) -> int:
    """Return the bytes that a process holds beside mapped files."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines()
    )
    return sum(1024 * int(lines[name].split()[0]) for name in ("RssAnon", "RssShmem"))


def below(process: int) -> Iterator[int]:
    """Yield a process and all that it started, directly or not."""
    yield process
    with contextlib.suppress(OSError):
        for tasks in Path(f"/proc/{process}/task").iterdir():
            for child in (tasks / "children").read_text().split():
                yield from below(int(child))


# ------------------------------------------------------------------------------------ judging


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    size: str
    seconds: float
    peak: int
    found: str
    faults: tuple[str, ...] = ()


def over_time(name: str, unit: str, watched: Watched) -> Row:
    """Compare the last tenth of the work with the second."""
    # The first one holds what a process takes once: what it imports late, and its first batches.
    early, late = watched.tenth(1), watched.tenth(9)
    size = f"{watched.looks[-1].done:,.0f} {unit}s"
    if len(early) < 2 or len(late) < 2:
        return Row(name, size, watched.seconds, watched.peak, "too short to be judged", ("short",))
    memory = [max(look.memory for look in looks) for looks in (early, late)]
    files = [max(look.files for look in looks) for looks in (early, late)]
    cpu = [
        (looks[-1].cpu - looks[0].cpu) / max(1e-9, looks[-1].done - looks[0].done)
        for looks in (early, late)
    ]
    slower = slowed(early, late)
    faults = []
    if memory[1] > memory[0] * (1 + MEMORY_SHARE) + MEMORY_BYTES:
        faults.append("memory grows")
    if files[1] > files[0] + MORE_FILES:
        faults.append("open files grow")
    if cpu[1] > cpu[0] * MORE_CPU * slower:
        faults.append("time grows")
    growth = (
        f"{mebibytes(memory[0])} -> {mebibytes(memory[1])}, {files[0]} -> {files[1]} files, "
        f"{shown(cpu[0])} -> {shown(cpu[1])} a {unit} (x {slower:.2f} for a yardstick)"
    )
    return Row(name, size, watched.seconds, watched.peak, growth, tuple(faults))


def over_size(name: str, unit: str, runs: Sequence[tuple[int, Watched]], most_bytes: float) -> Row:
    """Compare a command on all of the load with the same on a tenth."""
    (few, small), (many, large) = runs
    bytes_each = (large.peak - small.peak) / (many - few)
    cpu = [watched.looks[-1].cpu for watched in (small, large)]
    slower = slowed(small.looks, large.looks)
    faults = []
    if cpu[1] > MORE_TIME / 10 * many / few * cpu[0] * slower:
        faults.append("time grows faster than the load")
    if bytes_each > most_bytes:
        faults.append("memory grows")
    growth = (
        f"{cpu[0]:.0f} s -> {cpu[1]:.0f} s of CPU for {many / few:.0f} times the load "
        f"(x {slower:.2f} for a yardstick), {bytes_each:,.0f} bytes a {unit}"
    )
    return Row(name, f"{many:,} {unit}s", large.seconds, large.peak, growth, tuple(faults))


def slowed(before: Sequence[Look], after: Sequence[Look]) -> float:
    """Return how many times as long the machine took for the same work later."""
    first, last = (statistics.median(look.yardstick for look in looks) for looks in (before, after))
    return last / first


def mebibytes(size: float) -> str:
    """Return a number of bytes as people read it."""
    return f"{size / 2**20:,.0f} MiB"


def shown(seconds: float) -> str:
    """Return seconds as people read them."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e6:.2f} us"


# -------------------------------------------------------------------------------------- parts


def steps(folder: Folder, size: int) -> Iterator[Row]:
    """Train a tiny model for so many steps, with records, evaluations and checkpoints."""
    run = folder.path / "long"
    watched = folder.transfer(
        "pretrain", *folder.text(), f"loop.steps={size}", f"run.dir={run}", "loop.log_every=10",
        f"loop.evaluate_every={max(1, size // 100)} steps",
        f"checkpoint.every={max(1, size // 100)} steps",
        done=lambda: last_step(run / "metrics.jsonl"),
    )  # fmt: skip
    yield over_time("pretrain", "step", watched)


def last_step(file: Path) -> int:
    """Return the last step in a file of records."""
    with contextlib.suppress(OSError, ValueError, KeyError, IndexError), file.open("rb") as records:
        records.seek(max(0, file.stat().st_size - 4096))
        return int(json.loads(records.read().splitlines()[-1])["step"])
    return 0


def sweep(folder: Folder, size: int) -> Iterator[Row]:
    """Run a sweep of so many jobs in one process, some more in processes; then look at it."""
    path = folder.path / "sweep"
    words = ("pretrain", "-m", *folder.text(), "loop.steps=2", f"run.dir={path}")

    def num_done() -> int:
        return sum(entry.name.isdigit() for entry in path.iterdir()) if path.exists() else 0

    watched = folder.transfer(
        *words, f"seed=range({size})", "sweep.isolate=false", done=num_done,
    )  # fmt: skip
    yield over_time("sweep", "job", watched)
    more = folder.transfer(
        *words, f"seed=range({size},{size + 4})", "sweep.workers=2", "resume=auto",
    )  # fmt: skip
    yield Row("4 more jobs", "2 workers", more.seconds, more.peak, "")
    tenth = folder.path / "tenth"
    part(path, tenth, size // 10)
    for name, beyond in (
        ("report", ()),
        ("report --html", ("--html", str(folder.path / "p.html"))),
    ):
        runs = [
            (many, folder.transfer("report", str(where), *beyond))
            for many, where in ((size // 10, tenth), (size, path))
        ]
        yield over_size(name, "run", runs, 2**17)


def part(sweep_dir: Path, other: Path, jobs: int) -> None:
    """Copy the first jobs of a sweep, by links."""
    other.mkdir()
    for number in range(jobs):
        shutil.copytree(sweep_dir / str(number), other / str(number), copy_function=os.link)
        os.link(sweep_dir / f"job-{number}.json", other / f"job-{number}.json")
    os.link(sweep_dir / "sweep.json", other / "sweep.json")


def table(folder: Folder, size: int) -> Iterator[Row]:
    """Fine-tune for a few steps on a table of so many rows, and score all of them."""
    base, trained, scored = folder.pretrained(), [], []
    for many in (size // 10, size):
        file, run = folder.path / f"rows-{many}.csv", folder.path / f"of-{many}"
        write_table(file, many, THINGS)
        words = ("finetune", base, "device=cpu", "data=table", f"data.train={file}")
        trained.append(
            (many, folder.transfer(*words, "loop.steps=100", "data.validation_share=0.001",
                                   "loop.batch=64", f"run.dir={run}"))
        )  # fmt: skip
        last = folder.transfer("evaluate", f"run={run}", "split=train", "device=cpu", "batch=1024")
        scored.append((many, last))
    yield over_size("finetune", "row", trained, 1000)
    yield over_size("evaluate", "row", scored, 1000)


def write_table(file: Path, rows: int, labels: Sequence[str]) -> None:
    """Write a table of texts; the label is one of its words, or drawn in turn."""
    with file.open("w", encoding="utf-8", newline="") as out:
        write = csv.writer(out).writerow
        write(["text", "label"])
        for number in range(rows):
            write([sentence(number), labels[number % len(labels)]])


def predict(folder: Folder, size: int) -> Iterator[Row]:
    """Label so many bytes of lines that come through a pipe, and count the answers."""
    run, counted = _finetuned(folder, 60, THINGS), {"fed": 0, "lines": 0, "answers": 0}
    lines = "".join(f"{sentence(number)}\n" for number in range(1000)).encode()

    def feed(pipe: IO[bytes]) -> None:
        with contextlib.suppress(BrokenPipeError), pipe:
            while counted["fed"] < size:
                pipe.write(lines)
                counted["fed"] += len(lines)
                counted["lines"] += 1000

    def count(pipe: IO[bytes]) -> None:
        while chunk := pipe.read(2**16):
            counted["answers"] += chunk.count(b"\n")

    watched = folder.transfer(
        "predict", f"run={run}", "device=cpu", "batch=256", stdin=feed, stdout=count,
        done=lambda: counted["fed"] / 2**20,
    )  # fmt: skip
    row = over_time("predict", "MiB", watched)
    lost = (f"{counted['answers']} answers",) if counted["answers"] != counted["lines"] else ()
    yield Row(row.name, row.size, row.seconds, row.peak, row.found, row.faults + lost)


def labels(folder: Folder, size: int) -> Iterator[Row]:
    """Use so many labels, each of them in three rows."""
    commands: dict[str, list[tuple[int, Watched]]] = {}
    for many in (size // 10, size):
        names = [f"label-{number}" for number in range(many)]
        run = _finetuned(folder, many, names, watched := [])
        file = folder.path / f"labels-{many}.csv"
        texts = folder.path / "texts.txt"
        texts.write_text("".join(f"{sentence(n)}\n" for n in range(500)), encoding="utf-8")
        page, answers = folder.path / "page.html", folder.path / "answers.jsonl"
        for words in (
            ("evaluate", f"run={run}", "split=validation", "device=cpu"),
            ("inspect", "data=table", f"data.train={file}"),
            ("predict", f"run={run}", "device=cpu", f"input={texts}", f"output={answers}"),
            ("report", str(run), "--html", str(page)),
        ):
            commands.setdefault(words[0], []).append((many, folder.transfer(*words)))
        commands.setdefault("finetune", []).append((many, watched[0]))
    for name, runs in commands.items():
        yield over_size(name, "label", runs, 2**17)


def _finetuned(
    folder: Folder, many: int, names: Sequence[str], watched: list[Watched] | None = None
) -> Path:
    """Return a run on a table with these labels."""
    file, run = folder.path / f"labels-{many}.csv", folder.path / f"run-{many}"
    write_table(file, max(3 * len(names), many), names)
    command = folder.transfer(
        "finetune", folder.pretrained(), "device=cpu", "data=table", f"data.train={file}",
        "loop.batch=64", "loop.steps=200", "loop.evaluate_every=100 steps", f"run.dir={run}",
    )  # fmt: skip
    if watched is not None:
        watched.append(command)
    return run


PARTS: dict[str, tuple[Callable[[Folder, int], Iterator[Row]], int]] = {
    "steps": (steps, 100_000),
    "sweep": (sweep, 2_000),
    "table": (table, 5_000_000),
    "predict": (predict, 2_000_000_000),
    "labels": (labels, 10_000),
}
"""Each part, and the size of its load."""


@pytest.mark.parametrize("part", PARTS)
def test_a_load_stays_flat(part, tmp_path, pytestconfig, record_property):
    run_part, size = PARTS[part]
    faults = []
    for row in run_part(Folder(tmp_path), pytestconfig.getoption("--load") or size):
        figures = f"{row.size:<20}{row.seconds:>8.0f} s{mebibytes(row.peak):>12}  {row.found}"
        record_property(row.name, figures)
        faults += [f"{row.name}: {fault}" for fault in row.faults]
    assert faults == []
