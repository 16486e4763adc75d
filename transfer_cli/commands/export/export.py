"""`transfer export`: a run as a folder that others load without us, with its card."""

import json
import logging
import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from jinja2 import Environment, PackageLoader, StrictUndefined

from transfer_cli.assembly import exports
from transfer_cli.assembly.finished_run import (
    bound_objective,
    load_trained,
    longest_input,
    open_trained,
    read_run_config,
)
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.commands.evaluate import validation_measures
from transfer_cli.commands.paths import check_new
from transfer_cli.config.models import expand_short_name
from transfer_cli.config.roles import Role, role_of
from transfer_cli.config.schema import ExportConfig
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import (
    ConfigError,
    StoppedError,
    TransferError,
    between,
    list_names,
    raised_as,
)
from transfer_cli.interop.saving import write_beside_graph, write_folder, write_tokenizer
from transfer_cli.interop.sentence_folder import SentenceModules, write_modules
from transfer_cli.interop.targets import Ours
from transfer_cli.interop.vocabulary import TOKENIZER_FILE
from transfer_cli.metrics import without_details
from transfer_cli.model.added import merge
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import check_finite
from transfer_cli.objectives.base import Objective
from transfer_cli.objectives.language_model import HEAD, LanguageModel
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.progress import progress
from transfer_cli.reports import formats
from transfer_cli.runs.atomic import as_run_error, new_folder
from transfer_cli.runs.class_scores import (
    MOST_LISTED,
    TITLES,
    Counts,
    accuracy_interval,
    class_scores,
    count_table,
    describe_confusions,
    has_one_label_each,
)
from transfer_cli.runs.directory import HUB, PARTS, RunDirectory
from transfer_cli.runs.results import Results
from transfer_cli.runs.untrusted import nested_mapping
from transfer_cli.safe_files import (
    in_one_line,
    markdown_code,
    markdown_row,
    markdown_text,
    printable,
    read_json,
    read_text,
)
from transfer_cli.tasks.similarity.contrastive import Contrastive
from transfer_cli.terminal import STOP_SIGNALS, Entry, Page, Piece, handle_signals, print_out

log = logging.getLogger(__name__)


def export(config: ExportConfig) -> None:
    """Write the model of `run` to the new folder `to`, whole or not at all."""
    if config.family is not None and config.format == "onnx":
        raise ConfigError(f"family: format={config.format} writes none; leave family= out")
    if config.quantize is not None and config.format != "onnx":
        raise ConfigError(
            f"quantize: format={config.format} writes float32; type format=onnx, or leave it out"
        )
    if config.prune is not None and config.format != "onnx":
        raise ConfigError(
            "prune: other formats have one number of heads for all blocks; type format=onnx, or "
            "leave it out"
        )
    to = Path(config.to).expanduser()
    check_new(to)
    start = open_pretrained(_part_path(config.run, config.part), "run", config.base)
    write = {"hf": _write_hf, "onnx": _write_onnx, "gguf": _write_gguf, "peft": _write_peft}[
        config.format
    ]
    try:
        with (
            handle_signals(STOP_SIGNALS, _stop),
            progress(f"exporting as {config.format}"),
            as_run_error(to),
            new_folder(to) as new,
        ):
            facts = write(config, start, new)
    except _Stopped as error:
        raise StoppedError(f"{error}: nothing is written to {to}") from error
    print_out(
        Page(*(Entry([Piece(f"  {name}", "name")], [text], 12) for name, text in facts.items()))
    )


class _Stopped(BaseException):
    """A signal asked for the end; no `Exception`, after which torch would try another way."""


def _stop(number: int, frame: FrameType | None) -> None:
    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, signal.SIG_IGN)  # what comes later must not break into the end
    raise _Stopped(signal.Signals(number).name)


def _part_path(run: str, part: str | None) -> str:
    if part is None:
        return run
    parts = Path(run).expanduser() / PARTS
    there = [folder.name for folder in parts.iterdir()] if parts.is_dir() else []
    if part not in there:
        raise ConfigError(
            f"part: {run} has no part {part!r}"
            + (f"; it has {list_names(there)}" if there else ", nor any other; leave part= out")
        )
    return str(parts / part)


