"""Config to objects, in the order in which data flows."""

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, OmegaConf
from torch.optim import Optimizer

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.config.build import build
from transfer_cli.data.corpus import EncodedText, TextBlocks, cached_tokenizer, encode_text
from transfer_cli.data.encoded_task import EncodedTask, warn_of_cuts
from transfer_cli.data.fetch import writable_folder
from transfer_cli.data.tasks import Example, LabelledData, TaskData
from transfer_cli.data.text import TextData
from transfer_cli.data.tokenizer import FromFile, Tokenizer, TokenizerRecipe
from transfer_cli.engine.evaluate import Dataset, Split
from transfer_cli.engine.precision import Precision, choose_device
from transfer_cli.engine.step import Loss
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.transfer_model import LayerGroup, TransferModel
from transfer_cli.model.weights import (
    LoadReport,
    ModelDescription,
    load_pretrained,
    read_description,
    read_weights,
)
from transfer_cli.objectives.base import Facts, Objective, TextFacts
from transfer_cli.optim.groups import Height, optimizer_groups
from transfer_cli.optim.schedules import Schedule
from transfer_cli.runs.directory import TOKENIZER, find_model
from transfer_cli.seeds import derive

log = logging.getLogger(__name__)

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Pretrained:
    """What `init_from` names: a model to start from.

    Args:
        weights: The folder with its weights.
        description: What must be known to build it.
        tokenizer: The one that it was trained with.
    """

    weights: Path
    description: ModelDescription
    tokenizer: Tokenizer


@dataclass(frozen=True)
class Prepared:
    """A data set, encoded: ready to train on and to score.

    Args:
        splits: By name; "train" always.
        labels: Class names; empty for text without labels.
        name: What the data set is called.
    """

    splits: Mapping[str, Split]
    labels: tuple[str, ...] = ()
    name: str = ""


def data_folder(data_dir: str) -> Path:
    """Return `data_dir` with `~` filled in."""
    return Path(data_dir).expanduser()


def data_dir_of(own: DictConfig, config: DictConfig) -> str:
    """Return where the data of a run lies: where it was said now, else where it lay for the run.

    Args:
        own: The run's config. It may come from another machine, where its folder was.
        config: The config of the command at work.
    """
    typed = any(word.startswith("data_dir=") for word in typed_overrides())
    found = not typed and data_folder(own.data_dir).is_dir()
    return str(own.data_dir if found else config.data_dir)


def cache_folder(data_dir: str) -> Path:
    """Return where tokenizers and encoded text are kept.

    That is `TRANSFER_CACHE`, else `cache/` in `data_dir`, else (where that cannot be written, as on
    a shared read-only disk) a folder in the home.
    """
    if named := os.environ.get("TRANSFER_CACHE"):
        return Path(named).expanduser()
    folder = data_folder(data_dir)
    writable = writable_folder(folder)
    return folder / "cache" if writable == folder else writable


def source(config: DictConfig, kind: type[TextData] | type[TaskData]) -> Any:
    """Return the data source that `data` describes, of the kind that the command works on.

    Raises:
        ConfigError: It is text where labels are needed, or the other way round.
    """
    found = build(config.data, "data", object)
    if isinstance(found, kind):
        return found
    if kind is TaskData:
        raise ConfigError(
            "data: this is text without labels, which only pretrain takes; "
            "choose labelled data: trec6, trec50, table or sample_questions"
        )
    raise ConfigError(
        "data: this is labelled data, which only finetune takes; "
        "choose text: wikitext103, wikitext2, text or sample_text"
    )


def pretrained(path: str, key: str = "init_from") -> Pretrained:
    """Return the model at `path`, without its weights; `key` is the config key that named it.

    Raises:
        CheckpointError: There is none, it is unfinished, or its parts do not belong together.
    """
    weights, folder = find_model(Path(path).expanduser(), key)
    description = read_description(folder)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.hash != description.tokenizer_hash or tokenizer.size != description.vocabulary:
        raise CheckpointError(
            f"{key}: {folder / TOKENIZER} is not the tokenizer that this model was trained with; "
            "put the original back"
        )
    return Pretrained(weights, description, tokenizer)


def start_of(config: DictConfig) -> Pretrained | None:
    """Return the model that `init_from` names; None when it names none.

    Raises:
        ConfigError: Another model or tokenizer was typed beside it.
        CheckpointError: There is no such model.
    """
    if config.init_from is None:
        return None
    for typed in typed_overrides():
        key = typed.lstrip("+~").partition("=")[0]
        part = key.partition(".")[0]
        # A tokenizer from a file is compared with the model's own.
        from_file = typed == "tokenizer=file" or key == "tokenizer.path"
        takes_none = typed.startswith("~") or typed.endswith("=null")
        if part in ("model", "tokenizer") and not from_file and not takes_none:
            raise ConfigError(f"{typed}: init_from brings its own {part}; leave {key}= out")
    return pretrained(config.init_from)


