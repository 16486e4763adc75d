"""`transfer` itself as a worker: a real command, stopped at each of its steps; and what it reads.

The text and the tokenizer of a run are made for the purpose: random words, each of them one token,
so that a vocabulary has exactly the size that the peers' has, and nothing has to be downloaded.
"""

import csv
import itertools
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from measuring import BenchmarkError, Gate, Variant

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LINES = 200
"""Enough for a share of them to be held out."""

ENDLESS = (
    "loop.steps=1000000", "loop.evaluate_every=1000000 steps", "checkpoint.every=1000000 steps",
)  # fmt: skip
"""The engine, records and the progress bar are on; validation and checkpoints never come."""

ENDLESS_ON_CPU = ("device=cpu", "precision=fp32", *ENDLESS)
"""The same on a CPU."""

SIZES = ("width", "heads", "depth", "feedforward", "vocabulary", "length", "batch")
TUTORIAL = dict(zip(SIZES, (410, 10, 16, 2100, 28_996, 256, 8), strict=True))
TRIAL = dict(zip(SIZES, (32, 2, 2, 64, 500, 32, 4), strict=True))
"""A size that is over in no time."""

CLIP = 0.25
"""The tutorial's; peers.py has the same."""


@dataclass(frozen=True)
class Material:
    """A text and a tokenizer that lie in a folder, where runs and caches go as well."""

    folder: Path

    @property
    def words(self) -> list[str]:
        """The overrides that name them."""
        return [
            "data=text", f'data.train="{self.folder / "text.txt"}"', "tokenizer=file",
            f'tokenizer.path="{self.folder / "tokenizer.json"}"',
            f"run.root={self.folder / 'runs'}",
        ]  # fmt: skip

    @property
    def env(self) -> dict[str, str]:
        """Where a command keeps what it makes of them."""
        return {"TRANSFER_CACHE": str(self.folder / "cache"), "TRANSFER_DATA": str(self.folder)}

    def worker(self, words: Sequence[str], function: str = "train") -> Variant:
        """Return the variant that is `transfer pretrain WORDS` itself."""
        return Variant("transfer", "product", function, {"words": list(words)}, env=self.env)


