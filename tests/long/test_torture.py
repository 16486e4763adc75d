"""Kill runs at random moments, go on with the same command line, compare with an undisturbed run.

    pytest tests/long/test_torture.py [--kills 2] [-k NAME] [--draw 0] [--processes 1]
        [--sweep JOBS] [--signal KILL] [--victim all] [--blows data flip threads]

Each scenario (pretraining, and each kind of fine-tuning stage) is run once undisturbed. Then the
same command line, with `resume=auto`, is started again and again, and killed after a random time,
until it ends by itself. What it leaves must be what the undisturbed run left, bit for bit: weights,
checkpoints, `metrics.jsonl`, `results.json`, and the curves as TensorBoard reads them.

Moments are drawn among starting, training, saving and scoring, so that few kills are spent on
imports; the lines at the end say where they landed.

    --sweep 3        each scenario is a sweep of so many jobs, two at a time
    --blows ...      before half of the restarts something is changed: a file of the data (a label,
                     a row, a word), a bit of a checkpoint, of the cache or of the model it started
                     from, the number of threads. Then the command must refuse in one line with
                     exit code 2, whereupon the change is undone, or end as if nothing had happened
    --signal TERM    asks to stop instead: the run must save and end with exit code 75
    --victim worker  with --processes 2: one worker is killed, and the run must go on by itself;
                     launcher: what was started is killed, and its workers must end
"""

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.long.attempts import Attempt, SweepAttempt
from tests.long.compare_runs import differences

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(0)]

PHASES = ("starting", "training", "saving", "scoring")
ODDS = (15, 40, 30, 15)
"""How often a kill is aimed at each phase. Some land after the end of the work, when it is done."""

SHAPE = (
    "model=tiny", "model.width=32", "model.heads=2", "model.depth=2", "model.feedforward=64",
    "model.positions=32", "tokenizer.size=600", "data=sample_text",
)  # fmt: skip
LOOP = (
    "device=cpu", "loop.batch=8", "loop.log_every=1", "loop.evaluate_every=15 steps",
    "checkpoint.every=9 steps", "loop.steps=150",
)  # fmt: skip
OWN_TABLE = ("data=table", "data.train={data}", "data.validation_share=0.2", "optimizer.lr=5e-3")
OWN_TEXT = (
    "data=text", "data.train={data}", "data.validation_share=0.1", "data.length=32",
    "tokenizer.size=300",
)  # fmt: skip
QUESTIONS = ("data=sample_questions", "optimizer.lr=5e-3")

SCENARIOS: dict[str, tuple[str, ...]] = {
    "clm": ("pretrain", *SHAPE),
    "mlm": ("pretrain", *SHAPE, "objective=mlm", "loop.patience=2"),
    "full": ("finetune", *QUESTIONS, "adaptation=full", "loop.patience=2"),
    "frozen": ("finetune", *QUESTIONS, "adaptation=frozen"),
    "gradual_unfreezing": ("finetune", *QUESTIONS, "adaptation=gradual_unfreezing"),
    "sequential_unfreezing": ("finetune", *QUESTIONS, "adaptation=sequential_unfreezing"),
    # Stages end where validation stalls, and put their best weights back.
    "chain_thaw": (
        "finetune", *QUESTIONS, "adaptation=chain_thaw", "adaptation.plan.patience=1",
        "loop.evaluate_every=4 steps", "optimizer.lr=2e-2",
    ),
    "lora": ("finetune", *QUESTIONS, "adaptation=lora", "forgetting.data=source"),
    "l2_sp": ("finetune", *QUESTIONS, "adaptation=l2_sp"),
    "ewc": ("finetune", *QUESTIONS, "adaptation=ewc", "adaptation.penalty.sequences=16"),
    "source_distillation": ("finetune", *QUESTIONS, "adaptation=source_distillation"),
    "siatl": ("finetune", *QUESTIONS, "adaptation=siatl"),
    "multitask": (
        "finetune", *QUESTIONS, "adaptation=multitask", "mixing.power=0",
        "data@streams.second.data=sample_questions_text",
    ),
    "own_table": ("finetune", *OWN_TABLE, "adaptation=full"),
    "own_text": ("pretrain", *SHAPE, *OWN_TEXT),
}  # fmt: skip
"""The command and the overrides of each kind of run; what is said later wins over `LOOP`."""

