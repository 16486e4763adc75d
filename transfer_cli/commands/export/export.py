"""`transfer export`: a run as a folder that others load without us."""

import logging
import signal
from pathlib import Path
from types import FrameType

from transfer_cli.assembly.exports import in_units, ours_of, published_head
from transfer_cli.assembly.finished_run import (
    config_of,
    load_trained,
    longest_input,
    objective_of,
)
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.commands.export.cards import card_of
from transfer_cli.commands.paths import check_new
from transfer_cli.config.schema import ExportConfig
from transfer_cli.errors import ConfigError, StoppedError, listed
from transfer_cli.interop.saving import write_folder
from transfer_cli.model.added import merge
from transfer_cli.model.weights import check_finite
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.progress import progress
from transfer_cli.runs.atomic import new_folder, writing
from transfer_cli.runs.directory import PARTS
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
