"""A model to start from: what `init_from` names."""

import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from torch import Tensor

from transfer_cli.assembly.model import apply_edits, build_model
from transfer_cli.config.models import expand_short_name, listed_models
from transfer_cli.data.chat_template import ChatTemplate
from transfer_cli.data.split import LineRule
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.errors import CheckpointError, ConfigError, raised_as
from transfer_cli.generation.prompt_layout import Around, PromptLayout
from transfer_cli.interop.files import fetch
from transfer_cli.interop.graph_folder import GRAPH, GraphFolder, is_graph_folder, open_graph
from transfer_cli.interop.published_folder import Published, is_published, open_folder
from transfer_cli.interop.vocabulary import read_chat_template
from transfer_cli.model.borrowing import model_as_head
from transfer_cli.model.meta_device import without_weights
from transfer_cli.model.picked_blocks import (
    evenly_spaced,
    shape_of_blocks,
    tensors_of_blocks,
    tensors_of_both_stacks,
)
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.weights import (
    DESCRIPTION,
    WEIGHTS,
    LazyTensors,
    LoadReport,
    ModelDescription,
    backbone_hash,
    check_finite,
    load_pretrained,
    open_tensors,
    read_description,
    read_shapes,
    weights_hash,
    without_values,
)
from transfer_cli.objectives.base import Loss, Objective
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.runs import checkpoint
from transfer_cli.runs.directory import CHECKPOINTS, HUB, PARTS, TOKENIZER, model_folders
from transfer_cli.tasks.base import Task, build_task

