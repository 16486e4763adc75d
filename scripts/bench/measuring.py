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
same round can be trusted where seconds cannot. Work that is a whole command, from its start to its
end, is measured by `run_in_turns`.

A case is a module with a function that is given the words of its command line and an empty folder,
and yields reports; `main` runs it, with the options that all of them have (`--help`).

Works on Linux alone: the numbers are read from /proc. Imports nothing but the standard library,
so that a worker can have any packages.
"""

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
PEERS = FOLDER / ".venv" / "bin" / "python"
"""The peers' interpreter, where nobody names another one."""

MAX_FOREIGN = 0.05
"""The share of the machine that others may take before a turn counts as disturbed."""

_GATE = "BENCH_GATE"
_MIN_JUDGED_S = 0.2
"""/proc/stat counts in hundredths of a second: what is shorter than this cannot be judged by it."""
_TIMEOUT_S = 300.0
"""How long a worker may take to get ready, or for one turn."""
_LOG_TAIL = 2000


class BenchmarkError(Exception):
    """A variant could not be measured; the message says which and why, and `main` ends with it."""


# ------------------------------------------------------------------------------- in the worker


@dataclass(frozen=True)
class Turn:
    """What passed in a worker, or a command, while it was let go: seconds of a step, and memory.

    Args:
        wall_s: By the clock.
        cpu_s: Of all threads.
        foreign: Share of the machine's CPU time that other processes took, from 0 to 1; 0 where
            the turn was too short to tell.
        peak_mib: Largest resident memory so far.
        base_mib: What was resident when the worker began, or last called `rebase`.
        notes: What the worker itself measured.
    """

    wall_s: float
    cpu_s: float
    foreign: float
    peak_mib: float
    base_mib: float = 0.0
    notes: Mapping[str, float] = field(default_factory=dict)


class Gate:
    """A worker's end of the line: call it at each step boundary."""

    def __init__(self) -> None:
        self._line = socket.socket(fileno=int(os.environ.pop(_GATE))).makefile("rw")
        self._base = _memory_mib("VmRSS")
        self._notes = Counter[str]()
        self._left = self._steps = 1
        self._since = _Clock()

    def __call__(self) -> None:
        """Say that a step has ended and the next one may begin; wait until it may."""
        self._left -= 1
        if self._left:
            return
        wall, cpu, foreign = self._since.elapsed()
        turn = Turn(
            wall / self._steps, cpu / self._steps, foreign, _memory_mib("VmHWM"), self._base,
            dict(self._notes),
        )  # fmt: skip
        self._notes.clear()
        self._line.write(json.dumps(asdict(turn)) + "\n")
        self._line.flush()
        steps = self._line.readline()
        if not steps:
            os._exit(0)  # who measures is gone
        self._left = self._steps = int(steps)
        self._since = _Clock()

    def note(self, **values: float) -> None:
        """Send numbers along with the next report, added to those that were noted before it."""
        self._notes.update(values)

    def rebase(self) -> None:
        """Let the base and the peak of memory be what is resident now."""
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._base = _memory_mib("VmRSS")


def run_worker(module: str, function: str, options: str) -> None:
    """Be a worker: run `FUNCTION(arrive, **OPTIONS)` of a module of this folder."""
    sys.stderr.isatty = lambda: True  # so that progress bars are drawn, into the log
    arrive = Gate()
    getattr(__import__(module), function)(arrive, **json.loads(options))


class _Clock:
    """Reads the clocks of this process and of the machine."""

    def __init__(self) -> None:
        self._busy, self._cpu = _machine_busy_s(), time.process_time()
        self._wall = time.perf_counter()

    def elapsed(self) -> tuple[float, float, float]:
        """Return the seconds since, those of the CPU, and the share that others took of it."""
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        return wall, cpu, self.foreign_share(wall, cpu)

    def foreign_share(self, wall: float, cpu: float) -> float:
        """Return the share of the machine that others took in these seconds."""
        if wall < _MIN_JUDGED_S:
            return 0.0
        return max(0.0, _machine_busy_s() - self._busy - cpu) / (wall * (os.cpu_count() or 1))


def _machine_busy_s() -> float:
    """Return the CPU seconds that all processes have used, and a hypervisor has kept."""
    with open("/proc/stat", encoding="ascii") as file:  # noqa: PTH123 - called at each step
        user, nice, system, _idle, _io, irq, softirq, steal = map(int, file.readline().split()[1:9])
    total = user + nice + system + irq + softirq + steal
    return total / os.sysconf("SC_CLK_TCK")


def _memory_mib(name: str) -> float:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))


# -------------------------------------------------------------------------------- who measures


