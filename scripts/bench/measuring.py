"""How the benchmarks measure: workers that stop at every step and take turns.

A *worker* is a Python process of its own, perhaps with other packages than ours, which runs one
variant of some work and stops at each step boundary:

    def plain_loop(arrive, width):          # in a module of this folder
        model = ...
        while True:
            arrive()
            step(model)

A framework's own loop calls `arrive()` from its hook at the start of a step, in the same thread.
`take_turns` starts the workers of a set, keeps all of them alive and lets one go at a time:
A B C C B A A B C ... A machine that slows down for a while hits all of them alike, so ratios of the
same round can be trusted where seconds cannot. A worker says what passed in it between two stops:
wall seconds, its own CPU seconds, memory, and how much of the machine other processes took.

Work that is a whole command, from its start to its end, is measured by `commands_in_turns`.

Works on Linux alone: the numbers are read from /proc. Imports nothing but the standard library,
so that a worker can have any packages.
"""

import argparse
import contextlib
import json
import os
import platform
import pty
import resource
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PEERS = FOLDER / ".venv" / "bin" / "python"
"""The peers' interpreter, where nobody names another one."""

DISTURBED = 0.05
"""The share of the machine that others may take before a turn counts as disturbed."""

_GATE = "BENCH_GATE"
_SHORTEST_S = 0.2
"""/proc/stat counts in hundredths of a second: what is shorter than this cannot be judged by it."""
_POLL_S = 0.002
"""How often to look whether a command has written the file that is waited for."""
_PATIENCE_S = 300.0
"""How long a worker may take to get ready, or for one turn."""
_LOG_TAIL = 2000
_WORK = "import sys; sys.path.insert(0, sys.argv[1]); import measuring; measuring.work()"


class BenchmarkError(Exception):
    """A variant could not be measured; the message says which and why."""


# ------------------------------------------------------------------------------- in the worker


@dataclass(frozen=True)
class Turn:
    """What passed in a worker, or a command, while it was let go.

    Args:
        steps: Steps that it took.
        wall_s: Seconds, of all of them.
        cpu_s: CPU seconds of the process, all threads.
        foreign: Share of the machine's CPU time that other processes took, from 0 to 1; 0 where
            the turn was too short to tell.
        peak_mib: Largest resident memory so far.
        base_mib: Resident memory when the worker began, or last called `rebase`.
        faults: Pages that were given to the process without reading a disk.
        notes: What the worker itself measured.
    """

    steps: int
    wall_s: float
    cpu_s: float
    foreign: float
    peak_mib: float
    base_mib: float = 0.0
    faults: int = 0
    notes: Mapping[str, float] = field(default_factory=dict)