MAX_BASES = 20
"""How many models may each refer to the next one. A circle of them is refused by that, too."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pretrained:
    """What `init_from` names: a model to start from.

    Args:
        folder: The folder with its description and tokenizer.
        base: Where the user says that the weights are that this model does not store.
        layers: The numbers of the blocks that are picked of it, which its description then has
            alone; None: all.
        graph: The ONNX graph that stands for its weights.
        in_both: Whether it is one stack of blocks that begins both an encoder and a decoder, which
            its description then has.
    """

    weights: Path
    folder: Path
    description: ModelDescription
    tokenizer: Tokenizer
    base: str | None = None
    published: Published | None = None
    layers: tuple[int, ...] | None = None
    graph: GraphFolder | None = None
    in_both: bool = False

    @property
    def has_run(self) -> bool:
        """Whether it is of a run, whose files lie beside it."""
        return self.published is None and self.graph is None

    @cached_property
    def task(self) -> Task | None:
        """What it was adapted to; None for a language model."""
        return build_task(self.description.task, self.description.labels, f"{self.folder}: task")

    @property
    def lines(self) -> LineRule:
        """What became of line breaks in the running text that it was trained on."""
        if self.published is None:
            return self.description.lines or "end"
        is_causal = self.description.shape.direction == "causal"
        of_ours = self.published.reads_lines and not self.tokenizer.ends_texts
        return "keep" if is_causal and self.tokenizer.keeps_lines and not of_ours else "end"

    @property
    def reads_lines(self) -> bool:
        """Whether the texts that it was trained on as a language model were lines."""
        if self.published is not None:
            return self.published.reads_lines and self.lines == "end"
        if self.task and self.task.laid_out_as:
            return self.task.laid_out_as[0]
        is_causal = self.description.shape.direction == "causal"
        is_one_token = self.tokenizer.sep == self.tokenizer.cls
        if is_causal and self.description.lines is None and is_one_token:
            # Prompts of earlier versions: where one token serves as all, it ends texts.
            return False
        is_text = self.task is None and not self.description.pairs
        return (is_text or is_causal) and self.lines == "end"

    @property
    def before_text(self) -> int | None:
        """The token that it reads before texts that are no lines; None: none."""
        if self.task and self.task.laid_out_as:
            return self.task.laid_out_as[1]
        # Runs that read line by line put nothing but separators before a text.
        is_read_so = self.published is not None or self.lines != "end"
        return self.tokenizer.before_text if is_read_so else None

    @property
    def prompt_layout(self) -> PromptLayout:
        """How a causal language model reads the text that it goes on with."""
        if self.reads_lines:
            return PromptLayout(self.tokenizer)
        joins = self.lines == "join"
        return PromptLayout(
            self.tokenizer, has_lines=False, before_text=self.before_text, joins_lines=joins
        )

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How it reads conversations; None: it does not say."""
        if self.published is not None:
            return read_chat_template(self.folder)
        return self.task.chat_template if self.task else None

    @property
    def around(self) -> Around:
        """What surrounded the texts that a masked language model was trained on last."""
        if self.reads_lines:
            return "lines"
        return "sentence" if self.lines == "end" else "text"

    def tensors(self, *, values: bool = True) -> Mapping[str, Tensor]:
        """Return all of its weights: its own, over those of the model that it refers to.

        Each is read when it is asked for. Without values, they are on the meta device.
        """
        tensors, depth = self._with_base(values=values), self.description.shape.depth
        if self.layers is not None:
            tensors = tensors_of_blocks(tensors, self.layers)
        if self.in_both:
            tensors = tensors_of_both_stacks(tensors)
        if depth > len(tensors):  # even on paper, thousands of blocks take their time
            raise CheckpointError(
                f"{self.weights} does not fill this model's backbone: {len(tensors)} tensors are "
                f"less than {depth} blocks"
            )
        with without_weights():  # memory is taken for the model of the description
            self.filled(without_values(tensors))
        if not values:
            return without_values(tensors)

        def read(name: str) -> Tensor:
            tensor = tensors[name]
            check_finite({name: tensor}, self.weights)
            return tensor

        return LazyTensors(without_values(tensors), read)

    def fingerprint(self, tensors: Mapping[str, Tensor]) -> str:
        """Return what tells these weights, which are `tensors`, from others.

        A list of files has their hash already; a published model has none.
        """
        if self.graph is not None:
            return hashlib.blake2b((self.folder / GRAPH).read_bytes()).hexdigest()
        listed = checkpoint.hash_of(WEIGHTS, self.weights)
        base = self.description.base
        return weights_hash(tensors) if listed is None else f"{listed}{base.hash if base else ''}"

    def filled(
        self, tensors: Mapping[str, Tensor], objective: Objective | None = None
    ) -> tuple[TransferModel, LoadReport]:
        """Return the model of the description, filled; without an objective, it has no head."""
        if self.graph is not None:
            names = [] if objective is None else [objective.head or objective.token_head or HEAD]
            return self.graph.model(names), LoadReport((), (), ())
        losses = [] if objective is None else [Loss("main", objective)]
        model = build_model(self.description.shape, self.description.vocabulary, losses, seed=0)
        if objective is not None:
            drop_training_heads(model, objective, tensors)
        apply_edits(model, self.description.edits, self.tokenizer)
        return model, load_pretrained(model, tensors, self.weights, self.fresh_names(model))

    def fresh_names(self, model: TransferModel) -> frozenset[str]:
        """Return the names of a backbone's parameters that it lacks."""
        names = model.state_dict() if self.in_both else ()
        # All that a decoder's block has beside one of a model of one stack.
        return frozenset(name for name in names if ".cross_attention" in name)

    def _with_base(self, *, values: bool, below: int = 0) -> Mapping[str, Tensor]:
        if self.published:
            return self.published.tensors(values=values)
        if values and (self.weights / WEIGHTS).is_file():
            verify_model(self.weights, WEIGHTS)
        base = self.description.base
        tensors: Mapping[str, Tensor] = read_shapes(self.weights)
        if values:
            tensors = LazyTensors(tensors, open_tensors(self.weights / WEIGHTS).__getitem__)
        if base is None:
            return tensors
        place = self.base_folder()
        if below == MAX_BASES:
            raise CheckpointError(
                f"{self.weights} is the last of {MAX_BASES} models that each refer to another, "
                f"and refers to {place}; give the right one with base=RUN"
            )
        beneath = open_pretrained(str(place), "base")._with_base(values=values, below=below + 1)
        if values and backbone_hash(beneath) != base.hash:
            raise CheckpointError(
                f"{place} is not the backbone that this model was trained on (hash "
                f"{base.hash[:8]}): its hash is {backbone_hash(beneath)[:8]}; "
                "give the right one with base=RUN"
            )
        joined = {**without_values(beneath), **without_values(tensors)}
        if not values:
            return joined
        return LazyTensors(joined, lambda n: (tensors if n in tensors else beneath)[n])

    def base_folder(self) -> Path | None:
        """Return the folder of the model that this one refers to; None where it refers to none."""
        base = self.description.base
        if base is None:
            return None
        if self.base is not None:
            folder = Path(self.base).expanduser()
            if not folder.is_dir():
                raise CheckpointError(f"base: there is no folder {folder}")
            return folder
        places = [self.folder / base.relative, Path(base.path)]
        with suppress(OSError):  # a name that no folder can have
            for place in places:
                if place.is_dir():
                    return place
        raise CheckpointError(
            f"{self.weights} holds what was trained alone, and the backbone that it was trained on "
            f"(hash {base.hash[:8]}) is not at {places[-1]}; say where it is with base=RUN"
        )


