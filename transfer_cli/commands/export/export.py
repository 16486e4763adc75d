"""`transfer export`: a run as a folder that others load without us, with its card."""

import json
import logging
import re
import shlex
import signal
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from transfer_cli.assembly.exports import in_units, ours_of, published_head
from transfer_cli.assembly.finished_run import config_of, load_trained, longest_input, objective_of
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.commands.paths import check_new
from transfer_cli.config.roles import Role, role_of
from transfer_cli.config.schema import ExportConfig
from transfer_cli.errors import CheckpointError, ConfigError, StoppedError, listed
from transfer_cli.interop.saving import WrittenFolder, write_folder
from transfer_cli.metrics import wilson_interval
from transfer_cli.model.added import merge
from transfer_cli.model.weights import check_finite
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.progress import progress
from transfer_cli.runs.atomic import new_folder, writing
from transfer_cli.runs.class_scores import (
    FEW,
    TITLES,
    Counts,
    class_scores,
    confused,
    counts_in,
    one_label_each,
)
from transfer_cli.runs.directory import HUB, PARTS, RunDirectory
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import is_number, mapping, nested
from transfer_cli.safe_files import (
    in_one_line,
    markdown_code,
    markdown_row,
    markdown_text,
    printable,
    read_json,
    read_text,
)
from transfer_cli.terminal import STOP_SIGNALS, Entry, Page, Piece, handling, print_out

log = logging.getLogger(__name__)


def export(config: ExportConfig) -> None:
    """Write the model of `run` to the new folder `to`, whole or not at all."""
    if config.family is not None and config.format != "hf":
        raise ConfigError(f"family: format={config.format} writes none; leave family= out")
    to = Path(config.to).expanduser()
    check_new(to)
    start = open_pretrained(_place(config.run, config.part), "run", config.base)
    write = _write_hf if config.format == "hf" else _write_onnx
    try:
        with (
            handling(STOP_SIGNALS, _stop),
            progress(f"exporting as {config.format}"),
            writing(to),
            new_folder(to) as made,
        ):
            facts = write(config, start, made)
    except _Stopped as error:
        raise StoppedError(f"{error}: nothing is written to {to}") from error
    print_out(
        Page(*(Entry([Piece(f"  {name}", "name")], [text], 12) for name, text in facts.items()))
    )


class _Stopped(BaseException):
    """A signal asked for the end; no `Exception`, after which torch would try another way."""


def _stop(number: int, frame: FrameType | None) -> None:
    for each in STOP_SIGNALS:
        signal.signal(each, signal.SIG_IGN)  # what comes later must not break into the end
    raise _Stopped(signal.Signals(number).name)


def _place(run: str, part: str | None) -> str:
    """Return the folder of a run, or of a part of it."""
    if part is None:
        return run
    parts = Path(run).expanduser() / PARTS
    there = [each.name for each in parts.iterdir()] if parts.is_dir() else []
    if part not in there:
        raise ConfigError(
            f"part: {run} has no part {part!r}"
            + (f"; it has {listed(there)}" if there else ", nor any other; leave part= out")
        )
    return str(parts / part)


