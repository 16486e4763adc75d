"""How runs did on parts of what they were scored on, from what they wrote of each example."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from transfer_cli.errors import DataError
from transfer_cli.report.contents import Run
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.runs.items import Item, is_cut, read_items
from transfer_cli.runs.slices import Slice, scores
from transfer_cli.runs.untrusted import reason
from transfer_cli.safe_files import UnreadableError

BETWEEN = " / "
"""Stands between the texts of an item."""


def with_slices(run: Run, slices: Mapping[str, Slice], problems: list[str]) -> Run:
    """Return a run with the measures of slices beside its own; note what is in the way."""
    found = {}
    for split, measured in run.results.measures.items():
        try:
            items = list(read_items(RunDirectory(run.path).items, split))
        except FileNotFoundError:
            items = []
        except (OSError, UnreadableError) as error:
            problems.append(f"{run.path}: no slices: items.jsonl: {reason(error)}")
            items = []
        found[split] = {**measured, **_scores(items, split, slices)}
        cut = sum(is_cut(item.text) for item in items)
        if cut:
            problems.append(
                f"{run.path}: {cut:,} texts of {split} are kept in part, so slices by length or "
                "regex are of that part; transfer evaluate sees all of it"
            )
    return replace(run, results=replace(run.results, measures=found))


def _scores(items: Sequence[Item], split: str, slices: Mapping[str, Slice]) -> dict[str, float]:
    if not items or not all(item.label and item.text for item in items):
        return {}  # of a language model, or too many for their texts to be kept
    texts = [item.text.split(BETWEEN) for item in items]
    return scores(
        {name: part.members(split, texts, _no_column) for name, part in slices.items()},
        [replace(item, index=number) for number, item in enumerate(items)],
    )


def _no_column(name: str) -> Sequence[str]:
    raise DataError(
        f"--slice: runs do not keep the column {name!r} of their tables; transfer evaluate does"
    )