RESTARTS = ("restarts=1",)
"""Overrides with which the launcher starts all workers anew when one dies."""


@dataclass(frozen=True)
class Setting:
    """What all scenarios share."""

    folder: Path
    base: Path
    processes: int = 1
    number: signal.Signals = signal.SIGKILL
    victim: str = "all"
    seed: int = 0
    sweep: int = 0
    blows: tuple[str, ...] = ()

    def data_of(self, name: str) -> Path:
        """Return the file of a scenario's own data."""
        return self.folder / name / ("data.csv" if name == "own_table" else "data.txt")

    def base_of(self, name: str) -> Path:
        """Return the run that a scenario starts from: a copy of its own, to be changed."""
        return self.folder / name / "base"

    def command_line(self, name: str, run: Path) -> list[str]:
        """Return the command line of a scenario, each key once."""
        command, *words = SCENARIOS[name]
        words = [word.format(data=self.data_of(name)) for word in words]
        words = [*LOOP, *words, "resume=auto", f"run.dir={run}"]
        if command == "finetune":
            words.append(f"init_from={self.base_of(name)}")
        if self.sweep:
            words += ["-m", f"seed=range({self.sweep})", "sweep.workers=2"]
        if self.processes > 1:
            words += [f"devices={self.processes}", *(RESTARTS if self.victim == "worker" else ())]
        last = {word.partition("=")[0]: word for word in words}
        return [sys.executable, "-m", "transfer_cli", command, *last.values()]

    def wanted_codes(self, phase: str) -> set[int]:
        """Return the exit codes that a signal may lead to."""
        if self.victim == "worker":
            return {0}  # the launcher has started all of them again
        if self.number is signal.SIGKILL:
            return {-signal.SIGKILL}
        # While Python starts, nobody listens yet; at its very end, all is done.
        rest = {"starting": {-self.number}, "scoring": {0}, "done": {0, -self.number}}
        return {130 if self.number is signal.SIGINT else 75} | rest.get(phase, set())