class Gate:
    """A worker's end of the line: call it at each step boundary.

    Args:
        reader: File descriptor from which the number of steps to take is read.
        writer: File descriptor to which is written what passed.
    """

    def __init__(self, reader: int, writer: int) -> None:
        self._reader = os.fdopen(reader, "r", encoding="ascii")
        self._writer = os.fdopen(writer, "w", encoding="ascii")
        self._base = _memory_mib("VmRSS")
        self._notes: dict[str, float] = {}
        self._steps = self._left = 0
        self._since = _Clock()

    def __call__(self) -> None:
        """Say that a step has ended and the next one may begin; wait until it may."""
        if self._left > 1:
            self._left -= 1
            return
        self._report(self._since.passed())
        self._left = self._steps = self._wait()
        self._since = _Clock()

    def note(self, **values: float) -> None:
        """Send numbers along with the next report, added to those that were noted before it."""
        for name, value in values.items():
            self._notes[name] = self._notes.get(name, 0.0) + value

    def rebase(self) -> None:
        """Let the base and the peak of memory be what is resident now."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._base = _memory_mib("VmRSS")

    def _report(self, passed: "_Passed") -> None:
        turn = Turn(
            steps=self._steps,
            wall_s=passed.wall_s,
            cpu_s=passed.cpu_s,
            foreign=passed.foreign,
            peak_mib=_memory_mib("VmHWM"),
            base_mib=self._base,
            faults=passed.faults,
            notes=self._notes,
        )
        self._writer.write(json.dumps(asdict(turn)) + "\n")
        self._writer.flush()
        self._notes = {}

    def _wait(self) -> int:
        line = self._reader.readline()
        if not line:
            os._exit(0)  # who measures is gone
        return int(line)


def gate() -> Gate:
    """Return the gate of this worker; only `take_turns` can start one."""
    reader, writer = map(int, os.environ.pop(_GATE).split(","))
    return Gate(reader, writer)


def work() -> None:
    """Be a worker: run `FUNCTION(arrive, **OPTIONS)` of a module of this folder."""
    module, function, options = sys.argv[2:]
    arrive = gate()
    getattr(__import__(module), function)(arrive, **json.loads(options))


@dataclass(frozen=True)
class _Passed:
    wall_s: float
    cpu_s: float
    foreign: float
    faults: int


class _Clock:
    """Reads the clocks of this process and of the machine; `passed` tells what has passed since."""

    def __init__(self) -> None:
        self._busy = _machine_busy_s()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self._cpu, self._faults = usage.ru_utime + usage.ru_stime, usage.ru_minflt
        self._wall = time.perf_counter()

    def passed(self) -> _Passed:
        wall = time.perf_counter() - self._wall
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu = usage.ru_utime + usage.ru_stime - self._cpu
        foreign = _foreign(_machine_busy_s() - self._busy, cpu, wall)
        return _Passed(wall, cpu, foreign, usage.ru_minflt - self._faults)


def _foreign(busy_s: float, own_s: float, wall_s: float) -> float:
    if wall_s < _SHORTEST_S:
        return 0.0
    return max(0.0, busy_s - own_s) / (wall_s * (os.cpu_count() or 1))


def _machine_busy_s() -> float:
    """Return the CPU seconds that all processes have used, and a hypervisor has kept."""
    with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123 - called at each step
        user, nice, system, _idle, _io, irq, softirq, steal = map(int, file.readline().split()[1:9])
    total = user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


def _memory_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


# -------------------------------------------------------------------------------- who measures


@dataclass(frozen=True)
class Variant:
    """One way to do the work of a set.

    Args:
        name: What the table calls it.
        module: A module of this folder.
        function: Its function, called with the gate and the options.
        options: Plain values.
        python: Interpreter; "": this one.
        env: Environment variables besides those of this process.
        terminal: Whether its standard error is a terminal, on which a progress bar shows.
    """

    name: str
    module: str
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    terminal: bool = False


@dataclass(frozen=True)
class Figure:
    """What a variant took: medians over its undisturbed turns, or over all if those are few.

    Args:
        name: The variant's.
        wall_s: Seconds of a step.
        cpu_s: CPU seconds of a step.
        peak_mib: Largest resident memory of the process.
        disturbed: Whether others took more than `DISTURBED` of the machine in the turns counted.
        samples: Every turn, one a round.
    """

    name: str
    wall_s: float
    cpu_s: float
    peak_mib: float
    disturbed: bool
    samples: Sequence[Turn]

    @classmethod
    def of(cls, name: str, samples: Sequence[Turn]) -> "Figure":
        """Return the medians of turns."""
        used = [samples[number] for number in _undisturbed([samples])]
        return cls(
            name=name,
            wall_s=statistics.median(t.wall_s / t.steps for t in used),
            cpu_s=statistics.median(t.cpu_s / t.steps for t in used),
            peak_mib=max(t.peak_mib for t in samples),
            disturbed=any(t.foreign > DISTURBED for t in used),
            samples=list(samples),
        )

    def noted(self, name: str) -> float:
        """Return the median of what the worker itself measured."""
        used = [self.samples[number] for number in _undisturbed([self.samples])]
        return statistics.median(turn.notes[name] for turn in used)


def _undisturbed(several: Sequence[Sequence[Turn]]) -> list[int]:
    """Return the rounds in which nobody disturbed any of some variants; all, if they are few."""
    rounds = range(min(len(samples) for samples in several))
    quiet = [r for r in rounds if all(samples[r].foreign <= DISTURBED for samples in several)]
    return quiet if 2 * len(quiet) >= len(rounds) else list(rounds)


def ratio(own: Figure, peer: Figure, of: str = "wall_s") -> float:
    """Return own / peer, the median over rounds, of `wall_s`, `cpu_s` or `peak_mib`."""
    if of == "peak_mib":
        return own.peak_mib / peer.peak_mib
    pairs = [
        (own.samples[number], peer.samples[number])
        for number in _undisturbed([own.samples, peer.samples])
    ]
    return statistics.median(
        (getattr(a, of) / a.steps) / (getattr(b, of) / b.steps) for a, b in pairs
    )


def difference(own: Figure, peer: Figure, of: str = "wall_s") -> float:
    """Return own - peer in seconds of a step, the median over rounds, of `wall_s` or `cpu_s`."""
    rounds = _undisturbed([own.samples, peer.samples])
    pairs = [(own.samples[number], peer.samples[number]) for number in rounds]
    return statistics.median(getattr(a, of) / a.steps - getattr(b, of) / b.steps for a, b in pairs)


def together(name: str, *parts: Figure) -> Figure:
    """Return what variants take one after the other: the sum of their turns, round by round."""
    rounds = zip(*(part.samples for part in parts), strict=True)
    sums = [
        Turn(
            steps=1,
            wall_s=sum(t.wall_s / t.steps for t in turns),
            cpu_s=sum(t.cpu_s / t.steps for t in turns),
            foreign=max(t.foreign for t in turns),
            peak_mib=max(t.peak_mib for t in turns),
        )
        for turns in rounds
    ]
    return Figure.of(name, sums)


class _Worker:
    """A running worker, as who measures sees it."""

    def __init__(self, variant: Variant, threads: int, folder: Path) -> None:
        self.name = variant.name
        handle, log_name = tempfile.mkstemp(".log", dir=folder)
        os.close(handle)
        self._log = Path(log_name)
        to_worker, self._from_worker, ours = self._pipes()
        self._go = os.fdopen(ours, "w", encoding="ascii")
        self._pending = b""
        command = [variant.python or sys.executable, "-c", _WORK, str(FOLDER), variant.module]
        command += [variant.function, json.dumps(dict(variant.options))]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            **variant.env,
            _GATE: f"{to_worker[0]},{to_worker[1]}",
        }
        with self._log.open("wb") as log, _terminal_or(log.fileno(), variant) as screen:
            self._process = subprocess.Popen(  # noqa: S603 - our own words
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=screen,
                env=environment,
                pass_fds=to_worker,
                start_new_session=True,
            )
        for descriptor in to_worker:
            os.close(descriptor)

    @staticmethod
    def _pipes() -> tuple[tuple[int, int], int, int]:
        reader, ours = os.pipe()
        from_worker, writer = os.pipe()
        return (reader, writer), from_worker, ours

    def go(self, steps: int) -> None:
        """Let it take so many steps."""
        with contextlib.suppress(BrokenPipeError):  # `result` says why
            self._go.write(f"{steps}\n")
            self._go.flush()

    def result(self) -> Turn:
        """Wait until it has taken them; return what passed.

        Raises:
            BenchmarkError: It has ended, or takes for ever.
        """
        deadline = time.monotonic() + _PATIENCE_S
        while b"\n" not in self._pending:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self._from_worker], [], [], left)[0]:
                raise BenchmarkError(f"{self.name}: nothing heard for {_PATIENCE_S:g} s")
            got = os.read(self._from_worker, 65536)
            if not got:
                raise BenchmarkError(f"{self.name}: has ended\n{self._said()}")
            self._pending += got
        line, _, self._pending = self._pending.partition(b"\n")
        return Turn(**json.loads(line))

    def end(self) -> None:
        """End it at once: what it was doing is of no more use."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._go.close()
        os.close(self._from_worker)

    def _said(self) -> str:
        self._process.wait()
        return self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")