def _write_hf(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    """Write a folder as Hugging Face's libraries do; return what to say about it."""
    tensors = start.tensors()
    model, _ = start.filled(tensors)
    merge(model)
    ours = ours_of(
        start.description,
        start.tokenizer,
        start.task,
        model,
        {name: tensor for name, tensor in tensors.items() if name.startswith("heads.")},
        head=config.head,
        texts="published" if start.published is not None else None,
        length=_length(start),
    )
    check_finite(ours.tensors, start.weights)  # a product of finite numbers may be none
    own_family = start.published.family.model_type if start.published else None
    written = write_folder(ours, folder, config.family or own_family)
    card = card_of(start, written, config.to, ours.length)
    (folder / "README.md").write_text(card, encoding="utf-8")
    facts = {
        "written": config.to,
        "loads as": written.target.describe(),
        "card": f"{Path(config.to) / 'README.md'}: fill in its license",
    }
    left_out = list(written.left_out)
    if ours.classifier is not None:
        left_out += ours.classifier.left_out_of_exports(start.task)
    if left_out:
        facts["left out"] = ", ".join(left_out)
    return facts


def _write_onnx(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    """Write an ONNX graph; return what to say about it."""
    from transfer_cli.interop.onnx_graph import write_onnx

    objective, tensors = None, start.tensors()
    if config.head and _has_head(start):
        published_head(start.description, start.task)  # refuses what others do not know
        objective = objective_of(start)
        model = load_trained(start, objective, in_units(tensors, objective, start.task))
    else:
        model, _ = start.filled(tensors)
    causal = start.description.shape.direction == "causal"
    # A published model was trained with the layout of our labelled texts, not with that of lines.
    usual = "A" if causal else "cls A sep"
    is_text = start.task is None and start.lines != "end"
    layout = usual if start.published is not None or is_text else None
    largest = write_onnx(
        model.eval(), objective, start.tokenizer, folder, length=_length(start), layout=layout
    )
    facts = {
        "written": config.to,
        "checked": f"against torch in onnxruntime: outputs differ by at most {largest:.1e}",
    }
    left_out: tuple[str, ...] = ()
    if isinstance(objective, SequenceObjective):
        left_out = objective.left_out_of_exports(start.task)
    if left_out:
        facts["left out"] = ", ".join(left_out)
    return facts


def _length(start: Pretrained) -> int:
    """Return the longest input: `predict`'s for labelled texts; a language model reads any."""
    if start.task is None:
        return start.description.shape.positions
    config = config_of(start)
    length = longest_input(start, config)
    if config is None and start.published is None:
        log.warning(
            "run: no config.yaml of a run lies beside %s, so whether texts were cut in training is "
            "not known; the export says %d tokens, the model's positions",
            start.folder,
            length,
        )
    return length


def _has_head(start: Pretrained) -> bool:
    """Return whether the head of what the model was trained for is there."""
    shape = start.description.shape
    tied = shape.tie_output and not shape.output_bias and not shape.output_transform
    head = "heads.lm." if start.task is None else f"heads.{start.task.head}."
    return (tied and start.task is None) or any(
        n.startswith(head) for n in start.tensors(values=False)
    )


_PATH = re.compile(r"(?<![\w.~-])(?:~|\.\.?)?/[^\s,\[\]{}'\"]*")
"""A path from the root, the home or the current folder, anywhere in a value."""


class _Markdown(str):
    """A text that is Markdown already."""

    __slots__ = ()


_FILTERS: Mapping[str, Callable[[Any], str]] = {
    # No fence of code ends in these two: the one has no backtick, the other one line.
    "json": lambda text: json.dumps(text).replace("`", "\\u0060"),
    "plain": in_one_line,
    "codes": lambda texts: ", ".join(map(markdown_code, texts)),
    "row": lambda cells: markdown_row(map(markdown_text, cells)),
}


def card_of(start: Pretrained, written: WrittenFolder, to: str, length: int) -> str:
    """Return the card of a model that reads `length` tokens of a text.

    How it was trained only the directory of a run can say.
    """
    target = written.target
    shape, vocabulary = start.description.shape, start.description.vocabulary
    what = {
        "kind of model": f"{target.family.name} ({target.architecture})",
        "size": f"{shape.depth} blocks of width {shape.width}, {vocabulary:,} tokens, "
        f"{shape.positions} positions",
        "numbers": "float32",
        "longest input": f"{length:,} tokens, special ones included; a longer text loses its end, "
        + ("never a choice" if target.pipeline == "multiple-choice" else "of two the longer first"),
    }
    run = RunDirectory(start.folder.parent)
    results = None if start.published else _results(run)
    return rendered(
        title=Path(to).name,
        task=target.pipeline,
        architecture=target.architecture,
        what=what,
        labels=written.labels,
        how=_training(run, results) if results else {},
        command=_command(run, results) if results else "",
        measures=results.measures if results else {},
        by_label=_by_label(results) if results else {},
        left_out=written.left_out,
    )


def _by_label(results: Results) -> dict[str, Any]:
    """Return how well each label was found on the last split, the worst first."""
    split = ["", *results.measures][-1]
    scores = class_scores([results], split)
    if not scores:
        return {}
    table = counts_in(results, split, "confusion", len(results.labels))
    pairs = confused(results.labels, table) if table else ""
    more = len(scores) - FEW
    notes = [
        _expected(results, table) if table and one_label_each(results.metrics) else "",
        f"{more:,} labels more have a higher F1." if more > 0 else "",
        f"Most often confused: {pairs}." if pairs else "",
    ]
    return {
        "head": [split, *TITLES],
        "rows": [[printable(score.label), *score.cells()] for score in scores[:FEW]],
        "note": printable(" ".join(filter(None, notes))),
    }


def _expected(results: Results, confusion: Counts) -> str:
    """Return how often new texts get the right label, as far as the scored ones tell."""
    total, right = sum(map(sum, confusion)), sum(row[at] for at, row in enumerate(confusion))
    # A text that stands there twice says no more than once.
    different = nested(results.more, "by_words", "different")
    texts = min(int(different), total) if is_number(different) else total
    low, high = wilson_interval(round(right * texts / total), texts)
    return (
        f"The accuracy of {right / total:.3f} has a 95 % interval of {low:.3f} to {high:.3f}, by "
        f"{texts:,} texts."
    )


def rendered(measures: Mapping[str, Mapping[str, float]], **values: Any) -> str:
    """Return `card.md` with values, which may come from the run of a stranger."""
    environment = Environment(  # noqa: S701 - Markdown, in which every value is escaped
        loader=PackageLoader("transfer_cli", "commands/export"),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, _Markdown) else markdown_text(value),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: _ready(write) for name, write in _FILTERS.items()}
    names = dict.fromkeys(name for split in measures.values() for name in split)
    rows = [
        [name, *(f"{split[name]:.4g}" if name in split else "" for split in measures.values())]
        for name in names
    ]
    table = {"head": ["measure", *measures], "rows": rows}
    return environment.get_template("card.md").render(values, measures=measures, **table)


def _ready(write: Callable[[Any], str]) -> Callable[[Any], _Markdown]:
    return lambda value: _Markdown(write(value))


def _training(run: RunDirectory, results: Results) -> dict[str, str]:
    presets, timing = _json(run.presets), _json(run.timing)
    environment = _json(run.environment)
    found = {
        "data": presets.get("data"),
        "trained on": _files(run),
        "scheme": presets.get("adaptation"),
        "objective": presets.get("objective"),
        "started from": _started_from(run),
        "seed": results.seed,
        "seen": _filled(
            "{steps:,} steps, {examples:,} examples, {tokens:,} tokens", asdict(results.seen)
        ),
        "parameters that trained": _filled(
            "{trainable:,} of {total:,}", asdict(results.parameters)
        ),
        "seconds": timing.get("seconds"),
        "trained until": timing.get("ended"),
        "versions": ", ".join(
            f"{name} {version}" for name, version in mapping(environment, "versions").items()
        ),
    }
    return {name: printable(str(value)) for name, value in found.items() if value not in (None, "")}


def _files(run: RunDirectory) -> str:
    """Return the names of the files of each stream of data, as it was noted what they were."""
    streams = mapping(_json(run.origins), "data")
    sources = [
        mapping(mapping(streams, stream), split).get("source")
        for stream in streams
        for split in mapping(streams, stream)
    ]
    return ", ".join(
        dict.fromkeys(Path(source).name for source in sources if isinstance(source, str))
    )


def _filled(sentence: str, numbers: Any) -> str | None:
    """Return a sentence with numbers in it; None where they are missing."""
    try:
        return sentence.format_map(numbers)
    except (TypeError, KeyError, ValueError, IndexError, AttributeError):
        return None


def _started_from(run: RunDirectory) -> str | None:
    given = (word.partition("=") for word in _words(run))
    place = next((value for key, _, value in given if key == "init_from"), None)
    return place if place is None or place.startswith(HUB) else Path(place).name


def _command(run: RunDirectory, results: Results) -> str:
    """Return what was typed, with the last part of each path."""
    shown = [_without_place(word) for word in _words(run)]
    return shlex.join(["transfer", results.command or "finetune", *shown])


def _without_place(word: str) -> str:
    key, _, value = word.partition("=")
    if Role.PLACE in role_of(key) and not value.startswith(HUB):
        return f"{key}={Path(value).name}"
    return f"{key}={_PATH.sub(lambda found: Path(found[0]).name, value)}" if value else word


def _words(run: RunDirectory) -> list[str]:
    try:
        return [word for word in read_text(run.overrides).splitlines() if word]
    except (OSError, ValueError):
        return []


def _results(run: RunDirectory) -> Results | None:
    try:
        return Results.read(run.results)
    except (OSError, ValueError):
        return None


def _json(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except (OSError, ValueError, CheckpointError):
        return {}
