"""Small real things that tests are made of: a vocabulary, texts, questions, models, training steps.

Everything is a pure function of its arguments; nothing is hidden in a fixture.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
import yaml

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.penalties import Penalty
from transfer_cli.adaptation.plans import AllAtOnce, Plan, Stage
from transfer_cli.assembly.optimizer import parameter_groups
from transfer_cli.batch import Batch, Sums
from transfer_cli.config.build import build
from transfer_cli.data.corpus import EncodedText, TextBlocks
from transfer_cli.data.encoded_groups import EncodedGroups
from transfer_cli.data.encoded_task import EncodedRows
from transfer_cli.data.loader import Stream
from transfer_cli.data.sampler import StepSampler
from transfer_cli.data.split import Dataset, Split, TextStats
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.engine import distributed
from transfer_cli.engine.distributed import is_sharded
from transfer_cli.engine.distributed.replicated import Parallel, Replicated
from transfer_cli.engine.distributed.sharded import Sharded
from transfer_cli.engine.evaluation import evaluate
from transfer_cli.engine.loop import Progress, build_trainer, report_of, run_trainer
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.stages import Stages
from transfer_cli.engine.step import Passes, StepReport, TrainStep, Update
from transfer_cli.lengths import Length
from transfer_cli.model.added import Added
from transfer_cli.model.backbone import Backbone, BackboneShape
from transfer_cli.model.encoder_decoder import build_backbone
from transfer_cli.model.kv_cache import KVCache
from transfer_cli.model.packing import Packing
from transfer_cli.model.shape import Rotary
from transfer_cli.model.transfer_model import LayerGroup, TransferModel, layer_groups
from transfer_cli.objectives.base import Encoding, Loss, Objective, TaskInfo
from transfer_cli.objectives.beside_main_head import BesideMainHead
from transfer_cli.objectives.of_main_head import OfMainHead
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.optim.layer_scale import LayerScale, Uniform
from transfer_cli.optim.schedules import Constant, LRScheduler, Schedule
from transfer_cli.tasks.base import Task

CONF = Path(__file__).parents[1] / "conf"
MODERN = {
    "position_kind": "rotary", "rotary": Rotary(share=0.5, local_base=100.0), "norm": "rms",
    "attention": "window", "window": 5, "global_every": 2, "activation": "silu",
    "feedforward_kind": "gated", "biases": "none", "key_value_heads": 1, "head_width": 12,
    "query_key_norm": True, "embedding_scale": 4.0,
}  # fmt: skip
"""Changes of a shape: everything that today's models have, at once."""
FP32 = Precision("fp32", torch.device("cpu"))
LABELS = ("animal", "number", "place")


@dataclass(frozen=True)
class Vocabulary:
    """Five special tokens, then words; a quarter of them can only continue a word."""

    size: int = 48
    pad: int = 0
    unk: int = 1
    cls: int = 2
    sep: int = 3
    mask: int = 4
    has_mask: bool = True
    sentinels: tuple[int, ...] = ()
    special: frozenset[int] = frozenset(range(5))

    @property
    def starts_word(self) -> np.ndarray:
        return np.arange(self.size) < self.size * 3 // 4

    @property
    def target_start(self) -> list[int]:
        return [self.sep, self.cls]


VOCABULARY = Vocabulary()
Part = TypeVar("Part", bound=torch.nn.Module)


@dataclass
class Questions:
    """Labelled texts: the label is how often the words 5, 6, 7 occur, modulo the number of labels.

    Args:
        causal: Whether the classification token stands last, else first.
        examples: How many.
    """

    causal: bool = True
    examples: int = 64
    seed: int = 0
    rows: list[list[int]] = field(init=False)
    labels: list[int] = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        self.rows, self.labels = [], []
        for _ in range(self.examples):
            words = generator.integers(5, VOCABULARY.size, generator.integers(2, 12)).tolist()
            self.labels.append(sum(word < 8 for word in words) % len(LABELS))
            cls, sep = VOCABULARY.cls, VOCABULARY.sep
            self.rows.append([*words, cls] if self.causal else [cls, *words, sep])

    def __len__(self) -> int:
        return self.examples

    def batch(self, indices: np.ndarray) -> Batch:
        batch = rows_to_batch([self.rows[i] for i in indices], np.asarray(indices))
        return {**batch, "label": torch.tensor([self.labels[i] for i in indices])}