def own_tokenizer(config: DictConfig, start: Pretrained) -> Tokenizer:
    """Return the pretrained model's tokenizer.

    Raises:
        CheckpointError: The config asks for the tokenizer of a file, and it is another one.
    """
    if config.tokenizer is not None:
        recipe = build(config.tokenizer, "tokenizer", TokenizerRecipe)
        if (
            isinstance(recipe, FromFile)
            and recipe.make(lambda: iter(())).hash != start.tokenizer.hash
        ):
            raise CheckpointError(
                "init_from: that model was trained with another tokenizer than tokenizer.path; "
                "leave tokenizer= out to use the model's own"
            )
    return start.tokenizer


def text(
    config: DictConfig, shape: BackboneShape, start: Pretrained | None
) -> tuple[Prepared, Tokenizer]:
    """Return unlabelled text, encoded, and the tokenizer that encoded it."""
    found: TextData = source(config, TextData)
    length = block_length(found.length, shape.positions)
    raw = found.splits(data_folder(config.data_dir), config.seed)
    cache = cache_folder(config.data_dir)
    if start is None:
        recipe = build(config.tokenizer, "tokenizer", TokenizerRecipe)
        tokenizer = cached_tokenizer(recipe, raw["train"], cache)
    else:
        tokenizer = own_tokenizer(config, start)
    encoded = {name: encode_text(raw[name], tokenizer, cache) for name in SPLITS if name in raw}
    splits = {
        name: Split(name, TextBlocks(part, length, tokenizer.pad), text_facts(part))
        for name, part in encoded.items()
    }
    return Prepared(splits), tokenizer


def block_length(length: int | None, positions: int) -> int:
    """Return the length of a block of text, at most the model's positions."""
    if length is not None and not 1 <= length <= positions:
        raise ConfigError(
            f"data.length: {length} does not fit the model's {positions} positions; "
            f"use 1 to {positions}, or a model with more (model.positions)"
        )
    return length or positions


def text_facts(part: EncodedText) -> TextFacts:
    """Return what perplexities need to know of a text."""
    return TextFacts(words=part.num_words, size_bytes=part.num_bytes)


def task_tokenizer(config: DictConfig, data: LabelledData, start: Pretrained | None) -> Tokenizer:
    """Return the tokenizer for labelled data: the pretrained model's, or a new one of its texts."""
    if start is not None:
        return own_tokenizer(config, start)
    recipe = build(config.tokenizer, "tokenizer", TokenizerRecipe)
    return recipe.make(lambda: (example.text for example in data.splits["train"]))


def task(
    data: LabelledData, length: int | None, tokenizer: Tokenizer, shape: BackboneShape
) -> Prepared:
    """Return labelled data, encoded for a model of this shape."""
    longest = block_length(length, shape.positions)
    return Prepared(
        {
            name: task_split(
                name, data.splits[name], tokenizer, longest, causal=shape.direction == "causal"
            )
            for name in SPLITS
            if name in data.splits
        },
        data.labels,
        data.name,
    )


def task_split(
    name: str, examples: Sequence[Example], tokenizer: Tokenizer, longest: int, *, causal: bool
) -> Split:
    """Return one labelled split, to be gone through from short to long: least padding."""
    encoded = EncodedTask(examples, tokenizer, longest, "causal" if causal else "bidirectional")
    warn_of_cuts(encoded.num_cut, len(encoded), longest)
    return Split(name, encoded, order=np.argsort(encoded.lengths, kind="stable"))


def settled(
    shape: BackboneShape, found: Mapping[str, tuple[Objective, str, float]]
) -> BackboneShape:
    """Return the shape with its direction settled, by the main objective first.

    Raises:
        ConfigError: The model looks one way and an objective needs the other.
    """
    needed = {name: objective.direction for name, (objective, _, _) in found.items()}
    direction = shape.direction
    if direction == "auto":
        direction = next(filter(None, needed.values()), "causal")
    for name, own in needed.items():
        if own not in (None, direction):
            key = "objective" if name == "main" else f"losses.{name}"
            raise ConfigError(
                f"{key}: {type(found[name][0]).__name__} needs a {own} model, and this one is "
                f"{direction} (model.direction, the main objective, or init_from decides)"
            )
    return BackboneShape(**{**vars(shape), "direction": direction})


def objectives(config: DictConfig) -> dict[str, tuple[Objective, str, float]]:
    """Return each loss's objective, stream and weight, "main" first."""
    nodes = {"objective": config.objective}
    nodes |= {f"losses.{name}": config.losses[name] for name in config.losses}
    found: dict[str, tuple[Objective, str, float]] = {}
    for key, node in nodes.items():
        plain = options_of(node, key)
        weight, stream = node.get("weight", 1.0), node.get("stream", "main")
        if isinstance(weight, bool) or not isinstance(weight, int | float) or weight < 0:
            raise ConfigError(f"{key}.weight: must be a number of 0 or more, got {weight!r}")
        if stream != "main":
            raise ConfigError(f"{key}.stream: there is no stream {stream!r}; the streams are main")
        name = "main" if key == "objective" else key.removeprefix("losses.")
        found[name] = (build(plain, key, Objective), stream, float(weight))
    return found


