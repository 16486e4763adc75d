"""Fifteen minutes on one large GPU: what this commit does faster than an earlier one, and why.

    python scripts/gpu/ab.py [--before FOLDER] [--bert MINILM --data-dir DATA] [--causal SMOLLM2]
        [--parts turns host ...]

FOLDER holds `transfer_cli/` and `conf/` of the earlier commit (`git archive`). MINILM and SMOLLM2
are folders of published models, for the parts `steps` and `tokens`, whose passes are too short for
a host; their weights decide nothing. Parts run in the order of what they tell; each has a limit,
and none begins that `--seconds` have run out for. `OUT/ab.jsonl` gets a line for each figure as it
comes, so what was measured stays whatever comes after. Kinds of one part take turns of twenty
steps, having compiled at the same time. `--quick --device cpu` tries all of it in some minutes; its
figures mean nothing.
"""

import argparse
import contextlib
import json
import math
import os
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import gpu
import measuring
import product
import torch
from measuring import BenchmarkError, Turn, Variant, Worker

from transfer_cli.engine.precision import Precision
from transfer_cli.training.measurements import peak_flops

ROOT = Path(__file__).resolve().parents[2]
STEPS, ROUNDS = 20, 5
"""Of a turn; turns of each kind."""
LEAST_S = 15.0
"""No part begins with less than this left."""

NO_GRAPHS = ("loop.cuda_graphs=false",)
RESIDUAL = ("loop.bf16_residual=true",)
MUON = ("optimizer=muon", "schedule=trapezoid")
SAME_WORK = ("model.activation=relu", "model.output_bias=false")
"""What makes a step ours that of the plain loop."""

Record = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """A way to train: overrides of `transfer pretrain`, or a function of `gpu.py`.

    `model` is the preset, if that is not named like the size of `gpu.SIZES`. The earlier commit
    does what is `before`; where it `is_short`, the last batch of an epoch is.
    """

    name: str
    words: tuple[str, ...] = ()
    function: str = "transfer_run"
    size: str = "base"
    model: str = ""
    before: bool = False
    is_short: bool = False


