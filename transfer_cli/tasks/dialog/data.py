"""Data sets of dialogs: PersonaChat's file, JSON lines of turns, and an embedded sample."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from transfer_cli.data import readers, sample
from transfer_cli.data.columns import Wanted, other_data
from transfer_cli.data.drawing import hold_out
from transfer_cli.data.labelled import INPUT, Drawn, LabelledData, LabelledFiles
from transfer_cli.data.records import Record, text_of
from transfer_cli.errors import DataError, at_least
from transfer_cli.safe_files import STRICT_JSON
from transfer_cli.seeds import derive
from transfer_cli.tasks.dialog.task import SPEAKERS, DialogExample, DialogTask

_SPLITS = {"train": "train", "validation": "valid"}
"""What PersonaChat's file calls our splits."""


@dataclass(kw_only=True)
class _Spoken(Drawn):
    """A data set of turns of dialogs.

    Args:
        candidates: Replies of a training turn: the right one, and others drawn by the seed; None:
            all. Turns that are scored keep all of theirs.
        max_history: See `DialogTask`; so are
        speakers: the marks.
    """

    kind: ClassVar[str | None] = "dialog"

    candidates: int | None = 2
    max_history: int = 2
    speakers: tuple[str, ...] = SPEAKERS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.candidates is not None:
            at_least("candidates", self.candidates, 2)
        at_least("max_history", self.max_history, 0)

    def texts(self, example: DialogExample) -> Sequence[str]:
        """See `Drawn`."""
        return DialogTask().texts(example)

    def strata(self, examples: Sequence[DialogExample]) -> Sequence[int]:
        """See `Drawn`."""
        return [0] * len(examples)

    def check(self, train: Sequence[DialogExample], labels: Sequence[str], where: str) -> None:
        """See `Drawn`: the readers have checked each turn."""

    def held_out(
        self, train: Sequence[DialogExample], share: float, seed: int, where: str
    ) -> tuple[tuple[DialogExample, ...], tuple[DialogExample, ...]]:
        """Hold out a share of the dialogs, with all their turns."""
        of_turn = [(tuple(each.persona), *each.history[:1]) for each in train]
        dialogs = tuple(dict.fromkeys(of_turn))
        _, held = hold_out(dialogs, share, seed, where, [0] * len(dialogs))
        is_out, turns = set(held), list(zip(train, of_turn, strict=True))
        return (
            tuple(turn for turn, dialog in turns if dialog not in is_out),
            tuple(turn for turn, dialog in turns if dialog in is_out),
        )

    def _ready(self, data: LabelledData, seed: int, share: float = 0) -> LabelledData:
        """Return data with all splits, and few candidates in training."""
        task = DialogTask.node(max_history=self.max_history, speakers=list(self.speakers))
        data = self._drawn(replace(data, task=task), seed, share)
        if self.candidates is None:
            return data
        # Of Python's generator, only random() is promised to stay the same in later versions.
        draw = random.Random(derive(seed, "distractors")).random  # noqa: S311 - no secret
        train = tuple(_fewer(each, self.candidates, draw) for each in data.splits["train"])
        return replace(data, splits={**data.splits, "train": train})


def _fewer(example: DialogExample, count: int, draw: Any) -> DialogExample:
    """Return a turn with `count` candidates, none of which is another right one."""
    right = example.choices[example.label or 0]
    others = [each for each in example.choices if each != right]
    order = sorted(range(len(others)), key=[draw() for _ in others].__getitem__)
    kept = [others[at] for at in order[: count - 1]]
    return replace(example, choices=[*kept, right], label=len(kept))


@dataclass(kw_only=True)
class Dialogs(_Spoken, LabelledFiles):
    """PersonaChat's released JSON, which holds both splits, or JSON lines, one a turn.

    The last candidate of a turn is the right one.
    """

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        paths, splits = self.paths, {}
        for name, path in paths.items():
            found = read_turns(path)
            splits[name] = found[name] if name in found else next(iter(found.values()))
            if name == "train" and "validation" in found and "validation" not in paths:
                splits["validation"] = found["validation"]
        data = LabelledData(paths["train"].stem, (), splits, files=paths)
        return self._ready(data, seed, self.validation_share)

    def whole(self, own: Wanted) -> LabelledData:
        """See `LabelledFiles`; of PersonaChat's file, the turns of `valid`."""
        path = self.paths["train"]
        found = read_turns(path)
        turns = found.get("validation", found["train"])
        return LabelledData(path.stem, (), {INPUT: turns}, DialogTask.node(), files={"train": path})