def groups(examples: int = 24, *, causal: bool = True) -> EncodedGroups:
    """Return examples of two to four texts each, and the number of one of them for a label."""
    counts = [2 + number % 3 for number in range(examples)]
    rows = Questions(causal, sum(counts)).rows
    labels = [number % count for number, count in enumerate(counts)]
    sequences = EncodedRows(range(len(rows)), rows, VOCABULARY.pad)
    return EncodedGroups(range(examples), sequences, counts, VOCABULARY.pad, {"label": labels})


def pairs(examples: int = 24) -> EncodedGroups:
    """Return examples of two texts, every other one with a third."""
    counts = [2 + number % 2 for number in range(examples)]
    rows = Questions(examples=sum(counts)).rows
    sequences = EncodedRows(range(len(rows)), rows, VOCABULARY.pad)
    texts = [[3 * n, 3 * n + 1, 3 * n + 2 if count == 3 else -1] for n, count in enumerate(counts)]
    return EncodedGroups(range(examples), sequences, counts, VOCABULARY.pad, {"texts": texts})


def rows_to_batch(rows: Sequence[Sequence[int]], indices: np.ndarray | None = None) -> Batch:
    """Return rows of tokens, padded on the right."""
    longest = max(map(len, rows))
    pad = VOCABULARY.pad
    return {
        "tokens": torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows]),
        "mask": torch.tensor([[t < len(row) for t in range(longest)] for row in rows]),
        "index": torch.as_tensor(np.arange(len(rows)) if indices is None else indices),
    }


def text(tokens: int = 1000, seed: int = 0) -> EncodedText:
    """Return made text in which each word is mostly followed by one of three others."""
    generator = np.random.default_rng(seed)
    ordinary = VOCABULARY.size - 5
    sequence = [VOCABULARY.sep]
    for _ in range(tokens):
        jump = (
            generator.integers(1, 4) if generator.random() < 0.8 else generator.integers(ordinary)
        )
        sequence.append(5 + int(sequence[-1] * 7 + jump) % ordinary)
    return EncodedText(
        tokens=np.array(sequence, np.uint16), num_words=tokens // 2, num_bytes=tokens * 3,
        num_lines=1, num_unknown=0, path=Path(),
    )  # fmt: skip


def blocks(tokens: int = 1000, length: int = 16, seed: int = 0) -> TextBlocks:
    return TextBlocks(text(tokens, seed), length, VOCABULARY.pad)


def all_of(data: Dataset) -> Batch:
    return data.batch(np.arange(len(data)))


def shape(**changes: object) -> BackboneShape:
    """Return three blocks of width 16 without dropout."""
    chosen = {
        "width": 16, "heads": 2, "depth": 3, "feedforward": 32, "positions": 32, "dropout": 0.0,
        "direction": "causal", **changes,
    }  # fmt: skip
    return BackboneShape(**chosen)


def preset(name: str, **changes: object) -> BackboneShape:
    """Return a shape of conf/model."""
    return build({**_values(name), **changes}, "model", BackboneShape)


def _values(name: str) -> dict[str, object]:
    """Return the values of a model, those of the one that it extends included."""
    values = yaml.safe_load((CONF / "model" / f"{name}.yaml").read_text())
    for base in values.pop("defaults", ()):
        values = values if base == "_self_" else {**_values(base), **values}
    return values


def bound(objective: Objective, main: Objective | None = None) -> Objective:
    """Bind an objective; one that is about the main head is the loss `further`."""
    info = TaskInfo(VOCABULARY, LABELS)
    if isinstance(objective, OfMainHead | BesideMainHead | SentencePair):
        info = TaskInfo(VOCABULARY, LABELS, "further", main=main, pairs="nsp")
    objective.setup(info)
    return objective


