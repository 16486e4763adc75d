"""The task that `init_from` was pretrained for: its objective, its text, its head.

Two things go back to it: the Fisher information of EWC, and the measure of what a run forgets.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from omegaconf import DictConfig
from safetensors.torch import load_file, save
from torch import Tensor

from transfer_cli.assembly import datasets
from transfer_cli.assembly.checks import SOURCE_CURE
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.init_from import Pretrained, open_pretrained
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.build import build
from transfer_cli.config.stored import read_stored
from transfer_cli.data.documents import TextSplit
from transfer_cli.data.split import Split, subsample
from transfer_cli.data.text import TextData
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.fisher import fisher_information
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import backbone_hash
from transfer_cli.objectives.base import Objective, TaskInfo
from transfer_cli.objectives.language_model import LanguageModel
from transfer_cli.progress import progress
from transfer_cli.runs.cache import load_or_make, new_entry
from transfer_cli.runs.directory import RunDirectory

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PretrainingSource:
    """Where a model comes from. Nothing is opened before it is needed.

    Args:
        shape: Its shape, with the direction settled.
        named: The text of `source.data`; None: the one that the pretraining's config names.
    """

    start: Pretrained
    shape: BackboneShape
    place: DataPlace
    origins: Origins
    named: TextData | None = None
    typed: Sequence[str] = ()

    @cached_property
    def pretraining(self) -> tuple[Pretrained, DictConfig | None]:
        """The language model at the root of `init_from`, and the config of the run that made it.

        A published model has no such run.
        """
        start = self.start
        for _ in range(100):
            if start.published is not None:
                return start, None
            run = RunDirectory(start.folder.parent)
            try:
                config = read_stored(run.config, run.read_command(), "init_from")
            except CheckpointError as error:
                raise CheckpointError(f"{error}; {SOURCE_CURE}") from error
            if start.task is None:
                return start, config
            if config.get("init_from") is None:
                break
            start = open_pretrained(str(start.base_folder() or config.init_from))
        raise CheckpointError(
            f"init_from: {self.start.weights} does not come from a language model, so there is no "
            "pretraining to go back to"
        )

    @cached_property
    def objective(self) -> LanguageModel:
        """What it was pretrained for, bound."""
        node = self.pretraining[0].description.objective
        objective: Objective = build(node, "objective", Objective)
        if not isinstance(objective, LanguageModel):
            raise CheckpointError(
                f"init_from: {type(objective).__name__} is no language-model objective, so there "
                "is no pretraining to go back to"
            )
        if objective.direction not in (None, self.shape.direction):
            raise ConfigError(
                f"init_from: {self.start.weights} goes on as an {self.shape.direction} model, and "
                f"was pretrained as a {objective.direction} one, so there is no pretraining to go "
                "back to; take adaptation/penalty=l2_sp in place of ewc, and no forgetting.data"
            )
        objective.setup(TaskInfo(self.start.tokenizer))
        return objective

    @property
    def length(self) -> int:
        """Tokens of a block in pretraining; later positions may never have been trained."""
        config = self.pretraining[1]
        length = None if config is None else config.data.get("length")
        return int(length or self.shape.positions)

    def model(self, trained: TransferModel, tensors: Mapping[str, Tensor]) -> TransferModel:
        """Return a model of the trained backbone with the pretrained head, perhaps of `tensors`."""
        device = next(trained.parameters()).device
        heads = dict(self.objective.modules(trained.backbone))
        for name, head in heads.items():
            if name in trained.heads:
                heads[name] = trained.heads[name]
                continue
            key_names = {key: f"heads.{name}.{key}" for key in head.state_dict()}
            if not tensors.keys() >= set(key_names.values()):
                root = self.pretraining[0]
                tensors = root.tensors()
                self.origins.check_weights("source", root.weights, root.fingerprint(tensors))
            if not tensors.keys() >= set(key_names.values()):
                raise CheckpointError(
                    f"init_from: {self.pretraining[0].weights} brings no language-model head, so "
                    "there is no pretraining to go back to"
                )
            head.load_state_dict({key: tensors[stored] for key, stored in key_names.items()})
            head.to(device).requires_grad_(requires_grad=False)
        return TransferModel(trained.backbone, heads)

    def text(self, split: str) -> Split:
        """Return a split of the pretraining text."""
        data, place, pretrained_on = self.named, self.place, None
        if data is None:
            start, config = self.pretraining
            if config is None:
                raise CheckpointError(
                    f"init_from: {start.weights} brings no text along; {SOURCE_CURE}"
                )
            data = build(config.data, "init_from: data", TextData)
            data_dir = datasets.data_dir_of(config.data_dir, place.data_dir, self.typed)
            place = DataPlace(data_dir, config.seed)
            pretrained_on = Origins(RunDirectory(start.folder.parent), self.origins.changed)

        def note(raw: Mapping[str, TextSplit]) -> None:
            self.origins.check_text("source.data", raw)
            if pretrained_on is not None:
                pretrained_on.check_text("data", raw, "source.data")
                self.origins.accepted += pretrained_on.accepted

        tokenizer = self.start.tokenizer
        lines = self.origins.lines or self.start.lines
        prepared, _ = datasets.prepare_text(
            data, place, self.shape, tokenizer, (split,), note, lines
        )
        if split not in prepared.splits:
            raise ConfigError(f"source.data: this text has no {split} split; {SOURCE_CURE}")
        return prepared.splits[split]


@dataclass(frozen=True)
class ForgettingText:
    """What `forgetting` says: the text to measure on, and how many of its blocks."""

    data: str | TextData | None = None
    blocks: int | None = None


@dataclass(frozen=True)
class Forgetting:
    """How well a backbone does what it was pretrained for, now and before training."""

    measure: Callable[[], dict[str, float]]
    before: Mapping[str, float]


def build_forgetting(
    options: ForgettingText,
    source: PretrainingSource | None,
    trained: TransferModel,
    tensors: Mapping[str, Tensor] | None,
    batch: int,
    precision: Precision,
) -> Forgetting | None:
    """Return what `forgetting` asks for, measured once; None where it asks for nothing."""
    # Without a source, `draw_blueprint` has refused `forgetting.data`.
    if options.data is None or source is None or tensors is None:
        return None
    split = _forgetting_split(options.data, source)
    if options.blocks is not None:
        split = subsample(split, options.blocks)
    log.info("forgetting: each measure %s", split.extent("scores"))
    model, objective = source.model(trained, tensors), source.objective

    def measure() -> dict[str, float]:
        return evaluate(model, objective, split, batch=batch, precision=precision).measures

    return Forgetting(measure, measure())


def _forgetting_split(text: str | TextData, source: PretrainingSource) -> Split:
    if text == "source":
        return source.text("validation")
    tokenizer, note = source.start.tokenizer, partial(source.origins.check_text, "forgetting.data")
    lines = source.origins.lines or source.start.lines
    if isinstance(text, str):
        if not any(sign in text for sign in "/.*"):
            raise ConfigError(
                f"forgetting.data: expected `source` or the path of a text, got {text!r}; for a "
                f"data set of conf/data type data@forgetting.data={text}"
            )
        return datasets.encode_files(
            text, source.place.cache, tokenizer, source.shape, source.length, note, lines
        )
    only = ("validation",)
    prepared, _ = datasets.prepare_text(
        text, source.place, source.shape, tokenizer, only, note, lines
    )
    if "validation" not in prepared.splits:
        raise ConfigError("forgetting.data: this text has no validation split")
    return prepared.splits["validation"]


def pretraining_fisher(
    source: PretrainingSource | None,
    trained: TransferModel,
    tensors: Mapping[str, Tensor] | None,
    sequences: int,
    kind: str,
) -> Mapping[str, Tensor]:
    """Return the Fisher information of the pretraining at the starting weights; {} for fresh ones.

    It is estimated once for the same weights, text and settings, and kept in the cache. For `kind`
    see `fisher_information`.
    """
    if source is None or tensors is None:
        return {}
    split = source.text("train")
    count = min(sequences, len(split.data))
    indices = np.linspace(0, len(split.data) - 1, count).astype(np.int64)
    batch = split.data.batch(indices)
    # The weights of now and not of the checkpoint: an edit may have drawn some of them again.
    weights = backbone_hash(trained.state_dict())
    digest = hashlib.blake2b(weights.encode(), digest_size=16)
    for tensor in (batch["tokens"], batch["mask"]):
        digest.update(tensor.numpy().tobytes())
    digest.update(f"{type(source.objective).__name__} {count} {kind}".encode())
    entry = source.place.cache / "fisher" / digest.hexdigest()

    def read(entry: Path) -> dict[str, Tensor]:
        fisher = load_file(entry / "fisher.safetensors")
        log.info("Fisher information: the one of an earlier run, %s", entry)
        return fisher

    def compute() -> dict[str, Tensor]:
        log.info("Fisher information (%s) of %d sequences of pretraining text", kind, count)
        model = source.model(trained, tensors)
        with progress("Fisher information", count, "sequences") as advance:
            fisher = fisher_information(
                model,
                source.objective,
                (advance(1) or split.data.batch(indices[n : n + 1]) for n in range(count)),
                kind,  # type: ignore[arg-type]  # any other word is refused there
                seed=0,
            )
        # Of what the checkpoint holds: names that an edit added mean nothing to another run.
        return {n: t.cpu().contiguous() for n, t in fisher.items() if n in tensors}

    def write(fisher: Mapping[str, Tensor]) -> None:
        with new_entry(entry) as unfinished:
            # Not `save_file`, which has an error of its own for a full disk.
            (unfinished / "fisher.safetensors").write_bytes(save(dict(fisher)))

    on_failure = partial(log.warning, "the Fisher information is not kept: %s")
    return load_or_make(entry, read, compute, write, on_failure)
