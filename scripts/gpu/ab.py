"""Fifteen minutes on one large GPU: what this commit does faster than an earlier one, and why.

    python scripts/gpu/ab.py [--before FOLDER] [--text FILE] [--parts turns ceilings ...]

FOLDER holds `transfer_cli/` and `conf/` of the earlier commit (`git archive`), FILE is real text
for whole commands. Parts run in the order of what they tell; each has a limit, and none begins that
`--seconds` have run out for. `OUT/ab.jsonl` gets a line for each figure as it comes, so
what was measured stays whatever comes after. Kinds of one part take turns of twenty steps, having
compiled at the same time. `--quick --device cpu` tries all of it in about a minute; its figures
mean nothing. `docs/gpu.md` says what is expected.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]
import gpu  # noqa: E402 - found by the line above
import measuring  # noqa: E402
import product  # noqa: E402
from growth import flops_per_token  # noqa: E402
from measuring import BenchmarkError, Turn, Variant, Worker  # noqa: E402

PEAK_TFLOPS = {"H100": 989.4, "H200": 989.4, "A100": 312.0}
"""Dense bfloat16, by what the name of the GPU contains (Nvidia's data sheets)."""
STEPS = 20
"""Of a turn."""
ROUNDS = 5
LEAST_S = 15.0
"""No part begins with less than this left."""

NO_CUDNN = "import torch; torch.backends.cuda.enable_cudnn_sdp(False)"
CUDA_GRAPHS = """
from transfer_cli.model.backbone import Backbone
plain = Backbone.compile
Backbone.compile = lambda self, **options: plain(self, mode="reduce-overhead", **options)
"""
MUON = ("optimizer=muon", "schedule=trapezoid")
SAME_WORK = ("model.activation=relu", "model.output_bias=false")
"""What makes a step ours that of the plain loop."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to train.

    Args:
        name: In the records.
        words: Overrides of `transfer pretrain`.
        function: The worker, of `gpu.py`.
        size: Of `gpu.SIZES`.
        model: Its preset, if that is not named like the size.
        before: Whether the earlier commit does it.
        is_short: Whether the last batch of an epoch is short.
        setup: Python that is run first in its process.
        env: Environment variables.
    """

    name: str
    words: tuple[str, ...] = ()
    function: str = "transfer_run"
    size: str = "base"
    model: str = ""
    before: bool = False
    is_short: bool = False
    setup: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


class Bench:
    """What was asked for, and how a set of ways takes turns."""

    def __init__(self, asked: argparse.Namespace, folder: Path) -> None:
        self.asked, self.folder = asked, folder
        self.is_gpu = asked.device.startswith("cuda")
        self.rounds, self.steps = (1, 2) if asked.quick else (ROUNDS, STEPS)
        self._materials: dict[tuple[int, bool], product.Material] = {}
        self.part = ""
        self._commands: list[subprocess.Popen[bytes]] = []
        self.peak_tflops = 1.0
        if self.is_gpu:
            import torch

            name = torch.cuda.get_device_name()
            self.peak_tflops = next((v for k, v in PEAK_TFLOPS.items() if k in name), 1.0)

    def size(self, way: Way) -> dict[str, int]:
        """Return the size of a way, or that of a trial."""
        return gpu.SIZES["trial" if self.asked.quick else way.size]

    def take_turns(self, ways: Sequence[Way]) -> Iterator[Record]:
        """Let ways take turns; yield what a step of each takes. One that fails is left out."""
        known = [way for way in ways if self.asked.before is not None or not way.before]
        with contextlib.ExitStack() as ending:
            workers = {}
            for way in known:
                workers[way.name] = Worker(self._variant(way), 2, self.folder)
                ending.callback(workers[way.name].end)
            yield from _drop_failed(workers, lambda worker: worker.result())
            for worker in workers.values():  # all compile at the same time, and see an epoch's end
                worker.go(2)
            yield from _drop_failed(workers, lambda worker: worker.result())
            turns: dict[str, list[Turn]] = {name: [] for name in workers}
            for number in range(self.rounds + 1):
                order = list(workers) if number % 2 == 0 else list(reversed(workers))
                for name in order:
                    workers[name].go(1)
                    turns[name].append(workers[name].result())
            for way in known:
                if way.name in turns:
                    yield self._record(way, turns[way.name])

    def _record(self, way: Way, turns: Sequence[Turn]) -> Record:
        """Return the figures of a way; the last of its turns was profiled."""
        *timed, profiled = turns
        seconds = [turn.wall_s / self.steps for turn in timed]
        size, middle = self.size(way), statistics.median(seconds)
        rate = size["batch"] * size["length"] / middle
        mfu = rate * flops_per_token(size) / (1e12 * self.peak_tflops)
        profile = {name: round(value, 3) for name, value in profiled.notes.items()}
        return {
            "way": way.name, "size": way.size, "ms": round(1000 * middle, 3),
            "all ms": [round(1000 * each, 2) for each in seconds], "MFU": round(mfu, 4),
            "tokens/s": round(rate), "MiB": round(timed[-1].notes.get("gpu_mib", 0.0)),
            "profile": profile,
        }  # fmt: skip

    def _variant(self, way: Way) -> Variant:
        size, quick = self.size(way), self.asked.quick
        turns = {"steps": self.steps, "device": self.asked.device, "profiled": 2 + self.rounds}
        if way.function != "transfer_run":
            options = {**turns, "size": size, "compiled": not quick}
            return Variant(way.name, "gpu", way.function, options)
        material = self._material(size, is_short=way.is_short)
        preset = way.model or (
            "base" if quick else way.size.removesuffix("-odd").removesuffix("-two")
        )
        words = [
            f"model={preset}", *product.model_words(size), "model.attention_dropout=0",
            f"loop.compile={str(not quick).lower()}", "loop.log_every=50", *material.words,
            *product.ENDLESS, f"device={self.asked.device}",
            "precision=bf16", *way.words,
            f"run.dir={self._run(way.name)}",
        ]  # fmt: skip
        options = {**turns, "words": words, "setup": way.setup}
        paths = [self.asked.before] if way.before else []
        env = {**material.env, **way.env, "PYTHONPATH": _path(*paths)}
        return Variant(way.name, "gpu", way.function, options, env=env)

    def _material(self, size: Mapping[str, int], *, is_short: bool) -> product.Material:
        """Return a text: of an epoch that ends in a short batch, or longer than all steps."""
        key = (size["vocabulary"], is_short)
        if key not in self._materials:
            folder = self.folder / f"text-{key[0]}-{is_short}"
            folder.mkdir()
            steps = 40 if is_short else 1.2 * (self.rounds + 4) * self.steps
            tokens = int(steps * size["batch"] * size["length"])
            self._materials[key] = product.make_material(folder, size["vocabulary"], tokens)
        return self._materials[key]

    # ------------------------------------------------------------------------------------- parts

    def turns(self) -> Iterator[Record]:
        """`base`, 64 x 256 tokens, beside the commit before, a plain loop and the Trainer."""
        has_trainer = measuring.can_import(sys.executable, "transformers", "accelerate")
        yield from self.take_turns([
            Way("before", before=True),
            Way("now"),
            Way("now, short batch", is_short=True),
            Way("now, same work", SAME_WORK),
            Way("now, B1", ("loop.bf16_residual=true",)),
            Way("now, B1 to B3", ("loop.bf16_residual=true",), model=LEAN),
            Way("now, C4", setup=CUDA_GRAPHS),
            Way("now, same work, C4", SAME_WORK, setup=CUDA_GRAPHS),
            Way("now, Muon", MUON),
            Way("plain loop", function="plain_loop"),
            *([Way("Trainer", function="trainer")] if has_trainer else []),
        ])  # fmt: skip

    def steps_alone(self) -> Iterator[Record]:
        """Each change taken away alone, or tried; a vocabulary of no multiple of 64."""
        yield from self.take_turns([
            Way("before, short batch", before=True, is_short=True),
            Way("before, Muon", MUON, before=True),
            Way("before, odd vocabulary", before=True, size="base-odd"),
            Way("now, odd vocabulary", size="base-odd"),
            Way("now, C3", setup=NO_CUDNN),
            *(Way(f"now, {name}", setup=setup) for name, setup in WITHOUT.items()),
        ])  # fmt: skip

    def host(self) -> Iterator[Record]:
        """Two sequences a step, for which a GPU waits: what the host takes."""
        yield from self.take_turns([
            Way("before", size="base-two", before=True),
            Way("now", size="base-two"),
            Way("now, C4", size="base-two", setup=CUDA_GRAPHS),
            Way("plain loop", size="base-two", function="plain_loop"),
        ])  # fmt: skip

    def large(self) -> Iterator[Record]:
        """`bert-base` and `bert-large`, 32 x 512 tokens, as causal models."""
        yield from self.take_turns([
            Way("before", size="bert-base", before=True),
            Way("now", size="bert-base"),
            Way("now, B1", ("loop.bf16_residual=true",), size="bert-base"),
            Way("plain loop", size="bert-base", function="plain_loop"),
            Way("now, large", size="bert-large"),
            Way("now, large, B1", ("loop.bf16_residual=true",), size="bert-large"),
        ])  # fmt: skip

    def ceilings(self) -> Iterator[Record]:
        """What products, copies, attention, the loss's kernel and Muon take by themselves."""
        import ceilings

        yield from ceilings.measure(self.asked.device, self.asked.before, quick=self.asked.quick)

    def typed(self) -> Iterator[Record]:
        """`transfer pretrain` with no flag but its data, and with the best flags."""
        words = self._real_words()
        self._command("fill caches", "pretrain", *words, "model=toy", "loop.steps=2", "device=cpu")
        best = ("precision=bf16", *(() if self.asked.quick else ("loop.compile=true",)))
        for name, flags in (("as typed", ()), ("best flags", best)):
            yield self._command(name, "pretrain", *words, *flags, *self._steps(600))

    def lengths(self) -> Iterator[Record]:
        """Whether attention by cuDNN pays where lengths vary: generation, and fine-tuning."""
        run = self._run("as typed", part="typed")
        tuned = ("data=sample_questions", f"init_from={run}", *self._steps(50))
        written = (f"run={run}", "prompt=The", "max_tokens=400", f"device={self.asked.device}")
        for name, setup in (("cuDNN", ""), ("no cuDNN", NO_CUDNN)):
            yield self._command(f"fine-tuning, {name}", "finetune", *tuned, setup=setup)
            yield self._command(f"generation, {name}", "generate", *written, setup=setup)

    def seeds(self) -> Iterator[Record]:
        """The loss of `base` on real text with B1, and with B2 and B3: three seeds, at once."""
        words = (*self._real_words(), *self._steps(600), "precision=bf16")
        kinds = {"as it is": (), "B1": ("loop.bf16_residual=true",), "B2, B3": (f"model={LEAN}",)}
        started = {
            f"{name}, {seed}": [*more, f"seed={seed}"]
            for seed in range(1 if self.asked.quick else 3)
            for name, more in kinds.items()
        }
        running = {n: self._start(n, "pretrain", *words, *more) for n, more in started.items()}
        for name, process in running.items():
            yield self._ended(name, process)

    # ---------------------------------------------------------------------------- whole commands

    def _real_words(self) -> list[str]:
        if self.asked.quick or self.asked.text is None:
            return ["data=sample_text", "tokenizer.size=600"]
        return ["data=text", f"data.train={self.asked.text}", "tokenizer.size=29056"]

    def _steps(self, steps: int) -> list[str]:
        return [f"loop.steps={4 if self.asked.quick else steps}", f"device={self.asked.device}"]

    def _run(self, name: str, part: str = "") -> Path:
        """Return the run directory of something of a part."""
        return self.folder / f"{part or self.part}-{name.replace(',', '').replace(' ', '-')}"

    def _start(self, name: str, *words: str, setup: str = "") -> subprocess.Popen[bytes]:
        run = self._run(name)
        where = [] if words[0] == "generate" else [f"run.dir={run}"]
        code = (
            f"{setup}\nimport sys\nfrom transfer_cli.cli import main\nsys.exit(main(sys.argv[1:]))"
        )
        with run.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - our own words
                [sys.executable, "-c", code, *words, *where], stdout=log, stderr=log,
                env={
                    **os.environ, "PYTHONPATH": _path(),
                    "TRANSFER_CACHE": str(self.folder / "cache"),
                },
            )  # fmt: skip
        self._commands.append(process)
        return process

    def end_commands(self) -> None:
        """End what a part has left running."""
        for process in self._commands:
            process.kill()
            process.wait()
        self._commands.clear()

    def _ended(self, name: str, process: subprocess.Popen[bytes]) -> Record:
        """Wait for a command; return what it reached, and how fast."""
        began, run = time.monotonic(), self._run(name)
        first_s = None
        while process.poll() is None:
            if first_s is None and (run / "speed.jsonl").exists():
                first_s = round(time.monotonic() - began, 2)
            time.sleep(0.02)
        waited_s = round(time.monotonic() - began, 2)
        said = run.with_suffix(".log").read_text("utf-8", errors="replace")
        record: Record = {
            "command": name, "code": process.returncode, "s": waited_s, "first record s": first_s,
        }  # fmt: skip
        if process.returncode or not (run / "results.json").exists():
            return {**record, "said": said[-600:]}
        results, timing = (
            json.loads((run / f"{n}.json").read_text()) for n in ("results", "timing")
        )
        lines = [json.loads(line) for line in (run / "speed.jsonl").read_text().splitlines()]
        speeds = [line["tokens_per_second"] for line in lines if line["kind"] == "train"]
        return {
            **record, "measures": results["measures"].get("validation"),
            "training s": timing["seconds"], "tokens/s": statistics.median(speeds[-20:]),
            "MiB": round(timing["peak_memory_bytes"] / 2**20),
            "said": [line for line in said.splitlines() if "tokens a second" in line],
        }  # fmt: skip

    def _command(self, name: str, *words: str, setup: str = "") -> Record:
        return self._ended(name, self._start(name, *words, setup=setup))