def options_of(node: Any, key: str) -> dict[str, Any]:
    """Return the node of an objective without what belongs to the loss: its weight and stream."""
    if not isinstance(node, DictConfig):
        raise ConfigError(f"{key}: expected an objective, got {node!r}")
    plain: Any = OmegaConf.to_container(node, resolve=True)
    return {str(name): plain[name] for name in plain if name not in ("weight", "stream")}


def losses(found: Mapping[str, tuple[Objective, str, float]], facts: Facts) -> list[Loss]:
    """Tell every objective about the run, and return them as losses. A weight of 0 is left out."""
    for objective, _, _ in found.values():
        objective.bind(facts)
    return [
        Loss(name, objective, stream, weight)
        for name, (objective, stream, weight) in found.items()
        if weight > 0 or name == "main"
    ]


def model(shape: BackboneShape, vocabulary: int, used: Sequence[Loss], seed: int) -> TransferModel:
    """Return a model with fresh weights, the same for the same seed.

    Raises:
        ConfigError: Two objectives want modules of the same name and other shapes.
    """
    torch.manual_seed(derive(seed, "weights"))
    backbone = Backbone(shape, vocabulary)
    heads: dict[str, torch.nn.Module] = {}
    for loss in used:
        for name, head in loss.objective.modules(backbone).items():
            if name in heads and shapes_of(heads[name]) != shapes_of(head):
                raise ConfigError(
                    f"losses.{loss.name}: its head {name!r} has another shape elsewhere"
                )
            heads.setdefault(name, head)
    return TransferModel(backbone, heads)


def shapes_of(module: torch.nn.Module) -> dict[str, torch.Size]:
    """Return the shapes of a module's tensors, by name."""
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def load(fresh: TransferModel, start: Pretrained) -> LoadReport:
    """Fill a model with pretrained weights, and say what was loaded, new and dropped."""
    report = load_pretrained(fresh, read_weights(start.weights), start.weights)
    log.info("loaded %d tensors from %s", len(report.loaded), start.weights)
    for what, names in (("new", report.new), ("dropped", report.dropped)):
        if names:
            log.info("%s: %s", what, ", ".join(names))
    return report


def adaptation(config: DictConfig) -> Adaptation:
    """Return the adaptation that the config describes."""
    return build(config.adaptation, "adaptation", Adaptation)


def schedule(config: DictConfig) -> Schedule:
    """Return the learning-rate schedule that the config describes."""
    return build(config.schedule, "schedule", Schedule)


def base_rate(config: DictConfig) -> float:
    """Return the optimizer's rate.

    Raises:
        ConfigError: It is no positive number.
    """
    rate = config.optimizer.get("lr")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < float("inf"):
        raise ConfigError(f"optimizer.lr: must be a number above 0, got {rate!r}")
    return float(rate)


def optimizer(
    config: DictConfig, trained: TransferModel, groups: Sequence[LayerGroup], chosen: Adaptation
) -> Optimizer:
    """Return the optimizer over all layer groups, built once for the whole run."""
    heights = [Height(group.name, group.depth, group.parameters) for group in groups]
    parameters = dict(trained.named_parameters())
    made = optimizer_groups(parameters, heights, chosen.layer_scale)
    return build(config.optimizer, "optimizer", Optimizer, params=made)


def machine(config: DictConfig) -> Precision:
    """Return the device and what to compute in on it."""
    return Precision.choose(config.precision, choose_device(config.device))


def presets() -> dict[str, str]:
    """Return the option chosen for each config group of this run."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return {}
    choices = HydraConfig.get().runtime.choices
    return {
        str(group): str(option)
        for group, option in sorted(choices.items())
        if option is not None and not str(group).startswith(("hydra/", "schema"))
    }


def typed_overrides() -> list[str]:
    """Return what the user typed, as Hydra read it."""
    from hydra.core.hydra_config import HydraConfig

    if not HydraConfig.initialized():
        return []
    # As typed: an interpolation in an override means nothing where Hydra keeps it.
    typed = OmegaConf.to_container(HydraConfig.get().overrides.task, resolve=False)
    return [str(override) for override in typed]  # type: ignore[union-attr]


def as_yaml(config: DictConfig) -> str:
    """Return the config, resolved, as YAML."""
    plain = OmegaConf.to_container(config, resolve=True)
    return OmegaConf.to_yaml(OmegaConf.create(json.loads(json.dumps(plain))))


def dataset_size(data: Dataset) -> int:
    """Return the number of examples."""
    return len(data)