@dataclass(frozen=True)
class Variant:
    """One way to do the work of a set: a function of a module of this folder.

    It is called with the gate and the options, plain values, by the interpreter `python` (this one
    if empty), with environment variables besides those of this process.
    """

    name: str
    module: str
    function: str
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figure:
    """What a step of a variant took: medians over its undisturbed turns, or all if those are few.

    `disturbed` says that others took more than `MAX_FOREIGN` of the machine in turns that count.
    `samples` are all turns, one a round.
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
        used = [samples[number] for number in _undisturbed(samples)]
        wall, cpu = (statistics.median(getattr(t, of) for t in used) for of in ("wall_s", "cpu_s"))
        peak = max(turn.peak_mib for turn in samples)
        disturbed = any(turn.foreign > MAX_FOREIGN for turn in used)
        return cls(name, wall, cpu, peak, disturbed, list(samples))

    def median_note(self, name: str) -> float:
        """Return the median of what the worker itself measured."""
        used = [self.samples[number] for number in _undisturbed(self.samples)]
        return statistics.median(turn.notes[name] for turn in used)


def _undisturbed(*several: Sequence[Turn]) -> list[int]:
    """Return the rounds in which nobody disturbed any of some variants; all, if they are few."""
    rounds = range(min(map(len, several)))
    quiet = [r for r in rounds if all(samples[r].foreign <= MAX_FOREIGN for samples in several)]
    return quiet if 2 * len(quiet) >= len(rounds) else list(rounds)


def ratio(ours: Figure, peer: Figure, of: str = "wall_s") -> float:
    """Return `ours` / `peer`, the median over rounds, of `wall_s`, `cpu_s` or `peak_mib`."""
    if of == "peak_mib":
        return ours.peak_mib / peer.peak_mib
    return statistics.median(
        getattr(ours.samples[r], of) / getattr(peer.samples[r], of)
        for r in _undisturbed(ours.samples, peer.samples)
    )


class Worker:
    """A running worker, as who measures sees it."""

    def __init__(self, variant: Variant, threads: int, folder: Path) -> None:
        self.name = variant.name
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(_TIMEOUT_S)
        self._line = self._socket.makefile("rw")
        handle, path = tempfile.mkstemp(".log", dir=folder)
        self._log = Path(path)
        command = [variant.python or sys.executable, "-c", call_code("measuring", "run_worker")]
        command += [variant.module, variant.function, json.dumps(dict(variant.options))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **variant.env}
        with theirs, os.fdopen(handle, "wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**environment, _GATE: str(theirs.fileno())}, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip

    def go(self, steps: int) -> None:
        """Let it take so many steps."""
        with contextlib.suppress(BrokenPipeError):  # `result` says why
            self._line.write(f"{steps}\n")
            self._line.flush()

    def result(self) -> Turn:
        """Wait until it has taken them; return what passed."""
        try:
            line = self._line.readline()
        except ConnectionResetError:
            line = ""
        except TimeoutError as error:
            raise BenchmarkError(f"{self.name}: nothing heard for {_TIMEOUT_S:g} s") from error
        if not line:
            self._process.wait()
            log_tail = self._log.read_bytes()[-_LOG_TAIL:].decode(errors="replace")
            raise BenchmarkError(f"{self.name}: has ended\n{log_tail}")
        return Turn(**json.loads(line))

    def end(self) -> None:
        """End it at once: what it was doing is of no more use."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            self._line.close()
        self._socket.close()


def take_turns(
    variants: Sequence[Variant], *, rounds: int, threads: int = 2, steps: int = 1,
    unmeasured: int = 1,
) -> list[Figure]:  # fmt: skip
    """Let variants take turns; return a figure for each, in the same order.

    Args:
        variants: All of them are alive at once, so their memory adds up.
        rounds: Turns of each.
        threads: Of each worker.
        steps: Steps of a turn.
        unmeasured: Turns before those: the first one of a loop is like no other.
    """
    with tempfile.TemporaryDirectory(prefix="bench-") as folder, contextlib.ExitStack() as ending:
        workers = []
        for variant in variants:  # each is ready before the next begins
            workers.append(Worker(variant, threads, Path(folder)))
            ending.callback(workers[-1].end)
            workers[-1].result()

        def turn(number: int) -> Turn:
            workers[number].go(steps)
            return workers[number].result()

        samples = _alternate(len(workers), rounds, unmeasured, turn)
    return [Figure.of(v.name, turns) for v, turns in zip(variants, samples, strict=True)]


