"""`transfer` itself as a worker: a real command, stopped at each of its steps.

The text and the tokenizer of a run are made for the purpose: random words, each of them one token,
so that a vocabulary has exactly the size that the peers' has, and nothing has to be downloaded.
"""

import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_LINES = 200
"""Enough for a share of them to be held out."""

FOR_EVER = 10**6
"""Steps that no benchmark comes to the end of."""

ENDLESS = (
    f"loop.steps={FOR_EVER}",
    f"loop.evaluate_every={FOR_EVER} steps",
    f"checkpoint.every={FOR_EVER} steps",
)
"""The engine, records and the progress bar are on; validation and checkpoints never come."""

UNDISTURBED = ("device=cpu", "precision=fp32", *ENDLESS)
"""The same on a CPU."""


class _EnoughError(BaseException):
    """Ends a command that has been measured; no `Exception`, so that nobody reports it."""


@dataclass(frozen=True)
class Material:
    """A text and a tokenizer that lie in a folder.

    Args:
        folder: Where; runs and caches go there as well.
    """

    folder: Path

    @property
    def words(self) -> list[str]:
        """The overrides that name them."""
        return [
            "data=text",
            f'data.train="{self.folder / "text.txt"}"',
            "tokenizer=file",
            f'tokenizer.path="{self.folder / "tokenizer.json"}"',
            f"run.root={self.folder / 'runs'}",
        ]

    @property
    def env(self) -> dict[str, str]:
        """Where a command keeps what it makes of them."""
        return {"TRANSFER_CACHE": str(self.folder / "cache"), "TRANSFER_DATA": str(self.folder)}


def make_material(folder: Path, vocabulary: int, tokens: int) -> Material:
    """Write a text of so many tokens, and the tokenizer of its words."""
    words = [_word(number) for number in range(vocabulary - len(SPECIALS))]
    entries = {piece: number for number, piece in enumerate([*SPECIALS, *words])}
    model = {"type": "WordLevel", "vocab": entries, "unk_token": "[UNK]"}
    special = [
        {"id": number, "content": piece, "special": True}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for number, piece in enumerate(SPECIALS)
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "truncation": None,
        "padding": None,
        "model": model,
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    drawn = random.Random(0)  # noqa: S311 - a text, not a key
    lines = (" ".join(drawn.choices(words, k=-(-tokens // _LINES))) for _ in range(_LINES))
    with (folder / "text.txt").open("w") as file:
        file.writelines(f"{line}\n" for line in lines)
    return Material(folder)


def _word(number: int) -> str:
    letters = []
    for _ in range(4):
        number, letter = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[letter])
    return "".join(letters)


# ------------------------------------------------------------------------------------- workers


def pretrain(arrive: Callable[[], None], words: Sequence[str], command: str = "pretrain") -> None:
    """Run `transfer COMMAND WORDS`, all of it, and stop at the start of each step."""
    from ignite.engine import Events

    from transfer_cli.training import trainer

    def build(*parts: Any) -> Any:
        trainer = build_trainer(*parts)
        trainer.add_event_handler(Events.ITERATION_STARTED, lambda engine: arrive())
        return trainer

    build_trainer = trainer.build_trainer
    with patch.object(trainer, "build_trainer", build):
        _command(words, command)


def pretrain_timed(arrive: Any, words: Sequence[str]) -> None:
    """Run `transfer pretrain WORDS`, and note where the time of each step goes.

    Notes of the step before: `step_s`, the training step; `batch_s`, fetching its batch; `engine_s`
    and `engine_cpu_s`, everything else: Ignite, handlers, records, the progress bar.
    """
    from ignite.engine import Events

    from transfer_cli.training import trainer

    parts = _Parts()

    def build(step: Callable[..., Any], progress: Any) -> Any:
        def timed(*given: Any) -> Any:
            parts.begin("step")
            report = step(*given)
            parts.begin("engine")
            return report

        # What it is given is a TrainStep to it: it only calls it.
        trainer = build_trainer(timed, progress)  # type: ignore[arg-type]
        on = trainer.add_event_handler
        on(Events.GET_BATCH_STARTED, lambda engine: parts.begin("batch"))
        on(Events.GET_BATCH_COMPLETED, lambda engine: parts.begin("engine"))
        on(Events.ITERATION_STARTED, lambda engine: stop())
        return trainer

    def stop() -> None:
        parts.begin("stopped")
        arrive.note(**parts.passed())
        arrive()
        parts.begin("engine")

    build_trainer = trainer.build_trainer
    with patch.object(trainer, "build_trainer", build):
        _command(words)


class _Parts:
    """Adds up the time of parts that follow each other."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._now = "engine"
        self._wall, self._cpu = time.perf_counter(), time.thread_time()

    def begin(self, name: str) -> None:
        """End the part before, and begin one."""
        wall, cpu = time.perf_counter(), time.thread_time()
        for key, passed in (("s", wall - self._wall), ("cpu_s", cpu - self._cpu)):
            part = f"{self._now}_{key}"
            self._sums[part] = self._sums.get(part, 0.0) + passed
        self._now, self._wall, self._cpu = name, wall, cpu

    def passed(self) -> dict[str, float]:
        """Return the sums, and begin anew."""
        sums, self._sums = self._sums, {}
        return sums


def bare_loop(arrive: Callable[[], None], words: Sequence[str]) -> None:
    """Take the very steps of `transfer pretrain WORDS` in a loop of a line, without an engine."""

    def loop(step: Callable[..., Any], batch_of: Callable[[int], Any]) -> None:
        for number in itertools.count():
            arrive()
            step(batch_of(number), number)

    in_place_of_engine(words, loop)


def in_place_of_engine(
    words: Sequence[str], body: Callable[[Callable[..., Any], Callable[[int], Any]], None]
) -> None:
    """Run `transfer pretrain WORDS` until its engine would start, and `body` in its place.

    Args:
        words: Overrides.
        body: Called with the training step and with what returns the batch of a step by its number.
            When it returns, the command is over and leaves no run directory behind.
    """
    from transfer_cli.data.loader import StepDataLoader
    from transfer_cli.training import trainer

    taken: list[Callable[..., Any]] = []

    def build(step: Callable[..., Any], progress: Any) -> Any:
        taken.append(step)
        # A TrainStep and its Progress, which are not imported before a worker has begun.
        return build_trainer(step, progress)  # type: ignore[arg-type]

    def run(trainer: Any, streams: Any, *, micro_batch: int, mixture: Any, **others: Any) -> None:
        loader = StepDataLoader(streams, micro_batch, lambda: 0, mixture)
        body(taken[0], loader.at)
        raise _EnoughError

    build_trainer = trainer.build_trainer
    with (
        patch.object(trainer, "build_trainer", build),
        patch.object(trainer, "run_trainer", run),
        suppress(_EnoughError),
    ):
        _command(words)


def _command(words: Sequence[str], command: str = "pretrain") -> None:
    from transfer_cli.cli import main

    sys.exit(main([command, *words]))