def _merged_tensors(config: ExportConfig, start: Pretrained) -> Ours:
    tensors = start.tensors()
    model, _ = start.filled(tensors)
    merge(model)
    heads = {name: tensor for name, tensor in tensors.items() if name.startswith("heads.")}
    texts = "published" if start.published is not None else None
    ours = _exportable(start, model, heads=heads, head=config.head, texts=texts)
    check_finite(ours.tensors, start.weights)  # a product of finite numbers may be none
    return ours


def _exportable(start: Pretrained, model: TransferModel, **options: Any) -> Ours:
    """Return a model as it is written; for the options see `exportable_model`."""
    return exports.exportable_model(
        start.description, start.tokenizer, start.task, model,
        length=_export_length(start), chat=start.chat_template, **options,
    )  # fmt: skip


def _write_gguf(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    from transfer_cli.interop.gguf_file import FILE_NAME, write_gguf

    model_type = start.published.family.model_type if start.published else None
    family = config.family or model_type
    target = write_gguf(_merged_tensors(config, start), folder, family, Path(config.to).name)
    return {
        "written": f"{Path(config.to) / FILE_NAME}, float32; llama-quantize makes it smaller",
        "loads as": f"{target.family.name}, in llama.cpp",
    }


def _write_peft(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    from transfer_cli.interop.peft_folder import write_adapter

    run = read_run_config(start)
    place = None if run is None else run.get("init_from")
    base = None if place is None else open_pretrained(str(config.base or place), "base")
    if place is None or base is None or base.published is None:
        raise ConfigError(
            "format: peft is for a run that adapted a published model (init_from), onto which "
            "others load it; take format=hf"
        )
    objective = bound_objective(start) if _has_head(start) else None
    model, _ = start.filled(start.tensors(), objective)
    ours = _exportable(start, model, head=True)
    name = expand_short_name(str(place)).removeprefix(HUB)
    family = config.family or base.published.family.model_type
    target = write_adapter(model, ours, base.tensors(), name, folder, family)
    write_tokenizer(ours, folder, ours.tokenizer.pad, mask_lstrip=target.family.mask_lstrip)
    loaded = f"peft.PeftModel.from_pretrained(BASE, {config.to!r})"
    labels = f", num_labels={len(ours.labels)}" if ours.labels else ""
    base_code = f"transformers.{target.architecture}.from_pretrained({name!r}{labels})"
    return {"written": config.to, "loads as": f"{loaded}, with BASE = {base_code}"}


def _write_hf(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    ours = _merged_tensors(config, start)
    own_family = start.published.family.model_type if start.published else None
    written = write_folder(ours, folder, config.family or own_family)
    target, objective = written.target, bound_objective(start)
    if config.head and isinstance(objective, Contrastive):
        task: Any = start.task
        modules = SentenceModules(
            objective.vector_pooling, bool(objective.normalize), ours.length, task.lowercase,
            task.prompt,
        )  # fmt: skip
        write_modules(folder, modules, ours.shape.width)
    card = Card(
        f"{target.family.name} ({target.architecture})", target.pipeline, target.architecture,
        written.labels, written.left_out,
    )  # fmt: skip
    (folder / "README.md").write_text(model_card(start, card, config.to, ours.length), "utf-8")
    facts = {
        "written": config.to,
        "loads as": written.target.describe(),
        "card": f"{Path(config.to) / 'README.md'}: fill in its license",
    }
    own = () if ours.classifier is None else ours.classifier.left_out_of_exports(start.task)
    if left_out := [*written.left_out, *own]:
        facts["left out"] = ", ".join(left_out)
    return facts


def _write_onnx(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    from transfer_cli.interop.graph_folder import GRAPH
    from transfer_cli.interop.onnx_graph import graph_size, quantize, write_onnx

    objective, tensors = None, start.tensors()
    if config.head and _has_head(start):
        exports.published_head(start.description, start.task)  # refuses what others do not know
        objective = bound_objective(start)
        scaled = exports.scaled_to_units(tensors, objective, start.task)
        model = load_trained(start, objective, scaled)
    else:
        model, _ = start.filled(tensors)
    pruned = {} if config.prune is None else _prune(model, config)
    causal = start.description.shape.direction == "causal"
    # A published model was trained with the layout of our labelled texts, not with that of lines.
    usual = "A" if causal else "cls A sep"
    is_text = start.task is None and start.lines != "end"
    layout = usual if start.published is not None or is_text else None
    family = start.published.family if start.published else None
    of_lines = None if start.published is None else "published"
    texts = of_lines if isinstance(objective, LanguageModel) else "labelled"
    ours = _exportable(start, model, head=objective is not None, texts=texts)
    ours = replace(ours, shape=replace(ours.shape, segments=model.backbone.num_segments))
    task = write_beside_graph(ours, folder, family)
    again = _reopening_facts(start, ours, objective, load_tokenizer(folder / TOKENIZER_FILE))
    largest = write_onnx(model.eval(), objective, ours, folder, layout=layout, again=again)
    facts = {
        "written": config.to,
        "checked": f"against torch in onnxruntime: outputs differ by at most {largest:.1e}",
        "card": f"{Path(config.to) / 'README.md'}: fill in its license",
        **pruned,
    }
    left_out: tuple[str, ...] = ()
    if isinstance(objective, SequenceObjective):
        left_out = objective.left_out_of_exports(start.task)
    losses: dict[str, str] = {}
    if config.quantize is not None:
        sizes = [graph_size(folder)]
        quantize(folder / GRAPH)
        sizes.append(graph_size(folder))
        facts["size"] = " before, ".join(map(formats.size, sizes)) + f" by {config.quantize}"
        losses = _quantization_losses(config, start, folder)
        facts["measured"] = "; ".join(f"{name} {losses[name]}" for name in losses)
    kind = f"ONNX graph, {config.quantize or 'float32'}"
    card = Card(kind, task, "", ours.labels, left_out, losses)
    (folder / "README.md").write_text(model_card(start, card, config.to, ours.length), "utf-8")
    if left_out:
        facts["left out"] = ", ".join(left_out)
    return facts


def _prune(model: TransferModel, config: ExportConfig) -> dict[str, str]:
    """Remove the least important heads of a model, by what an analysis found; say how many."""
    from transfer_cli.model.pruned_heads import prune_heads

    between("prune_share:", config.prune_share, 0, 1, ConfigError)
    path = Path(str(config.prune)).expanduser()
    shape = model.backbone.shape
    with raised_as(ConfigError, f"prune: {path}: ", OSError, TypeError, ValueError):
        importance = np.array(read_json(path).get("heads"), float)
    if importance.shape != (shape.depth, shape.heads) or not np.isfinite(importance).all():
        raise ConfigError(
            f"prune: {path} does not say how important the {shape.depth} x {shape.heads} heads of "
            "this model are; take analyses/importance.json of `transfer analyze RUN "
            "analysis=importance`"
        )
    order = np.argsort(importance.ravel(), kind="stable")
    gone = order[: round(config.prune_share * importance.size)].tolist()
    by_block = groupby(sorted(gone), lambda number: number // shape.heads)
    heads = {block: {head % shape.heads for head in numbers} for block, numbers in by_block}
    merge(model)
    prune_heads(model.backbone, heads)
    return {"pruned": f"{len(gone)} of {importance.size} heads, the least important ones"}


def _reopening_facts(
    start: Pretrained, ours: Ours, objective: Objective | None, tokenizer: Tokenizer
) -> dict[str, Any]:
    """Return what `open_graph` reads."""
    unit = (0.0, 1.0) if objective is None else exports.unit_mean_and_scale(objective, start.task)
    description = replace(start.description, tokenizer_hash=tokenizer.hash, edits={}, base=None)
    if start.published is not None:
        description = replace(description, lines=start.lines, pairs=not start.reads_lines)
    facts = {
        "model": asdict(description), "segments": ours.shape.segments,
        "template": start.tokenizer.template,
    }  # fmt: skip
    return {**facts, "mean": unit[0], "scale": unit[1]}


def _quantization_losses(config: ExportConfig, start: Pretrained, folder: Path) -> dict[str, str]:
    """Return each measure on the run's own validation, of the run and of the graph."""
    precision = Precision("fp32", torch.device("cpu"))
    try:
        if not start.has_run:
            raise ConfigError("a published model brings no data")
        trained = open_trained(_part_path(config.run, config.part), precision, config.base)
        graph = open_trained(str(folder), precision)
        models = {"run": trained.model, "graph": graph.model}
        one, other = validation_measures(trained, models, precision).values()
    except TransferError as error:
        log.warning("quantize: what it costs is not measured: %s", error)
        return {"not measured": "see the warning"}
    return {name: f"{n:.4g} -> {other[name]:.4g}" for name, n in without_details(one).items()}


def _export_length(start: Pretrained) -> int:
    """Return the longest input: `predict`'s for labelled texts; a language model reads any."""
    if start.task is None:
        return start.description.shape.positions
    config = read_run_config(start)
    length = longest_input(start, None if config is None else config.data.get("length"))
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
    head = f"heads.{HEAD if start.task is None else start.task.head}."
    return (tied and head == f"heads.{HEAD}.") or any(
        n.startswith(head) for n in start.tensors(values=False)
    )


_PATH = re.compile(r"(?<![\w.~-])(?:~|\.\.?)?/[^\s,\[\]{}'\"]*")
"""A path from the root, the home or the current folder, anywhere in a value."""


class _Markdown(str):
    """A text that is Markdown already."""

    __slots__ = ()


_FILTERS: Mapping[str, Callable[[Any], _Markdown]] = {
    # No fence of code ends in these two: the one has no backtick, the other one line.
    "json": lambda text: _Markdown(json.dumps(text).replace("`", "\\u0060")),
    "plain": lambda text: _Markdown(in_one_line(text)),
    "codes": lambda texts: _Markdown(", ".join(map(markdown_code, texts))),
    "row": lambda cells: _Markdown(markdown_row(map(markdown_text, cells))),
}


@dataclass(frozen=True)
class Card:
    """What a card says beside the training.

    Args:
        task: What the hub calls it.
        architecture: The class that loads it; "" for an ONNX graph.
        losses: Each measure before and after quantization.
    """

    kind: str
    task: str
    architecture: str
    labels: Sequence[str]
    left_out: Sequence[str]
    losses: Mapping[str, str] = field(default_factory=dict)


def model_card(start: Pretrained, card: Card, to: str, length: int) -> str:
    """Return the card of a model that reads `length` tokens of a text.

    How it was trained only the directory of a run can say.
    """
    shape, vocabulary = start.description.shape, start.description.vocabulary
    what = {
        "kind of model": card.kind,
        "size": f"{shape.depth} blocks of width {shape.width}, {vocabulary:,} tokens, "
        f"{shape.positions} positions",
        "numbers": "int8" if card.losses else "float32",
        "longest input": f"{length:,} tokens, special ones included; a longer text loses its end, "
        + ("never a choice" if card.task == "multiple-choice" else "of two the longer first"),
    }
    run = RunDirectory(start.folder.parent)
    results = _read_or(None, Results.read, run.results) if start.has_run else None
    return render_card(
        title=Path(to).name,
        card=card,
        what=what,
        how=_training_facts(run, results) if results else {},
        command=_typed_command(run, results) if results else "",
        measures=results.measures if results else {},
        by_label=_label_table(results) if results else {},
    )


def _label_table(results: Results) -> dict[str, Any]:
    """Return how well each label was found on the last split, the worst first."""
    split = ["", *results.measures][-1]
    scores = class_scores([results], split)
    if not scores:
        return {}
    table = count_table(results, split, "confusion", len(results.labels))
    pairs = describe_confusions(results.labels, table) if table else ""
    more = len(scores) - MOST_LISTED
    notes = [
        _accuracy_sentence(results, table) if table and has_one_label_each(results.metrics) else "",
        f"{more:,} labels more have a higher F1." if more > 0 else "",
        f"Most often confused: {pairs}." if pairs else "",
    ]
    return {
        "head": [split, *TITLES],
        "rows": [[printable(score.label), *score.cells()] for score in scores[:MOST_LISTED]],
        "note": printable(" ".join(filter(None, notes))),
    }


def _accuracy_sentence(results: Results, confusion: Counts) -> str:
    """Return how often new texts get the right label, as far as the scored ones tell."""
    total, right = sum(map(sum, confusion)), sum(row[at] for at, row in enumerate(confusion))
    low, high, texts = accuracy_interval(confusion, results.more.get("by_words"))
    return (
        f"The accuracy of {right / total:.3f} has a 95 % interval of {low:.3f} to {high:.3f}, by "
        f"{texts:,} texts."
    )


def render_card(measures: Mapping[str, Mapping[str, float]], **values: Any) -> str:
    """Return `card.md` with values, which may come from the run of a stranger."""
    environment = Environment(  # noqa: S701 - Markdown, in which every value is escaped
        loader=PackageLoader("transfer_cli", "commands/export"),
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, _Markdown) else markdown_text(value),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= _FILTERS
    names = dict.fromkeys(name for split in measures.values() for name in split)
    rows = [
        [name, *(f"{split[name]:.4g}" if name in split else "" for split in measures.values())]
        for name in names
    ]
    table = {"head": ["measure", *measures], "rows": rows}
    return environment.get_template("card.md").render(values, measures=measures, **table)


def _training_facts(run: RunDirectory, results: Results) -> dict[str, str]:
    files = (run.presets, run.timing, run.environment)
    presets, timing, environment = (_read_or({}, read_json, file) for file in files)
    seen, trained = results.seen, results.parameters.trainable
    facts = {
        "data": presets.get("data"),
        "trained on": _data_files(run),
        "scheme": presets.get("adaptation"),
        "objective": presets.get("objective"),
        "started from": _started_from(run),
        "seed": results.seed,
        "seen": _format_if_known(
            "{:,} steps, {:,} examples, {:,} tokens", seen.steps, seen.examples, seen.tokens
        ),
        "parameters that trained": _format_if_known(
            "{:,} of {:,}", trained, results.parameters.total
        ),
        "seconds": timing.get("seconds"),
        "trained until": timing.get("ended"),
        "versions": ", ".join(
            f"{name} {version}" for name, version in nested_mapping(environment, "versions").items()
        ),
    }
    return {name: printable(str(value)) for name, value in facts.items() if value not in (None, "")}


def _data_files(run: RunDirectory) -> str:
    """Return the names of the files of each stream of data, as it was noted what they were."""
    streams = nested_mapping(_read_or({}, read_json, run.origins), "data")
    sources = [
        nested_mapping(nested_mapping(streams, stream), split).get("source")
        for stream in streams
        for split in nested_mapping(streams, stream)
    ]
    return ", ".join(
        dict.fromkeys(Path(source).name for source in sources if isinstance(source, str))
    )


def _format_if_known(sentence: str, *numbers: int | None) -> str | None:
    return None if None in numbers else sentence.format(*numbers)


def _started_from(run: RunDirectory) -> str | None:
    given = (word.partition("=") for word in _typed_words(run))
    place = next((value for key, _, value in given if key == "init_from"), None)
    return place if place is None or place.startswith(HUB) else Path(place).name


def _typed_command(run: RunDirectory, results: Results) -> str:
    """Return what was typed, with the last part of each path."""
    shown = [_without_folders(word) for word in _typed_words(run)]
    return shlex.join(["transfer", results.command or "finetune", *shown])


def _without_folders(word: str) -> str:
    key, _, value = word.partition("=")
    if Role.PLACE in role_of(key) and not value.startswith(HUB):
        return f"{key}={Path(value).name}"
    return f"{key}={_PATH.sub(lambda match: Path(match[0]).name, value)}" if value else word


def _typed_words(run: RunDirectory) -> list[str]:
    return [word for word in _read_or("", read_text, run.overrides).splitlines() if word]


def _read_or(default: Any, read: Callable[[Path], Any], path: Path) -> Any:
    """Return what a file of a run says, or the default where it says nothing."""
    try:
        return read(path)
    except (OSError, ValueError):
        return default