def make_material(
    folder: Path, vocabulary: int, tokens: int, known: Sequence[str] = ()
) -> Material:
    """Write a text of so many tokens, and the tokenizer of its words and of known ones."""
    count = vocabulary - len(SPECIALS)
    words = [*known, *("".join(word) for word in itertools.product(_LETTERS, repeat=4))][:count]
    special = [
        {"id": number, "content": piece, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, piece in enumerate(SPECIALS)
    ]
    entries = {piece: number for number, piece in enumerate([*SPECIALS, *words])}
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": entries, "unk_token": "[UNK]"},
        **dict.fromkeys(("normalizer", "post_processor", "decoder", "truncation", "padding")),
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    generator = random.Random(0)  # noqa: S311 - draws a text, the same each time
    lines = (" ".join(generator.choices(words, k=-(-tokens // _LINES))) for _ in range(_LINES))
    (folder / "text.txt").write_text("".join(f"{line}\n" for line in lines))
    return Material(folder)


def sized_run(size: dict[str, int], folder: Path) -> tuple[list[str], Material]:
    """Return the overrides of a model and batch of a size on a CPU, and a text for its steps."""
    material = make_material(folder, size["vocabulary"], 40 * size["batch"] * size["length"])
    words = ["model=tutorial", *model_overrides(size), f"loop.clip={CLIP}"]
    return [*words, *material.words, *ENDLESS_ON_CPU], material


def model_overrides(size: dict[str, int]) -> list[str]:
    """Return the overrides that give a model and its batches a size."""
    named = [f"model.{name}={size[name]}" for name in ("width", "heads", "depth", "feedforward")]
    return [*named, f"model.positions={size['length']}", f"loop.batch={size['batch']}"]


def size_title(size: dict[str, int]) -> str:
    """Return a size in words."""
    return (
        f"{size['batch']} x {size['length']} tokens, width {size['width']}, depth {size['depth']}, "
        f"vocabulary {size['vocabulary']:,}"
    )


def read_trec(data_dir: Path) -> dict[str, list[tuple[str, str]]]:
    """Return labels and questions of TREC; of ten for training one is for validation."""
    rows: dict[str, list[tuple[str, str]]] = {}
    for split, name in (("train", "train_5500.label"), ("test", "TREC_10.label")):
        path = data_dir / "trec" / name
        if not path.exists():
            raise BenchmarkError(f"{path} is missing: transfer inspect data=trec6 data_dir=DIR")
        lines = (line.partition(" ") for line in path.read_text("latin-1").splitlines())
        rows[split] = [(label.partition(":")[0], question) for label, _, question in lines]
    rows["validation"] = rows["train"][::10]
    del rows["train"][::10]
    return rows


def write_table(path: Path, rows: Sequence[tuple[str, str]]) -> None:
    """Write labels and texts as a table."""
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("label", "text"), *rows])


# ------------------------------------------------------------------------------------- workers


class _EnoughError(BaseException):
    """Ends a command that has been measured; no `Exception`, so that nobody reports it."""


def train(arrive: Callable[[], None], words: Sequence[str], command: str = "pretrain") -> None:
    """Run `transfer COMMAND WORDS`, all of it, and stop at the start of each step."""
    from ignite.engine import Engine, Events

    def run(engine: Engine, *arguments: Any, **settings: Any) -> Any:
        engine.add_event_handler(Events.ITERATION_STARTED, lambda _: arrive())
        return original(engine, *arguments, **settings)

    original = Engine.run
    with patch.object(Engine, "run", run):
        _run_command(words, command)


def pretrain_timed(arrive: Gate, words: Sequence[str]) -> None:
    """Run `transfer pretrain WORDS`, and note where the time of each step goes.

    Notes of the step before: `step_s`, the training step; `batch_s`, fetching its batch; `engine_s`
    and `engine_cpu_s`, everything else: Ignite, handlers, records, the progress bar.
    """
    from ignite.engine import Engine, Events

    parts = _PartTimer()

    def run(engine: Engine, *arguments: Any, **settings: Any) -> Any:
        step = engine._process_function

        def timed(*step_arguments: Any) -> Any:
            parts.begin("step")
            report = step(*step_arguments)
            parts.begin("engine")
            return report

        engine._process_function = timed
        add_handler = engine.add_event_handler
        add_handler(Events.GET_BATCH_STARTED, lambda _: parts.begin("batch"))
        add_handler(Events.GET_BATCH_COMPLETED, lambda _: parts.begin("engine"))
        add_handler(Events.ITERATION_STARTED, lambda _: stop())
        return original(engine, *arguments, **settings)

    def stop() -> None:
        parts.begin("stopped")
        arrive.note(**parts.take_sums())
        arrive()
        parts.begin("engine")

    original = Engine.run
    with patch.object(Engine, "run", run):
        _run_command(words, "pretrain")


class _PartTimer:
    """Adds up the time of parts that follow each other."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = defaultdict(float)
        self._now = "engine"
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def begin(self, name: str) -> None:
        """End the part before, and begin one."""
        wall, cpu = time.perf_counter(), time.thread_time()
        for key, passed in (("s", wall - self._wall), ("cpu_s", cpu - self._cpu)):
            self._sums[f"{self._now}_{key}"] += passed
        self._now, self._wall, self._cpu = name, wall, cpu

    def take_sums(self) -> dict[str, float]:
        """Return the sums, and begin anew."""
        sums, self._sums = self._sums, defaultdict(float)
        return sums


def replace_engine(words: Sequence[str], body: Callable[[Callable[[int], Any], Any], None]) -> None:
    """Run `transfer finetune WORDS` until its engine would start, and `body` in its place.

    That is called with what takes a step by its number, its batch included, and with the loader of
    batches. When it returns, the command is over and leaves no run directory behind.
    """
    from ignite.engine import Engine

    def run(engine: Engine, loader: Any, **_: Any) -> None:
        def step(number: int) -> Any:
            engine.state.iteration = number + 1
            return engine._process_function(engine, loader.load(number))

        body(step, loader)
        raise _EnoughError

    with patch.object(Engine, "run", run), suppress(_EnoughError):
        _run_command(words, "finetune")


def build_finetuning(words: Sequence[str]) -> Any:
    """Return what `transfer finetune WORDS` is put together from."""
    from transfer_cli.assembly.run import build_run
    from transfer_cli.config import compose, flags

    request = flags.parse_request(list(words), "finetune")
    return build_run(compose.load_config("finetune", request), "finetune")


def _run_command(words: Sequence[str], command: str) -> None:
    from transfer_cli.cli import main

    sys.exit(main([command, *words]))