LEAN = "lean"
"""The preset with B2 and B3: no output bias, and no biases in blocks."""

WITHOUT = {
    "A2 off": """
import transfer_cli.model.vocabulary_loss as loss
loss._adds_wide = lambda device: False
""",
    "A5 off": """
from torch.nn.utils import clip_grads_with_norm_
from transfer_cli.engine.step import TrainStep

def clip_and_step(self, norm, finite):
    moving = [p for p in self._parameters.values() if p.grad is not None]
    clip_grads_with_norm_(moving, self._clip, norm)
    self.optimizer.found_inf = (~finite).float()
    self.optimizer.step()

TrainStep._step_on_device = clip_and_step
""",
    "C5": """
import transfer_cli.model.vocabulary_loss as loss
loss.CHUNK_ELEMENTS["cuda"] = 2**30
""",
}
"""Changes taken away, or one tried, by a few lines of Python."""

PARTS: dict[str, tuple[float, Callable[[Bench], Iterator[Record]]]] = {
    "turns": (210.0, Bench.turns),
    "ceilings": (45.0, Bench.ceilings),
    "host": (60.0, Bench.host),
    "steps": (150.0, Bench.steps_alone),
    "large": (150.0, Bench.large),
    "typed": (110.0, Bench.typed),
    "lengths": (70.0, Bench.lengths),
    "seeds": (200.0, Bench.seeds),
}
"""Each part's limit in seconds, and what it does."""