@dataclass
class Scenario:
    """One kind of run: undisturbed once, then killed until its share of kills is used up."""

    name: str
    setting: Setting
    kills: int
    landed: Counter[str] = field(default_factory=Counter)
    blows: Counter[str] = field(default_factory=Counter)
    refused: int = 0
    compared: int = 0
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.setting.seed} {self.name}")
        self._folder = self.setting.folder / self.name
        self._reference = self._folder / "undisturbed" / "run"
        self._changed: dict[Path, tuple[bytes, bytes]] = {}
        self._spans: dict[str, float] = {}
        self._last_step = 0

    def go(self) -> None:
        """Run it all; what is wrong ends up in `faults`."""
        self._prepare()
        self._run_undisturbed()
        while self.landed.total() < self.kills and not self.faults:
            self._run_disturbed(self._folder / f"round-{self.compared + 1}" / "run")

    def _prepare(self) -> None:
        """Make what the scenario may find changed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data, base = self.setting.data_of(self.name), self.setting.base_of(self.name)
        if SCENARIOS[self.name][0] == "finetune":
            shutil.copytree(self.setting.base, base)
        if self.name.startswith("own_"):
            data.write_text(own_data(data.suffix), encoding="utf-8")

    def _start(self, run: Path, threads: int = 1) -> Attempt:
        words = self.setting.command_line(self.name, run)
        kind = SweepAttempt if self.setting.sweep else Attempt
        return kind(words, run, self._last_step, threads)

    def _runs(self, run: Path) -> list[Path]:
        """Return the runs of a round: itself, or those of its jobs."""
        return (
            [run / str(job) for job in range(self.setting.sweep)] if self.setting.sweep else [run]
        )

    def _run_undisturbed(self) -> None:
        """Make the reference, and learn how long each phase takes."""
        attempt = self._start(self._reference)
        attempt.reaches(attempt.has_begun)
        begun = time.monotonic()
        self._refuse(attempt, attempt.ends())
        after = time.monotonic() - begun
        records = self._runs(self._reference)[0] / "metrics.jsonl"
        lines = records.read_text(encoding="utf-8").splitlines()
        self._last_step = int(json.loads(lines[-1])["step"])
        # One aimed at training may land later, above all in a run that was resumed near its end.
        self._spans = {
            "starting": begun - attempt.began,
            "training": 0.4 * after,
            "saving": 0.01,
            "scoring": 0.15 * after,
        }

    def _run_disturbed(self, run: Path) -> None:
        """Kill and go on until the run ends by itself or no kill is left; then compare."""
        while self.landed.total() < self.kills:
            attempt = self._start_after_a_blow(run)
            if not self._reach_a_moment(attempt):
                if self._is_refusal(attempt):
                    continue
                break
            phase = attempt.phase()
            code = attempt.hit(self.setting.number, self.setting.victim, self._draw)
            if code == -signal.SIGKILL:
                phase = attempt.phase()  # what it leaves says more than what it was about to do
            self.landed[phase] += 1
            if code not in self.setting.wanted_codes(phase) and not self._is_refusal(attempt):
                self.faults.append(
                    f"{self.setting.number.name} while {phase}: exit code {code}: "
                    f"{attempt.last_line()}"
                )
            if code == 0:
                break
        else:
            attempt = self._start(run)
            attempt.reaches(lambda: False)
            if self._is_refusal(attempt):
                attempt = self._start(run)
        self._refuse(attempt, attempt.ends())
        self._undo()
        self.compared += 1
        for reference, disturbed in zip(self._runs(self._reference), self._runs(run), strict=True):
            texts = differences(reference, disturbed)
            self.faults += [f"round {self.compared}: {disturbed.name}: {text}" for text in texts]

    # ------------------------------------------------------------------------------- blows

    def _start_after_a_blow(self, run: Path) -> Attempt:
        possible = self.setting.blows if self._can_go_on(run) else ()
        blow = self._draw.choice(possible) if possible and self._draw.random() < 0.5 else None
        files = self._files(blow, run)
        if blow == "threads":
            self.blows[blow] += 1
            return self._start(run, threads=2)
        if blow is not None and files:
            self.blows[blow] += 1
            file = self._draw.choice(files)
            before, times = file.read_bytes(), file.stat()
            after = changed(blow, before, self._draw)
            first, _ = self._changed.get(file, (before, after))
            self._changed[file] = (first, after)
            change_in_place(file, after)
            if self._draw.random() < 0.5:
                os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # as damage does
        attempt = self._start(run)
        if blow == "data" and files and attempt.reaches(attempt.has_begun):
            self.faults.append(f"{file} was changed, and the run went on")
        return attempt

    def _is_refusal(self, attempt: Attempt) -> bool:
        """Return whether changed files were refused, as they are to be; then they are undone."""
        if attempt.code != 2 or not self._changed:
            return False
        self.refused += 1
        names = [name for file in self._changed for name in (file.name, file.parent.name)]
        line = attempt.last_line()
        if "Traceback" in attempt.said() or not any(name in line for name in names):
            self.faults.append(f"one of {', '.join(names)} was changed, and it said: {line}")
        self._undo()
        return True

    def _undo(self) -> None:
        while self._changed:
            file, (before, after) = self._changed.popitem()
            if file.exists() and file.read_bytes() == after:
                change_in_place(file, before)

    def _can_go_on(self, run: Path) -> bool:
        """Return whether there is something to go on from: else, changed data are new data."""
        status = run / "status.json"
        begun = any(run.glob("checkpoints/step-*")) and status.exists()
        return begun and "finished" not in status.read_text(encoding="utf-8")

    def _files(self, blow: str | None, run: Path) -> list[Path]:
        """Return what a blow may change."""
        if blow == "data":
            data = self.setting.data_of(self.name)
            return [data] if data.exists() else []
        base = self.setting.base_of(self.name) / "model"
        return sorted(
            path
            for folder in (run.with_name("cache"), base, run / "checkpoints")
            for path in folder.rglob("*")
            if path.is_file() and path.stat().st_size and not path.name.endswith(".lock")
        )

    def _reach_a_moment(self, attempt: Attempt) -> bool:
        """Wait for a moment that is drawn; return whether the command still works then."""
        aim = self._draw.choices(PHASES, ODDS)[0]
        delay = self._draw.uniform(0, self._spans[aim])
        number, seen = self._draw.randint(1, 8), set[Path]()

        def saves_again() -> bool:
            seen.update(attempt.half_written())
            return attempt.has_begun() and len(seen) >= number

        signs = {
            "training": attempt.has_begun,
            "saving": saves_again,
            "scoring": attempt.is_scoring,
        }
        if aim in signs:
            if not attempt.reaches(attempt.has_begun):
                return False
            attempt.aim()
            if not attempt.reaches(signs[aim]):
                return False
        time.sleep(delay)
        return attempt.code is None

    def _refuse(self, attempt: Attempt, code: int) -> None:
        assert code == 0, attempt.last_line()


# ----------------------------------------------------------------------------------- blows


def own_data(suffix: str) -> str:
    """Return a table of 60 questions with two labels, or a text of 120 lines."""
    things, cities = ("bridge", "market", "harbour", "garden"), ("Lima", "Oslo", "Quito")
    texts = [f"Where is the {things[n % 4]} of {cities[n % 3]} number {n} ?" for n in range(120)]
    if suffix == ".txt":
        return "".join(f"{text}\n" for text in texts)
    rows = [f"{text},{('place', 'person')[n % 2]}\n" for n, text in enumerate(texts[:60])]
    return "text,label\n" + "".join(rows)


def changed(blow: str, content: bytes, draw: random.Random) -> bytes:
    """Return the content of a file after a blow."""
    if blow == "flip":
        flipped = bytearray(content)
        flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
        return bytes(flipped)
    header, *lines = content.splitlines(keepends=True)
    at = draw.randrange(len(lines) - 1)
    ways = [
        [*lines[:at], *lines[at + 1 :]],  # a line is gone
        [*lines[:at], lines[at].replace(b"the", b"thy"), *lines[at + 1 :]],  # of the same length
        [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]],  # in another order
    ]
    if header.startswith(b"text,"):
        other = {b"place": b"person", b"person": b"place"}
        text, _, label = lines[at].rstrip().rpartition(b",")
        ways += [
            [*lines[:at], text + b"," + other[label] + b"\n", *lines[at + 1 :]],
            [line.replace(b",place", b",plaza") for line in lines],  # another name
        ]
    return header + b"".join(draw.choice(ways))


def change_in_place(file: Path, content: bytes) -> None:
    """Write to the very file, as damage does: what is linked to it changes with it."""
    with file.open("rb+") as opened:
        opened.write(content)
        opened.truncate()


# ----------------------------------------------------------------------------- all together


@pytest.fixture(scope="session")
def base(tmp_path_factory):
    """Return a pretrained run that fine-tuning starts from."""
    run = tmp_path_factory.mktemp("base") / "run"
    attempt = Attempt(Setting(run.parent, run).command_line("clm", run), run)
    assert attempt.ends() == 0, attempt.said()
    return run


@pytest.mark.parametrize("name", SCENARIOS)
def test_killed_runs_end_as_one_that_was_left_alone(
    name, base, number, tmp_path, pytestconfig, record_property
):
    asked = pytestconfig.getoption
    setting = Setting(
        tmp_path, base, asked("--processes"), number, asked("--victim"), asked("--draw"),
        asked("--sweep"), tuple(asked("--blows")),
    )  # fmt: skip
    scenario = Scenario(name, setting, asked("--kills"))

    scenario.go()

    landed = ", ".join(f"{scenario.landed[phase]} {phase}" for phase in (*PHASES, "done"))
    others = f"{scenario.blows.total()} blows, {scenario.refused} refused"
    record_property(name, f"kills: {landed}; {others}; {scenario.compared} runs compared")
    assert scenario.faults == []