def backbone(seed: int = 0, **changes: object) -> Backbone:
    torch.manual_seed(seed)
    return build_backbone(shape(**changes), VOCABULARY.size)


def model(*objectives: Objective, seed: int = 0, **changes: object) -> TransferModel:
    """Return a model with the heads that the objectives ask for; they are bound first."""
    trunk = backbone(seed, **changes)
    heads: dict[str, torch.nn.Module] = {}
    for objective in objectives:
        heads |= bound(objective, objectives[0]).modules(trunk)
    return TransferModel(trunk, heads)


def at_work(
    objective: Objective, task: Task, tokenizer: Tokenizer, seed: int = 0, **changes: object
) -> TransferModel:
    """Return a lively model of a tokenizer's tokens, with the heads of an objective for a task."""
    objective.setup(TaskInfo(tokenizer, task.labels, task=task))
    trunk = build_backbone(shape(**changes), tokenizer.size)
    made = TransferModel(trunk, objective.modules(trunk)).eval()
    lively(made, seed)
    return made


def sums(objective: Objective, model: TransferModel, batch: Batch) -> Sums:
    """Return the losses of a batch."""
    return objective.loss_sums(model, batch, Encoding(model, batch))


def lively(module: Part, seed: int = 0, std: float = 0.3) -> Part:
    """Draw every parameter anew and large, so that outputs differ as a trained model's do."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=std, generator=generator)
    return module


def without_dropout(module: Part) -> Part:
    for part in module.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    return module


def packing(mask_BT: torch.Tensor) -> Packing:
    """Return how a batch with this mask is packed."""
    return Packing.from_mask(mask_BT, mask_BT.flatten().nonzero().squeeze(1))


def read_in_parts(
    backbone: Backbone, tokens_BT: torch.Tensor, parts: int | list[int], cache: KVCache,
    **options: object,
) -> torch.Tensor:  # fmt: skip
    """Return the last states of texts that are read part by part through a cache."""
    states = [
        backbone(
            part, torch.ones_like(part, dtype=torch.bool), padded=False, kv_cache=cache, **options
        )[-1]
        for part in tokens_BT.split(parts, dim=1)
    ]
    return torch.cat(states, dim=1)


def newton(
    states_ND: torch.Tensor, label_N: torch.Tensor, decay: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the exact minimum of three-label cross-entropy + decay / 2 x squares of the weights.

    `[D, 3]` and `[3]` in float64, by damped Newton steps from all second derivatives.
    """
    states_ND, width = states_ND.double(), states_ND.shape[1]

    def loss(flat: torch.Tensor) -> torch.Tensor:
        weight, bias = flat[: 3 * width].view(width, 3), flat[3 * width :]
        fit = torch.nn.functional.cross_entropy(states_ND @ weight + bias, label_N)
        return fit + decay / 2 * weight.square().sum()

    at, length = torch.zeros(3 * width + 3, dtype=torch.float64), 1.0
    for _ in range(200):
        slope = torch.func.grad(loss)(at)
        if slope.abs().max() < 1e-4 * decay:
            break
        move = torch.linalg.pinv(torch.func.hessian(loss)(at), rtol=1e-14) @ slope
        length = min(1.0, 2 * length)
        while length > 1e-6 and loss(at - length * move) > loss(at):
            length /= 2
        at = at - length * move
    assert torch.func.grad(loss)(at).abs().max() < 1e-4 * decay
    return at[: 3 * width].view(width, 3), at[3 * width :]


@dataclass(frozen=True)
class Given:
    """A plan that is simply given, as pairs: `Given((("head.*",), "3 steps"), ...)`."""

    stages: tuple[tuple[tuple[str, ...], str], ...]

    def __init__(self, *stages: tuple[tuple[str, ...], str]) -> None:
        object.__setattr__(self, "stages", stages)

    def __call__(self, groups: Sequence[LayerGroup]) -> list[Stage]:
        return [Stage(patterns, Length.parse(length)) for patterns, length in self.stages]