@dataclass(kw_only=True)
class SampleDialog(_Spoken):
    """The embedded dialogs about the made-up encyclopedia.

    What is said of the name that is asked about only the encyclopedia tells; see `data.sample`.

    Args:
        world: Which made-up world they are about: the one of the encyclopedia read before.
    """

    candidates: int | None = None
    speakers: tuple[str, ...] = ("What", "Why")
    world: int = 0

    def load(self, data_dir: Path, seed: int) -> LabelledData:
        """See `TaskData`; `data_dir` changes nothing."""
        splits = {
            name: [DialogExample(*each, label=len(each[2]) - 1) for each in turns]
            for name, turns in sample.dialogs(self.world).items()
        }
        return self._ready(LabelledData("sample_dialog", (), splits), seed)


def read_turns(path: Path) -> dict[str, list[DialogExample]]:
    """Return the turns of each split of a file, by our names; JSON lines are `train` alone.

    Raises:
        DataError: It cannot be read, or a turn is none.
    """
    readers.check_readable(path)
    if path.suffix == ".json":
        try:
            whole = STRICT_JSON.decode(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            whole = None  # perhaps lines
        if isinstance(whole, dict) and "train" in whole:
            return {
                name: list(_turns(whole[theirs], f"{path}, {theirs}"))
                for name, theirs in _SPLITS.items()
                if theirs in whole
            }
    records = readers.json_records(readers.numbered_lines(path), str(path))
    turns = [_answered(record.fields, f"{path}, line {record.line}") for record in records]
    if not turns:
        raise DataError(f"{path} has no turns.")
    return {"train": turns}


def turn_of(fields: Mapping[str, object], where: str) -> DialogExample:
    """Return a turn without its answer.

    Raises:
        DataError: It lacks a history or candidates.
    """
    persona = _texts(fields, "personality" if "personality" in fields else "persona", where, 0)
    history = _texts(fields, "history", where, 1)
    return DialogExample(persona, history, _texts(fields, "candidates", where, 1))


def _answered(fields: Mapping[str, object], where: str) -> DialogExample:
    found = turn_of(fields, where)
    if len(found.choices) < 2:
        raise DataError(f"{where}: 'candidates' has 1, expected at least 2, the right one last.")
    return replace(found, label=len(found.choices) - 1)


def _turns(dialogs: object, where: str) -> Iterator[DialogExample]:
    """Yield the turns of the dialogs of a split of PersonaChat's file."""
    for number, dialog in enumerate(_list(dialogs, where), 1):
        place = f"{where}, dialog {number}"
        fields = dialog if isinstance(dialog, dict) else {}
        persona = _texts(fields, "personality", place, 0)
        for turn, each in enumerate(_list(fields.get("utterances"), f"{place}: 'utterances'"), 1):
            said = each if isinstance(each, dict) else {}
            yield _answered({**said, "personality": persona}, f"{place}, turn {turn}")


def _texts(fields: Mapping[str, object], name: str, where: str, least: int) -> list[str]:
    found = fields.get(name, [] if least == 0 else None)
    if not isinstance(found, list) or len(found) < least:
        few = f"has {len(found)}" if isinstance(found, list) else "is no list of texts"
        cure = other_data(fields) if name == "history" else ""
        raise DataError(f"{where}: {name!r} {few}, expected at least {least}.{cure}")
    wrong = next((each for each in found if not isinstance(each, str)), None)
    if wrong is not None:
        raise DataError(f"{where}: {name!r} holds {wrong!r:.40}, expected texts.")
    return [text_of(Record(0, {name: each}), name, where) for each in found]


def _list(found: object, where: str) -> list[Any]:
    if not isinstance(found, list) or not found:
        raise DataError(f"{where} is no list with something in it.")
    return found