def _drop_failed(workers: dict[str, Worker], call: Callable[[Worker], object]) -> Iterator[Record]:
    """Call something of each worker; take those out that fail, and say why."""
    for name, worker in list(workers.items()):
        try:
            call(worker)
        except BenchmarkError as error:
            del workers[name]
            yield {"way": name, "failed": str(error)[-1500:]}


def _path(*first: str) -> str:
    """Return where a process of ours finds modules: an earlier commit's first."""
    rest = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.pathsep.join([*map(str, first), *rest])


def load_before(before: str | None, path: str) -> ModuleType | None:
    """Return a module of the earlier commit, under a name of its own."""
    if before is None:
        return None
    name = f"before_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, Path(before) / "transfer_cli" / path)
    assert spec is not None and spec.loader is not None  # noqa: S101, PT018 - a path has both
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


class _OverError(Exception):
    """A part has reached its limit."""


def _interrupt(*_: object) -> None:
    raise _OverError


def run_parts(bench: Bench, out: Path) -> Iterator[Record]:
    """Run what was asked for; write and yield each record."""
    end = time.monotonic() + bench.asked.seconds
    signal.signal(signal.SIGALRM, _interrupt)
    for part in bench.asked.parts:
        limit_s, measure = PARTS[part]
        left = end - time.monotonic()
        if left < LEAST_S:
            yield _written(out, {"part": part, "failed": "no time was left"})
            continue
        began, bench.part = time.monotonic(), part
        signal.alarm(int(min(limit_s, left)))
        ending: Record = {}
        try:
            for record in measure(bench):
                yield _written(out, {"part": part, **record})
        except _OverError:
            ending = {"failed": "its time was over"}
        except Exception as error:  # the next part may work
            ending = {"failed": f"{type(error).__name__}: {error}"[-1500:]}
        finally:
            signal.alarm(0)
            bench.end_commands()
        yield _written(out, {"part": part, "s": round(time.monotonic() - began, 1), **ending})


def _written(out: Path, record: Record) -> Record:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Run parts from the command line; return 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=lambda word: str(Path(word).resolve()))
    parser.add_argument("--text", type=lambda word: str(Path(word).resolve()))
    parser.add_argument("--out", type=Path, default=Path("gpu-trial"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=700.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args(argv)
    out = asked.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    failed = False
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        os.chdir(folder)  # so that a worker of the earlier commit does not find this one
        facts = {"machine": measuring.machine(), "device": asked.device}
        print(json.dumps(_written(out / "ab.jsonl", facts)), flush=True)
        for record in run_parts(Bench(asked, Path(folder)), out / "ab.jsonl"):
            failed |= "failed" in record or bool(record.get("code"))
            print(json.dumps({k: v for k, v in record.items() if k != "profile"}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