class Bench:
    """What was asked for, and how a set of ways takes turns."""

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        self.args, self.folder = args, folder
        self.rounds, self.steps = (1, 2) if args.quick else (ROUNDS, STEPS)
        self._materials: dict[tuple[int, bool], product.Material] = {}
        self.part = ""
        precision = Precision("bf16", torch.device(args.device))
        self.peak_flops = peak_flops(precision) or math.inf
        self.turns_of_all = {
            "steps": self.steps, "device": args.device, "profiled": 2 + self.rounds,
        }  # fmt: skip
        self.has_peers = all(map(find_spec, ("transformers", "accelerate")))

    def size(self, way: Way) -> dict[str, int]:
        """Return the size of a way, or that of a trial."""
        return gpu.SIZES["trial" if self.args.quick else way.size]

    def train(self, ways: Sequence[Way]) -> Iterator[Record]:
        """Let ways to train take turns; yield what a step of each takes, and how much that is."""
        runnable = {way.name: way for way in ways if self.args.before is not None or not way.before}
        for record in self.take_turns(list(map(self._variant, runnable.values()))):
            if "ms" in record:
                way = runnable[record["way"]]
                size = self.size(way)
                rate = 1000 * size["batch"] * size["length"] / record["ms"]
                mfu = rate * gpu.flops_per_token(size) / self.peak_flops
                record |= {"size": way.size, "MFU": round(mfu, 4), "tokens/s": round(rate)}
            yield record

    def take_turns(self, variants: Sequence[Variant]) -> Iterator[Record]:
        """Let variants take turns; yield what a step of each takes. One that fails is left out."""
        with contextlib.ExitStack() as ending:
            workers = {}
            for variant in variants:
                workers[variant.name] = Worker(variant, 2, self.folder)
                ending.callback(workers[variant.name].end)
            yield from _drop_failed(workers)
            for worker in workers.values():  # all compile at the same time, and see an epoch's end
                worker.go(2)
            yield from _drop_failed(workers)
            turns: dict[str, list[Turn]] = {name: [] for name in workers}
            for number in range(self.rounds + 1):
                order = list(workers) if number % 2 == 0 else list(reversed(workers))
                for name in order:
                    workers[name].go(1)
                    turns[name].append(workers[name].result())
        for name, (*timed, profiled) in turns.items():
            all_ms = [1000 * turn.wall_s / self.steps for turn in timed]
            yield {
                "way": name, "ms": round(statistics.median(all_ms), 3),
                "all ms": [round(ms, 2) for ms in all_ms],
                "MiB": round(timed[-1].notes.get("gpu_mib", 0.0)),
                "profile": {what: round(value, 3) for what, value in profiled.notes.items()},
            }  # fmt: skip

    def _variant(self, way: Way) -> Variant:
        size, quick = self.size(way), self.args.quick
        if way.function != "transfer_run":
            options = {**self.turns_of_all, "size": size, "compiled": not quick}
            return Variant(way.name, "gpu", way.function, options)
        material = self._material(size, is_short=way.is_short)
        run = re.sub(r"\W+", "-", f"{self.part} {way.name}")
        preset = way.model or way.size.removesuffix("-two")
        words = [
            f"model={preset}", *product.model_overrides(size), "model.attention_dropout=0",
            f"loop.compile={str(not quick).lower()}", "loop.log_every=50", *material.words,
            *product.ENDLESS, f"device={self.args.device}", "precision=bf16", *way.words,
            f"run.dir={self.folder / run}",
        ]  # fmt: skip
        options = {**self.turns_of_all, "words": words}
        paths = [self.args.before if way.before else "", str(ROOT), os.environ.get("PYTHONPATH")]
        env = {**material.env, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
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
        yield from self.train([
            Way("before", before=True),
            Way("now"),
            Way("now, short batch", is_short=True),
            Way("now, same work", SAME_WORK),
            Way("now, B1", RESIDUAL),
            Way("now, B1 to B3", RESIDUAL, model="lean"),
            Way("now, no graphs", NO_GRAPHS),
            Way("now, same work, no graphs", SAME_WORK + NO_GRAPHS),
            Way("now, Muon", MUON),
            Way("plain loop", function="plain_loop"),
            *([Way("Trainer", function="trainer")] if self.has_peers else []),
        ])  # fmt: skip

    def host(self) -> Iterator[Record]:
        """Two sequences a step, for which a GPU waits: what the host takes."""
        yield from self.train([
            Way("before", size="base-two", before=True),
            Way("now", size="base-two"),
            Way("now, no graphs", NO_GRAPHS, size="base-two"),
            Way("plain loop", size="base-two", function="plain_loop"),
        ])  # fmt: skip

    def large(self) -> Iterator[Record]:
        """`bert-base` and `bert-large`, 32 x 512 tokens, as causal models."""
        yield from self.train([
            Way("before", size="bert-base", before=True),
            Way("now", size="bert-base"),
            Way("now, B1", RESIDUAL, size="bert-base"),
            Way("plain loop", size="bert-base", function="plain_loop"),
            Way("now, large", size="bert-large"),
            Way("now, large, B1", RESIDUAL, size="bert-large"),
        ])  # fmt: skip

    def short_steps(self) -> Iterator[Record]:
        """A step of fine-tuning a small published model on TREC-6, beside the Trainer."""
        args, batch = self.args, 32
        words = [
            "data=trec6", f"data_dir={args.data_dir}", f"init_from={args.bert}",
            f"loop.batch={batch}", *product.ENDLESS, f"device={args.device}", "logger=null",
        ]  # fmt: skip
        ways = {"now": (), "now, no graphs": NO_GRAPHS}
        variants = [
            Variant(name, "gpu", "transfer_run", {
                **self.turns_of_all, "command": "finetune",
                "words": [*words, *more, f"run.dir={self.folder / f'steps-{len(more)}'}"],
            })
            for name, more in ways.items()
        ]  # fmt: skip
        if self.has_peers:
            options = {"folder": args.bert, "data_dir": args.data_dir, "batch": batch}
            options |= {"compiled": not args.quick, **self.turns_of_all}
            variants.append(Variant("Trainer", "gpu", "trec_trainer", options))
        yield from self.take_turns(variants)

    def single_tokens(self) -> Iterator[Record]:
        """A token of generation, of one text and of eight, beside transformers."""
        kinds = ("fp32",) if self.args.quick else ("bf16", "fp32")
        ways: dict[str, tuple[str, Record]] = {
            "now": ("write_tokens", {"graphs": True}),
            "now, no graphs": ("write_tokens", {"graphs": False}),
            **({"transformers": ("write_tokens_of_peer", {})} if self.has_peers else {}),
        }
        shared = {"folder": self.args.causal, "tokens": self.steps * (self.rounds + 4)}
        shared |= self.turns_of_all
        yield from self.take_turns([
            Variant(f"{name}, {kind}, {rows}", "gpu", function,
                    {**shared, **more, "kind": kind, "rows": rows})
            for kind in kinds for rows in (1, 8) for name, (function, more) in ways.items()
        ])  # fmt: skip


PARTS: dict[str, tuple[float, Callable[[Bench], Iterator[Record]]]] = {
    "turns": (210.0, Bench.turns),
    "host": (60.0, Bench.host),
    "steps": (90.0, Bench.short_steps),
    "tokens": (120.0, Bench.single_tokens),
    "large": (150.0, Bench.large),
}
"""Each part's limit in seconds, and what it does."""


def _drop_failed(workers: dict[str, Worker]) -> Iterator[Record]:
    """Wait for a turn of each worker; take those out that fail, and say why."""
    for name, worker in list(workers.items()):
        try:
            worker.result()
        except BenchmarkError as error:
            del workers[name]
            yield {"way": name, "failed": str(error)[-1500:]}


class _OverError(Exception):
    """A part has reached its limit."""


def _interrupt(*_: object) -> None:
    raise _OverError


def run_parts(bench: Bench, out: Path) -> Iterator[Record]:
    """Run what was asked for; write and yield each record."""
    end = time.monotonic() + bench.args.seconds
    signal.signal(signal.SIGALRM, _interrupt)
    for part in bench.args.parts:
        limit_s, measure = PARTS[part]
        left = end - time.monotonic()
        if left < LEAST_S:
            yield _write_record(out, {"part": part, "failed": "no time was left"})
            continue
        began, bench.part = time.monotonic(), part
        signal.alarm(int(min(limit_s, left)))
        ending: Record = {}
        try:
            for record in measure(bench):
                yield _write_record(out, {"part": part, **record})
        except _OverError:
            ending = {"failed": "its time was over"}
        except Exception as error:  # the next part may work
            ending = {"failed": f"{type(error).__name__}: {error}"[-1500:]}
        finally:
            signal.alarm(0)
        yield _write_record(out, {"part": part, "s": round(time.monotonic() - began, 1), **ending})


def _write_record(out: Path, record: Record) -> Record:
    with out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """Run parts from the command line; return 1 if something failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--before", "--bert", "--causal", "--data-dir"):
        parser.add_argument(name, type=lambda word: str(Path(word).resolve()))
    parser.add_argument("--out", type=Path, default=Path("gpu-trial"))
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, help="else all that have what they need"
    )
    parser.add_argument("--seconds", type=float, default=700.0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args(argv)
    needs = {"steps": args.bert and args.data_dir, "tokens": args.causal}
    args.parts = args.parts or [part for part in PARTS if needs.get(part, True)]
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "2")
    failed = False
    with tempfile.TemporaryDirectory(prefix="ab-") as folder:
        os.chdir(folder)  # so that a worker of the earlier commit does not find this one
        facts = {"machine": measuring.machine_facts(), "device": args.device}
        print(json.dumps(_write_record(out / "ab.jsonl", facts)), flush=True)
        for record in run_parts(Bench(args, Path(folder)), out / "ab.jsonl"):
            failed |= "failed" in record
            print(json.dumps({k: v for k, v in record.items() if k != "profile"}), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