@dataclass(frozen=True)
class Recipe:
    """How a tiny run trains."""

    rate: float = 1e-2
    total: int = 20
    schedule: Schedule = field(default_factory=Constant)
    plan: Plan = field(default_factory=AllAtOnce)
    layer_scale: LayerScale = field(default_factory=Uniform)
    frozen_eval: bool = False
    clip: float | None = None
    seed: int = 0
    max_bad_steps: int = 3
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    inherited: frozenset[str] = frozenset()
    precision: Precision = FP32
    penalty: Penalty | None = None


def train_step(
    trained: TransferModel, losses: Sequence[Loss] | Objective, recipe: Recipe, epoch: int = 8
) -> TrainStep:
    """Return the step of a tiny run, put together as a real one is."""
    if isinstance(losses, Objective):
        losses = [Loss("main", losses)]
    groups = layer_groups(trained, recipe.inherited)
    chosen = Adaptation(recipe.plan, recipe.layer_scale, frozen_eval=recipe.frozen_eval)
    spans = chosen.plan_stages(groups, recipe.total, epoch)
    made = parameter_groups(trained, groups, recipe.layer_scale)
    return TrainStep(
        trained,
        losses,
        Stages(trained, spans, frozen_eval=recipe.frozen_eval),
        Passes(recipe.precision, _parallel(trained, losses)),
        Update(
            recipe.optimizer(made, lr=recipe.rate),
            LRScheduler(recipe.rate, recipe.schedule, recipe.total),
            recipe.clip,
            recipe.max_bad_steps,
            recipe.penalty,
        ),
        groups=groups,
        seed=recipe.seed,
    )


def _parallel(trained: TransferModel, losses: Sequence[Loss]) -> Parallel:
    if is_sharded(trained):
        return Sharded(trained)
    if distributed.world_size() == 1:
        return Parallel(trained)
    return Replicated(trained, some_unused=len({loss.stream for loss in losses}) > 1)


@dataclass
class Run:
    """A tiny run: its step, its data, the engine, and what every step reported."""

    step: TrainStep
    data: Dataset
    recipe: Recipe
    batch: int = 8
    micro_batch: int = 8
    progress: Progress = field(default_factory=Progress)
    reports: list[StepReport] = field(default_factory=list)
    rates: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        from ignite.engine import Events

        self.sampler = StepSampler(len(self.data), self.batch, self.recipe.seed)
        self.trainer = build_trainer(self.step, self.progress)
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED, self._note)

    def _note(self) -> None:
        self.reports.append(report_of(self.trainer))
        self.rates.append([group["lr"] for group in self.step.optimizer.param_groups])

    def go(self) -> "Run":
        run_trainer(
            self.trainer,
            {"main": Stream(self.data, self.sampler)},
            micro_batch=self.micro_batch,
            total_steps=self.recipe.total,
            start_step=self.progress.step,
        )
        return self

    @property
    def losses(self) -> list[float]:
        return [float(report.total) for report in self.reports]


def run(
    objective: Objective,
    data: Dataset,
    recipe: Recipe,
    *,
    batch: int = 8,
    micro_batch: int | None = None,
    seed: int = 0,
    **changes: object,
) -> Run:
    """Return a tiny run that has not begun."""
    trained = model(objective, seed=seed, **changes)
    step = train_step(trained, objective, recipe, epoch=-(-len(data) // batch))
    return Run(step, data, recipe, batch, micro_batch or batch)


def measures(
    scored: TransferModel, objective: Objective, data: Dataset, batch: int = 8,
    facts: TextStats | None = None,
) -> dict[str, float]:  # fmt: skip
    split = Split("validation", data, facts or TextStats())
    return evaluate(scored, objective, split, batch=batch, precision=FP32).measures


def weights_of(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def same(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> bool:
    """Return whether two sets of tensors are equal bit for bit."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


class AddedLinear(Added, torch.nn.Linear):
    """A layer that an edit of somebody else's may put anywhere."""