@contextlib.contextmanager
def _terminal_or(log: int, variant: Variant) -> Iterator[int]:
    """Give a terminal of its own to a worker that wants one; what it shows goes to the log."""
    if not variant.terminal:
        yield log
        return
    master, slave = pty.openpty()
    copy = os.dup(log)

    def read() -> None:
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes any more
            while shown := os.read(master, 65536):
                os.write(copy, shown)
        os.close(master)
        os.close(copy)

    threading.Thread(target=read, daemon=True).start()
    try:
        yield slave
    finally:
        os.close(slave)


@contextlib.contextmanager
def workers(variants: Sequence[Variant], threads: int) -> Iterator[list[_Worker]]:
    """Start workers one after the other, each ready before the next begins; end them at last."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as ending:
        started = []
        for variant in variants:
            worker = _Worker(variant, threads, Path(folder))
            ending.callback(worker.end)
            worker.result()
            started.append(worker)
        yield started


def take_turns(
    variants: Sequence[Variant],
    *,
    rounds: int,
    steps: int = 1,
    unmeasured: int = 1,
    at_once: int = 0,
    threads: int = 2,
) -> list[Figure]:
    """Let variants take turns; return a figure for each, in the same order.

    Args:
        variants: All of them are alive at once, so their memory adds up.
        rounds: Turns of each.
        steps: Steps of a turn.
        unmeasured: Turns before those: the first one of a loop is like no other.
        at_once: Steps before all turns, taken at the same time, such as those that compile.
        threads: Of each worker.

    Raises:
        BenchmarkError: A worker failed.
    """
    samples: list[list[Turn]] = [[] for _ in variants]
    with workers(variants, threads) as started:
        for worker in started if at_once else ():
            worker.go(at_once)
        for worker in started if at_once else ():
            worker.result()
        for number in range(-unmeasured, rounds):
            order = list(range(len(started)))
            for index in order if number % 2 == 0 else reversed(order):
                started[index].go(steps)
                turn = started[index].result()
                if number >= 0:
                    samples[index].append(turn)
    return [Figure.of(v.name, turns) for v, turns in zip(variants, samples, strict=True)]


def device_is_missing(device: str) -> bool:
    """Return whether a CUDA device is asked for and there is none, which is said then."""
    if not device.startswith("cuda"):
        return False
    # Not for a CPU: whoever measures the memory of commands must not have imported it.
    import torch

    missing = not torch.cuda.is_available()
    if missing:
        print(f"{Path(sys.argv[0]).name}: there is no CUDA device here; take --device cpu")
    return missing


@dataclass(frozen=True)
class Command:
    """A whole command as a variant.

    Args:
        name: What the table calls it.
        words: What to run.
        env: Environment variables besides those of this process.
        before: Called before each time, unmeasured: clears what an earlier time left.
        until: A file; when something is in it the time is up, and the command is killed. None: the
            command runs to its end.
    """

    name: str
    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    until: Path | None = None


def once(command: Command, *, threads: int = 2) -> Turn:
    """Run a command; return what it took, with the child processes that it has waited for.

    The peak of memory is that of the largest process. It cannot be less than this process's own at
    the time, so do not import torch where you call this.

    Raises:
        BenchmarkError: It failed.
    """
    if command.before is not None:
        command.before()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **command.env}
    with tempfile.TemporaryFile() as log:
        busy, began = _machine_busy_s(), time.perf_counter()
        process = subprocess.Popen(  # noqa: S603 - our own words
            list(command.words),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        ended = 0
        if command.until is not None and _wait_for(command.until, process.pid):
            os.kill(process.pid, signal.SIGKILL)
            ended = -signal.SIGKILL
        _, status, usage = os.wait4(process.pid, 0)
        wall, busy = time.perf_counter() - began, _machine_busy_s() - busy
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != ended or (command.until is not None and ended == 0):
            log.seek(0)
            said = log.read()[-_LOG_TAIL:].decode(errors="replace")
            raise BenchmarkError(f"{command.name}: exit code {process.returncode}\n{said}")
    cpu = usage.ru_utime + usage.ru_stime
    foreign = _foreign(busy, cpu, wall)
    return Turn(1, wall, cpu, foreign, usage.ru_maxrss / 1024, faults=usage.ru_minflt)


def _wait_for(path: Path, process: int) -> bool:
    """Wait until something is in a file; return False where the process ends before."""
    while not path.exists() or path.stat().st_size == 0:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(_POLL_S)
    return True


def commands_in_turns(
    commands: Sequence[Command], *, rounds: int, unmeasured: int = 1, threads: int = 2
) -> list[Figure]:
    """Run whole commands in turns; return a figure for each, in the same order.

    Args:
        commands: One of them runs at a time.
        rounds: How often each.
        unmeasured: How often before that: files come into the machine's memory.
        threads: Of each.

    Raises:
        BenchmarkError: One of them failed.
    """
    samples: list[list[Turn]] = [[] for _ in commands]
    for number in range(-unmeasured, rounds):
        order = list(range(len(commands)))
        for index in order if number % 2 == 0 else reversed(order):
            turn = once(commands[index], threads=threads)
            if number >= 0:
                samples[index].append(turn)
    return [Figure.of(c.name, turns) for c, turns in zip(commands, samples, strict=True)]


# ---------------------------------------------------------------------------- what comes of it


@dataclass(frozen=True)
class Goal:
    """A number that was hoped for.

    Args:
        text: What the number is.
        value: What was measured.
        limit: What was hoped for.
        at_most: Whether less is better.
        disturbed: Whether others disturbed the measurement.
    """

    text: str
    value: float
    limit: float
    at_most: bool = True
    disturbed: bool = False

    @property
    def met(self) -> bool:
        """Whether the number is as good as was hoped for."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        """Return a line: what, how much, the limit, and whether it was met."""
        side = "at most" if self.at_most else "at least"
        ending = "met" if self.met else "missed"
        note = ", disturbed" if self.disturbed else ""
        return f"{self.text}: {self.value:.3g} (goal: {side} {self.limit:g})  {ending}{note}"


def compare(
    text: str, own: Figure, peer: Figure, limit: float, *, of: str = "wall_s", at_most: bool = True
) -> Goal:
    """Return the goal that `ratio(own, peer, of)` stays within a limit."""
    disturbed = of != "peak_mib" and (own.disturbed or peer.disturbed)
    return Goal(text, ratio(own, peer, of), limit, at_most, disturbed)


@dataclass
class Report:
    """What one benchmark found.

    Args:
        title: A line.
        figures: What was measured.
        goals: What came of it.
        rows: A table of another form, its header first; shown instead of the figures.
        notes: Lines that a reader should know.
    """

    title: str
    figures: Sequence[Figure] = ()
    goals: Sequence[Goal] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def __str__(self) -> str:
        """Return table, notes and goals as Markdown."""
        rows = list(self.rows) or figure_rows(self.figures)
        parts = [f"### {self.title}", table(rows)]
        parts += ["\n".join(self.notes)] if self.notes else []
        parts += ["\n".join(f"- {goal}" for goal in self.goals)] if self.goals else []
        return "\n\n".join(parts) + "\n"

    def as_data(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        goals = [{**asdict(goal), "met": goal.met} for goal in self.goals]
        return {**asdict(self), "goals": goals}


def figure_rows(figures: Sequence[Figure]) -> list[list[str]]:
    """Return a table of figures, its header first."""
    rows = [["variant", "wall s", "CPU s", "peak MiB", ""]]
    for figure in figures:
        note = "disturbed" if figure.disturbed else ""
        rows.append(
            [
                figure.name,
                f"{figure.wall_s:.4g}",
                f"{figure.cpu_s:.4g}",
                f"{figure.peak_mib:,.0f}",
                note,
            ]
        )
    return rows


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the header first, as an aligned Markdown table; numbers stand on the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = [
        column > 0
        and all(not row[column] or _is_number(row[column]) for row in rows[1:])
        and any(row[column] for row in rows[1:])
        for column in range(len(rows[0]))
    ]

    def line(row: Sequence[str]) -> str:
        cells = [
            cell.rjust(width) if on_right else cell.ljust(width)
            for cell, width, on_right in zip(row, widths, right, strict=True)
        ]
        return f"| {' | '.join(cells)} |"

    rule = [
        "-" * (width + 1) + (":" if on_right else "-")
        for width, on_right in zip(widths, right, strict=True)
    ]
    return "\n".join([line(rows[0]), f"|{'|'.join(rule)}|", *map(line, rows[1:])])


def _is_number(cell: str) -> bool:
    return cell.lstrip("-")[:1].isdigit()


_PACKAGES = ("torch", "pytorch-ignite", "hydra-core", "tokenizers", "transformers", "accelerate")
_ASK_VERSIONS = """
import importlib.metadata, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def machine(peers: str | None = None) -> dict[str, Any]:
    """Return what a reader has to know of the machine and the versions.

    Args:
        peers: The peers' interpreter.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts = {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}
    telling = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found: dict[str, Any] = {
        "cpu": facts.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "features": [name for name in telling if name in facts.get("flags", "").split()],
        "memory_gib": round(pages / 2**30, 1),
        "versions": _versions(sys.executable),
    }
    if peers:
        found["peers"] = _versions(peers)
    return found


def _versions(python: str) -> dict[str, str]:
    words = [python, "-c", _ASK_VERSIONS, *_PACKAGES]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)  # noqa: S603
    versions: dict[str, str] = json.loads(ended.stdout)
    return versions


def describe(facts: Mapping[str, Any]) -> str:
    """Return `machine`'s answer in two or three lines."""
    lines = [
        f"{facts['cpu']}, {facts['cores']} cores ({', '.join(facts['features'])}), "
        f"{facts['memory_gib']} GiB"
    ]
    for whose in ("versions", "peers"):
        if whose in facts:
            listed = ", ".join(f"{name} {version}" for name, version in facts[whose].items())
            lines.append(f"{whose}: {listed}")
    return "\n".join(lines)