def tensors_with_parts(
    start: Pretrained, objective: Objective, *, values: bool = True
) -> Mapping[str, Tensor]:
    """Return all weights of a model, and those of the parts that its run keeps beside it.

    Parts of another shape than the objective's are left out; for `values` see `Pretrained.tensors`.
    """
    tensors, parts = start.tensors(values=values), dict[str, Tensor]()
    with raised_as(ConfigError, "objective."):
        wanted = objective.parts_of(start.description.shape)
    for name, part in wanted.items():
        folder = start.folder.parent / PARTS / name
        if (
            folder.is_dir()
            and (pretrained := open_pretrained(str(folder))).description.shape == part.shape
        ):
            parts |= model_as_head(name, pretrained.tensors(values=values))
    if not parts:
        return tensors
    return LazyTensors(
        {**without_values(tensors), **parts}, lambda n: (parts if n in parts else tensors)[n]
    )


def drop_training_heads(
    model: TransferModel, objective: Objective, tensors: Iterable[str] = ()
) -> None:
    """Take the heads from a model that a finished one does not keep, and that have no tensors."""
    stored = {name.split(".")[1] for name in tensors if name.startswith("heads.")}
    for name in objective.training_heads - stored:
        model.heads.pop(name)


def open_pretrained(path: str, key: str = "init_from", base: str | None = None) -> Pretrained:
    """Return the model at `path`, without its weights.

    Args:
        path: A run directory, its `model/`, one of its checkpoints, a published model's folder,
            or `hf:owner/name` or a short name (`conf/models.yaml`) to fetch that.
    """
    path = expand_short_name(path)
    place = fetch(path, key) if path.startswith(HUB) else Path(path).expanduser()
    if is_graph_folder(place):
        raise CheckpointError(
            f"{key}: {place} holds an ONNX graph, which answers (predict, evaluate, load), and no "
            "weights to go on with; take the run itself, or its export with format=hf"
        )
    if (place / "model.gguf").is_file():
        raise CheckpointError(
            f"{key}: {place} holds a GGUF file, which llama.cpp reads; take the run itself, or its "
            "export with format=hf"
        )
    if is_published(place):
        model = open_folder(place, key)
        return Pretrained(place, place, model.description, model.tokenizer, base, published=model)
    weights, folder = model_folders(place, key, listed_models())
    verify_model(folder, DESCRIPTION, TOKENIZER)
    description = read_description(folder)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    if tokenizer.hash != description.tokenizer_hash or tokenizer.size != description.vocabulary:
        raise CheckpointError(
            f"{key}: {folder / TOKENIZER} is not the tokenizer that this model was trained with; "
            "put the original back"
        )
    return Pretrained(weights, folder, description, tokenizer, base)


def open_for_inference(path: str, key: str, base: str | None = None) -> Pretrained:
    """Return the model at `path`, which may be an ONNX graph, to be run as it is."""
    place = Path(path).expanduser()
    if not is_graph_folder(place):
        return open_pretrained(path, key, base)
    graph = open_graph(place, key)
    return Pretrained(place, place, graph.description, graph.tokenizer, graph=graph)


