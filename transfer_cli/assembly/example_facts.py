"""What losses know of each example: its teachers' answers, its slices, texts that say the same."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save

from transfer_cli.assembly.datasets import Prepared, encoded_of
from transfer_cli.assembly.ensemble import Ensemble
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.model import direction_of
from transfer_cli.assembly.origins import Origins
from transfer_cli.data.encoded_task import encode_texts
from transfer_cli.data.labelled import Example
from transfer_cli.data.paraphrases import read_paraphrases
from transfer_cli.data.split import Split
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, NotFiniteError, raised_as
from transfer_cli.model.shape import BackboneShape
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.beside_main_head import SliceHeads
from transfer_cli.objectives.of_main_head import Consistency, Distillation
from transfer_cli.progress import progress
from transfer_cli.runs.cache import kept, new_entry
from transfer_cli.runs.slices import Slice
from transfer_cli.tasks.base import Task

log = logging.getLogger(__name__)

_FILE = "answers.safetensors"


def ask_teachers(
    prepared: Mapping[str, Prepared],
    losses: Sequence[Loss],
    precision: Precision,
    origins: Origins,
    cache: Path,
    batch: int,
) -> None:
    """Give every example the answers of its teachers, for each loss that learns from some.

    They are kept in the cache, by the teachers' weights and the texts.
    """
    for loss in losses:
        if not isinstance(loss.objective, Distillation):
            continue
        key, part = f"losses.{loss.name}.teachers", prepared[loss.stream]
        main = prepared["main"].task
        if part.task is None or main is None or part.task.name != main.name:
            raise ConfigError(
                f"losses.{loss.name}.stream: teachers answer what the main loss learns; take main, "
                "or a stream of rest or of the same task"
            )
        try:
            teachers = (open_trained(path, precision) for path in loss.objective.teachers)
            ensemble = Ensemble(teachers, precision, batch)
            part.task.check_combines(ensemble.task, "this run", loss.objective.teachers[0])
        except CheckpointError as error:
            raise CheckpointError(f"{key}: {str(error).removeprefix('run: ')}") from error
        digest = ensemble.digest()
        origins.weights(key, Path(loss.objective.teachers[0]), digest)
        for split in part.splits.values():
            data: Any = encoded_of(split)
            ask = partial(_answers, ensemble, part.task, data.examples)
            data.add_answers(
                loss.objective.key, _known(cache, digest, part.task, data.examples, ask)
            )


def _known(
    cache: Path, digest: str, task: Task, examples: Sequence[Any], ask: Any
) -> npt.NDArray[np.float32]:
    texts = hashlib.blake2b(f"{digest} {task.labels}".encode(), digest_size=16)
    for example in examples:
        texts.update("\0".join(task.inputs(example)).encode() + b"\1")
    entry = cache / "teachers" / texts.hexdigest()

    def read(entry: Path) -> npt.NDArray[np.float32] | None:
        found: npt.NDArray[np.float32] = load_file(entry / _FILE)["answers"]
        return found

    def write(found: npt.NDArray[np.float32]) -> None:
        with new_entry(entry) as unfinished:
            # Not `save_file`, which has an error of its own for a full disk.
            (unfinished / _FILE).write_bytes(save({"answers": found}))

    if distributed.world_size() > 1:
        return ask()  # type: ignore[no-any-return]  # each process does a part of them
    return kept(entry, read, ask, write, partial(log.warning, "answers are not kept: %s"))


def _answers(ensemble: Ensemble, task: Task, examples: Sequence[Any]) -> npt.NDArray[np.float32]:
    """Return what the teachers say of each example, or word by word, `[N, labels]`.

    Choices and numbers likewise.
    """
    with progress("asking teachers", ensemble.num_runs * len(examples), "texts") as more:
        found = ensemble.together(examples, more)
    ensemble.say_cuts()
    if None in found:
        raise NotFiniteError(f"a teacher's answer to example {found.index(None) + 1:,}")
    ours = (task.combine([(ensemble.task, answer)]) for answer in found if answer is not None)
    rows = [row for answer in ours for row in task.learnt(answer)]
    answers = np.zeros((len(rows), max(map(len, rows))), np.float32)
    for number, row in enumerate(rows):
        answers[number, : len(row)] = row
    return answers


def mark_examples(
    prepared: Mapping[str, Prepared],
    losses: Sequence[Loss],
    shape: BackboneShape,
    tokenizer: Tokenizer,
) -> None:
    """Tell every example which slices it is in, and which paraphrases it has, for losses on them.

    Paraphrases are encoded for a model of this shape.
    """
    for loss in losses:
        objective, part = loss.objective, prepared[loss.stream]
        if isinstance(objective, SliceHeads):
            _mark_slices(loss, objective, part)
        elif isinstance(objective, Consistency) and objective.paraphrases is not None:
            rows = _mark_paraphrases(loss.name, objective, part, Path(objective.paraphrases))
            train: Any = encoded_of(part.splits["train"])
            length = int(train.lengths.max()) if train.num_cut else shape.positions
            objective.encoded = encode_texts(rows, tokenizer, length, direction_of(shape))


def _mark_slices(loss: Loss, objective: SliceHeads, part: Prepared) -> None:
    key = f"losses.{loss.name}"
    if part.task is None or loss.stream != "main":
        raise ConfigError(f"{key}.stream: slices are parts of the labelled main stream")
    for split in part.splits.values():
        members = members_of(objective.parts, split, part.task, f"{key}.parts")
        data: Any = encoded_of(split)
        data.add(objective.key, np.stack([*members.values()], 1)[data.example_of])
        for name, member_N in members.items():
            if split.name == "train" and not member_N.any():
                log.warning("%s.parts.%s: no training example is in it", key, name)


def _mark_paraphrases(
    name: str, objective: Consistency, part: Prepared, path: Path
) -> list[Example]:
    """Return the paraphrases that the examples have, to whose numbers these are told."""
    key = f"losses.{name}.paraphrases"
    with raised_as(DataError, f"{key}: ", DataError):
        known = read_paraphrases(path)
    rows, places = list[Example](), dict[str, tuple[int, int]]()
    for split in part.splits.values():
        data: Any = encoded_of(split)
        texts = [() if part.task is None else part.task.texts(each) for each in data.examples]
        if not objective.main.units_are_examples or any(len(each) != 1 for each in texts):
            raise ConfigError(
                f"{key}: they are for examples of one text each; take losses.{name}.perturb"
            )
        keys = [text.strip() for (text,) in texts]
        for text in keys:
            if text in known and text not in places:
                places[text] = len(rows), len(known[text])
                rows += map(Example, known[text])
        place_N2 = np.array([places.get(text, (0, 0)) for text in keys], np.int64).reshape(-1, 2)
        data.add(objective.key, place_N2[data.example_of])
        if split.name == "train":
            told = int((place_N2[:, 1] > 0).sum())
            if not told:
                raise ConfigError(f"{key}: {path} has none of the {len(keys):,} training texts")
            log.info(
                "%s: %s of %s training texts have some, the others are perturbed (%s)", key,
                f"{told:,}", f"{len(keys):,}", objective.perturb,
            )  # fmt: skip
    return rows


def members_of(
    slices: Mapping[str, Slice], split: Split, task: Task, key: str
) -> dict[str, npt.NDArray[np.bool_]]:
    """Return which examples of a split are in each slice, by name."""
    texts = [task.texts(example) for example in encoded_of(split).examples]
    found = {}
    for name, part in slices.items():
        with raised_as(DataError, f"{key}.{name}: ", DataError):
            found[name] = part.members(split.name, texts, split.column)
    return found