# ------------------------------------------------------------------------- what scripts share


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return a parser of the words that all scripts of this folder take."""
    words = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    words.add_argument(
        "--peers", metavar="PYTHON", help="interpreter of the peers (default: .venv beside this)"
    )
    words.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    words.add_argument("--quick", action="store_true", help="sizes that end in seconds: a trial")
    words.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    words.add_argument("--rounds", type=int, help="turns of each variant")
    return words


def add_data_dir(words: argparse.ArgumentParser) -> None:
    """Let a parser take the folder of the data sets."""
    words.add_argument(
        "--data-dir",
        type=Path,
        default=Path(os.environ.get("TRANSFER_DATA", "~/.cache/transfer")).expanduser(),
        help="where data sets lie",
    )


def peers_of(named: str | None) -> str | None:
    """Return the peers' interpreter: the one that was named, or that of this folder, or none."""
    if named:
        return named
    return str(PEERS) if PEERS.exists() else None


def can_import(python: str, *modules: str) -> bool:
    """Return whether an interpreter has some modules."""
    words = [python, "-c", f"import {', '.join(modules)}"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603 - the peers' own


NO_PEERS = (
    "peers are left out: python3 -m venv scripts/bench/.venv && scripts/bench/.venv/bin/pip "
    "install -c constraints.txt -r scripts/bench/requirements.txt"
)


def show(reports: Sequence[Report], asked: argparse.Namespace) -> None:
    """Print reports and the machine, and write them as JSON where that was asked for."""
    facts = machine(peers_of(asked.peers))
    print(f"{describe(facts)}\n")
    if asked.quick:
        print("Sizes of a trial: the goals mean nothing here.\n")
    for report in reports:
        print(report)
    if asked.json is not None:
        data = {"machine": facts, "reports": [report.as_data() for report in reports]}
        asked.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
