"""Texts that are known by name: WikiText, the embedded sample, those of a labelled data set."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from transfer_cli.data import catalog, readers, sample
from transfer_cli.data.documents import TITLE, TextSplit, document_begins, file_digest
from transfer_cli.data.folders import cache_folder
from transfer_cli.data.known_files import KnownFiles
from transfer_cli.data.labelled import TaskData
from transfer_cli.data.text import Only, TextData, select_names, split_of_lines
from transfer_cli.errors import DataError


@dataclass(kw_only=True)
class WikiText(TextData):
    """WikiText-103 or WikiText-2 (Merity et al. 2017).

    Args:
        name: `wikitext-103` or `wikitext-2`.
        raw: Read the form with every word; in the other one rare words are `<unk>`, as in
            published word perplexities.
    """

    name: Literal["wikitext-103", "wikitext-2"]
    raw: bool = False

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        named = catalog.WIKITEXT[self.name + ("-raw" if self.raw else "")]
        parts = {}
        with KnownFiles(cache_folder(str(data_dir)) / "files") as known:
            for part in select_names(catalog.SPLITS, only):
                path = catalog.find_text(named, part, data_dir)
                lines = partial(_wikitext_lines, path)
                digest = known.fact(path, "sha256", partial(file_digest, path))
                whole = split_of_lines(part, lines, ["wikitext"], path.name, {path: digest})
                whole = self._mark_documents(whole, partial(document_begins, lines, TITLE), TITLE)
                size = path.stat().st_size
                parts[part] = replace(whole, size_bytes=size, about_bytes=size)
        return parts


def _wikitext_lines(path: Path) -> Iterator[str]:
    # Every line has one space in front and one at its end; an empty line is a single space.
    for line in readers.read_lines(path):
        yield line.removeprefix(" ").removesuffix(" ")


@dataclass(kw_only=True)
class SampleText(TextData):
    """The embedded, made-up encyclopedia.

    Args:
        world: Which made-up world it describes. The run's seed does not decide it, so that runs of
            several seeds, and questions about the world, agree on its facts.
    """

    world: int = 0

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        text = sample.encyclopedia(self.world)
        return {
            name: self._mark_documents(
                split_of_lines(name, partial(iter, text[name]), text[name], "sample_text"),
                partial(document_begins, partial(iter, text[name]), TITLE),
                TITLE,
            )
            for name in select_names(text, only)
        }


@dataclass(kw_only=True)
class TaskText(TextData):
    """The texts of a labelled data set without their labels, each a document on a line of its own.

    Howard and Ruder (2018, section 3.2) continue pretraining on them before the labels are learnt:
    target task language-model fine-tuning. The second text of a pair is the line after the first.
    A label costs money and a text does not, so leave the task's `labelled` unset to use all texts.

    The splits are those of `finetune` with the same seed, so validation texts stay unread.
    """

    task: TaskData

    def splits(self, data_dir: Path, seed: int, *, only: Only = None) -> dict[str, TextSplit]:
        """See `TextData`; the seed decides the splits that the task draws."""
        examples = self.task.load(data_dir, seed).splits
        texts = {name: _task_lines(examples[name]) for name in select_names(examples, only)}
        return {
            name: replace(
                split_of_lines(name, partial(iter, lines), ["task", *lines], "the task"),
                begins=partial(itertools.repeat, object=True, times=len(lines)),
                begins_by="line",
                apart=self._separates_documents,
            )
            for name, lines in texts.items()
        }


def _task_lines(examples: Sequence[Any]) -> list[str]:
    if not all(hasattr(example, "text") for example in examples):
        raise DataError(
            "data.task: its examples have no text; put their texts into a file, data=text."
        )
    texts = (
        text for example in examples for text in (example.text, getattr(example, "pair", None))
    )
    # A text of several lines becomes one line, which ends with one `sep`.
    return [" ".join(text.splitlines()) for text in texts if text is not None]