def _alternate(
    count: int, rounds: int, unmeasured: int, turn: Callable[[int], Turn]
) -> list[list[Turn]]:
    """Take turns A B C C B A A ...; return those of each that count."""
    samples: list[list[Turn]] = [[] for _ in range(count)]
    for number in range(-unmeasured, rounds):
        for index in range(count) if number % 2 == 0 else reversed(range(count)):
            passed = turn(index)
            if number >= 0:
                samples[index].append(passed)
    return samples


@dataclass(frozen=True)
class Command:
    """A whole command as a variant, with environment variables besides those of this process.

    Args:
        before: Called before each time, unmeasured: clears what an earlier time left.
        until: A file; when something is in it the time is up, and the command is killed. None: the
            command runs to its end.
    """

    name: str
    words: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[], None] | None = None
    until: Path | None = None


def transfer_command(*words: object) -> list[str]:
    """Return a command of ours."""
    return [sys.executable, "-m", "transfer_cli", *map(str, words)]


def run_once(command: Command, *, threads: int = 2) -> Turn:
    """Run a command; return what it took, with the child processes that it has waited for.

    The peak of memory is that of the largest process. It cannot be less than this process's own at
    the time, so do not import torch where you call this.
    """
    if command.before is not None:
        command.before()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), **command.env}
    with tempfile.TemporaryFile() as log:
        clock, began = _Clock(), time.perf_counter()
        process = subprocess.Popen(
            list(command.words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        reached = command.until is not None and _wait_until_written(command.until, process.pid)
        if reached:
            os.kill(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        wall, cpu = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
        process.returncode = os.waitstatus_to_exitcode(status)
        if not reached and (process.returncode or command.until):
            log.seek(0)
            log_tail = log.read()[-_LOG_TAIL:].decode(errors="replace")
            raise BenchmarkError(f"{command.name}: exit code {process.returncode}\n{log_tail}")
    return Turn(wall, cpu, clock.foreign_share(wall, cpu), usage.ru_maxrss / 1024)


def _wait_until_written(path: Path, process: int) -> bool:
    """Wait until something is in a file; return False where the process ends before."""
    while not path.exists() or path.stat().st_size == 0:
        if os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.002)
    return True


def run_in_turns(
    commands: Sequence[Command], *, rounds: int, threads: int = 2, unmeasured: int = 1
) -> list[Figure]:
    """Run whole commands in turns, one at a time; return a figure for each, in the same order."""
    samples = _alternate(
        len(commands), rounds, unmeasured, lambda index: run_once(commands[index], threads=threads)
    )
    return [Figure.of(c.name, turns) for c, turns in zip(commands, samples, strict=True)]


def call_code(module: str, function: str) -> str:
    """Return the code that calls a function of a module of this folder with its words."""
    begin = f"import sys; sys.path.insert(0, {str(FOLDER)!r})"
    return f"{begin}; import {module}; {module}.{function}(*sys.argv[1:])"


def run_python(interpreter: str, code: str, *words: object, **env: str) -> str:
    """Return what a piece of Python prints."""
    ended = subprocess.run(
        [interpreter, "-c", code, *map(str, words)], env={**os.environ, **env},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if ended.returncode != 0:
        raise BenchmarkError(f"{interpreter}: {ended.stderr[-_LOG_TAIL:]}")
    return ended.stdout


# ---------------------------------------------------------------------------- what comes of it


@dataclass(frozen=True)
class Goal:
    """A number that was measured, beside the one that was hoped for."""

    text: str
    value: float
    limit: float
    at_most: bool = True
    disturbed: bool = False

    @property
    def met(self) -> bool:
        """Whether the number is as good as was hoped for."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def cells(self) -> list[str]:
        """Return a row of a table: what, how much, the limit, and whether it was met."""
        limit = f"at {'most' if self.at_most else 'least'} {self.limit:g}"
        ending = ("met" if self.met else "missed") + (", disturbed" if self.disturbed else "")
        return [self.text, f"{self.value:.3g}", limit, ending]

    def __str__(self) -> str:
        """Return a line."""
        text, value, limit, ending = self.cells()
        return f"{text}: {value} (goal: {limit})  {ending}"


def ratio_goal(
    text: str, ours: Figure, peer: Figure, limit: float, *, of: str = "wall_s", at_most: bool = True
) -> Goal:
    """Return the goal that `ratio(ours, peer, of)` stays within a limit."""
    disturbed = of != "peak_mib" and (ours.disturbed or peer.disturbed)
    return Goal(text, ratio(ours, peer, of), limit, at_most, disturbed)


@dataclass
class Report:
    """What one benchmark found; `rows` are its table, where it is not that of the figures."""

    title: str
    figures: Sequence[Figure] = ()
    goals: Sequence[Goal] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.rows = list(self.rows) or figure_rows(self.figures)

    def __str__(self) -> str:
        """Return table, notes and goals as Markdown."""
        parts = [f"### {self.title}", markdown_table(self.rows), "\n".join(self.notes)]
        parts += ["\n".join(f"- {goal}" for goal in self.goals)]
        return "\n\n".join(filter(None, parts)) + "\n"


def figure_rows(
    figures: Sequence[Figure], columns: Mapping[str, Callable[[Figure], str]] | None = None
) -> list[list[str]]:
    """Return a table of figures, its header first, with more columns behind the name."""
    more = columns or {}
    rows = [["variant", *more, "wall s", "CPU s", "peak MiB", ""]]
    for figure in figures:
        times = [f"{figure.wall_s:.4g}", f"{figure.cpu_s:.4g}", f"{figure.peak_mib:,.0f}"]
        cells = [cell(figure) for cell in more.values()]
        rows.append([figure.name, *cells, *times, "disturbed" if figure.disturbed else ""])
    return rows


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the header first, as a Markdown table; all but the first column on the right."""
    header, *body = rows
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *body]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


_PACKAGES = ("torch", "pytorch-ignite", "hydra-core", "tokenizers", "transformers", "accelerate")
_ASK_VERSIONS = """
import importlib.metadata, json, platform, sys
versions = {p.metadata["Name"]: p.version for p in importlib.metadata.distributions()}
known = {name: versions[name] for name in sys.argv[1:] if name in versions}
print(json.dumps({"python": platform.python_version(), **known}))
"""


def machine_facts(peers: str | None = None) -> dict[str, Any]:
    """Return what a reader has to know of the machine, and the versions of ours and the peers."""
    [*_, model] = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [""]
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    interpreters = {"versions": sys.executable, **({"peers": peers} if peers else {})}
    return {
        "cpu": model or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "load": round(os.getloadavg()[0], 1),
        **{
            name: json.loads(run_python(interpreter, _ASK_VERSIONS, *_PACKAGES))
            for name, interpreter in interpreters.items()
        },
    }


# ------------------------------------------------------------------------- what scripts share

NO_PEERS = (
    "--peers: names no interpreter, so peers are left out: python3 -m venv scripts/bench/.venv && "
    "scripts/bench/.venv/bin/pip install -c constraints.txt -r scripts/bench/requirements.txt"
)


def require_peers(peers: str | None) -> None:
    """Refuse a comparison that is nothing without peers."""
    if peers is None:
        raise BenchmarkError(NO_PEERS)


def main(
    text: str | None, measure: Callable[[argparse.Namespace, Path], Iterable[Report]],
    options: Mapping[str, Mapping[str, Any]] | None = None, *, rounds: int = 1, device: str = "cpu",
) -> list[Report]:  # fmt: skip
    """Run a case from the command line, with the options that all have; return what it reported.

    Args:
        text: What it is for.
        measure: Returns reports, of the command line and a folder that is removed at the end.
        options: Its own options by name, as `add_argument` takes them.
        rounds: Turns of each variant where nobody says how many; one with `--quick`.
        device: The same of where it computes.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = os.environ.get("TRANSFER_DATA", "~/.cache/transfer")
    known_peers = str(PEERS) if PEERS.exists() else None
    parser.add_argument("--peers", default=known_peers, metavar="PYTHON", help="their interpreter")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--quick", action="store_true", help="sizes that end in seconds: a trial")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there as well")
    parser.add_argument("--rounds", type=int, help="turns of each variant")
    parser.add_argument("--device", default=device, help="cpu or cuda, where a case can take it")
    parser.add_argument("--data-dir", type=Path, default=data, help="where data sets lie")
    for name, settings in (options or {}).items():
        parser.add_argument(name, **settings)
    args = parser.parse_args()
    args.data_dir = args.data_dir.expanduser()
    if args.device.startswith("cuda"):
        import torch  # not for a CPU: whoever measures the memory of commands must not import it

        if not torch.cuda.is_available():
            sys.exit(f"{Path(sys.argv[0]).name}: there is no CUDA device here; take --device cpu")
    args.rounds = args.rounds or (1 if args.quick else rounds)
    try:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            reports = list(measure(args, Path(folder)))
            _print_reports(reports, args)
    except BenchmarkError as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    return reports


MODEL = {"--model": {"required": True, "type": Path, "help": "folder of a published model"}}
"""For the options of `main`."""


def _print_reports(reports: Sequence[Report], args: argparse.Namespace) -> None:
    facts = machine_facts(args.peers)
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), end="\n\n")
    if args.quick:
        print("Sizes of a trial: the goals mean nothing here.\n")
    for report in reports:
        print(report)
    if args.json is not None:
        data = {"machine": facts, "reports": [asdict(report) for report in reports]}
        args.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