def verify_model(folder: Path, *names: str) -> None:
    """Compare files of a model with its list, if it is of a version that wrote one."""
    if not (folder / checkpoint.META).exists():
        return
    for name in names:
        try:
            checkpoint.verify(folder, (name,))
        except CheckpointError as error:
            copy = checkpoint.whole_copy_of(name, folder, folder.parent / CHECKPOINTS)
            cure = "restore it from a copy" if copy is None else f"put its copy there, {copy}"
            raise CheckpointError(f"{error}; {cure}") from error


def open_start(
    init_from: str | None,
    base: str | None,
    typed: Sequence[str],
    may_change: Set[str] = frozenset(),
) -> Pretrained | None:
    """Return the model that `init_from` names; None when it names none.

    `may_change` are keys of the model that may be typed beside it all the same.
    """
    if init_from is None:
        return None
    for word in typed:
        key = word.lstrip("+~").partition("=")[0]
        part = key.partition(".")[0]
        # A tokenizer from a file is compared with the model's own.
        from_file = word == "tokenizer=file" or key == "tokenizer.path"
        grows = word == "tokenizer=inherited" or key in (
            "tokenizer.add", "tokenizer.sentinels", "tokenizer.chat_template",
        )  # fmt: skip
        takes_none = word.startswith("~") or word.endswith("=null")
        is_allowed = from_file or grows or takes_none or key in may_change
        if part in ("model", "tokenizer") and not is_allowed:
            raise ConfigError(f"{word}: init_from brings its own {part}; leave {key}= out")
    return open_pretrained(init_from, base=base)


def pick_layers(
    start: Pretrained | None, layers: Sequence[int] | None, depth: int | None
) -> Pretrained | None:
    """Return a model to start from with some of its blocks alone.

    Args:
        layers: Their numbers; None: `depth` blocks, spread over all of them.
        depth: How many; None: as many as `layers`, or all.
    """
    if start is None and layers is not None:
        raise ConfigError(
            "student.layers: there is no model to pick blocks of; give init_from=TEACHER, or leave "
            "it out"
        )
    if start is None or (layers is None and depth is None):
        return start
    key = "model.depth" if layers is None else "student.layers"
    if layers is not None and depth not in (None, len(layers)):
        raise ConfigError(
            f"model.depth: {depth} blocks, and student.layers picks {len(layers)}; leave "
            "model.depth= out"
        )
    if depth is not None and type(depth) is not int:
        raise ConfigError(f"model.depth: expected a number of blocks, got {depth!r}")
    _refuse_edits(start, key, "and none can be left out")
    shape = start.description.shape
    with raised_as(ConfigError, f"{key}: "):
        picked = evenly_spaced(shape.depth, depth or 0) if layers is None else tuple(layers)
        description = replace(start.description, shape=shape_of_blocks(shape, picked))
    return replace(start, description=description, layers=picked)


def _refuse_edits(start: Pretrained, key: str, why: str) -> None:
    if edits := start.description.edits:
        raise ConfigError(
            f"{key}: {start.folder} has blocks that were edited ({', '.join(edits)}), {why}; start "
            "from a run without edits, or one that was stored with adaptation.store=merged"
        )


def as_encoder_decoder(start: Pretrained, objective: Objective) -> Pretrained:
    """Return a model of one stack as an encoder and a decoder, if the objective needs these."""
    shape = start.description.shape
    if objective.direction != "encoder_decoder" or shape.has_encoder:
        return start
    _refuse_edits(start, "init_from", "which cannot begin both an encoder and a decoder")
    with raised_as(ConfigError, f"init_from: {start.folder} as an encoder and a decoder: "):
        both = replace(shape, direction="encoder_decoder")
    log.info(
        "init_from: the blocks of %s begin the encoder and the decoder; attention on the source "
        "starts fresh", start.folder,
    )  # fmt: skip
    return replace(start, description=replace(start.description, shape=both), in_both=True)
