"""What is tried on the device of `tests/stand_in.py`.

As a program it takes the names of cases, as a list in JSON.
It prints a line of JSON for each: what went wrong (null: nothing), and which waits were met.
"""

import contextlib
import functools
import io
import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests import stand_in, tiny
from transfer_cli.adaptation import plans
from transfer_cli.adaptation.edit import Edit
from transfer_cli.adaptation.edits import (
    IA3,
    Adapters,
    FreshTop,
    GatedPrefix,
    LoRA,
    MixLayers,
    NewRows,
    PALs,
    ParallelAdapters,
    Segments,
)
from transfer_cli.adaptation.penalties import EWC, L2SP, Penalty, Start
from transfer_cli.adaptation.plans import Plan
from transfer_cli.batch import IGNORE, Batch
from transfer_cli.cli import main
from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.mixture import Mixture
from transfer_cli.data.sampler import LaneSampler, StepSampler
from transfer_cli.data.split import Dataset, Split, TextContext
from transfer_cli.engine.carried_memory import CarriedMemory
from transfer_cli.engine.evaluation import EachExample, evaluate, predictions, samples
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.engine.fisher import fisher_information
from transfer_cli.engine.precision import Precision
from transfer_cli.generation.decoding import Sampling, TokenSampler, generate
from transfer_cli.objectives.base import Loss, Objective
from transfer_cli.objectives.beside_main_head import CrossView, SliceHeads
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.of_main_head import Distillation
from transfer_cli.objectives.perturbations import PERTURBATIONS
from transfer_cli.objectives.relation_distillation import RelationDistillation
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.objectives.sentence_pair import SentencePair
from transfer_cli.objectives.with_teachers import DistilLM, SourceDistillation, WithTeachers
from transfer_cli.optim.eager import AdamW
from transfer_cli.optim.muon import MuonWithAdamW
from transfer_cli.runs.slices import Slice
from transfer_cli.tasks.chat.task import SupervisedChat
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.task import Cloze
from transfer_cli.tasks.dialog.task import NextUtterance
from transfer_cli.tasks.multilabel import Multilabel
from transfer_cli.tasks.regression import Regression
from transfer_cli.tasks.similarity.contrastive import Contrastive
from transfer_cli.tasks.span.task import SpanExtraction
from transfer_cli.tasks.tagging.objective import TokenTagging
from transfer_cli.tasks.text_to_text.seq2seq import Seq2Seq
from transfer_cli.tasks.text_to_text.task import PrefixLM

WAITS = {
    # A step.
    "engine.skipped_steps.HostCopy.__init__": "begins to copy whether a gradient was finite, which "
    "is read a step late; the reading touches the host alone",
    "engine.step.TrainStep._update": "the same at once: fp16, optimizers that are not fused",
    "engine.handlers.records": "what is written down, each `loop.log_every` steps",
    "engine.carried_memory.CarriedMemory.state_dict": "what is remembered, for a checkpoint",
    "engine.carried_memory.CarriedMemory.load_state_dict": "the same, of one",
    # Before the first step.
    "adaptation.penalties.EWC.start": "whether there is any Fisher information",
    "assembly.finished_run._load_on_device": "the model",
    "assembly.pretraining_task.PretrainingSource.model": "the model that the run starts from",
    "assembly.pretraining_task.pretraining_fisher": "Fisher information that was kept, or is",
    "assembly.run.build_run": "the model",
    "engine.features.cached._bytes": "a digest of the backbone, to find its states again",
    "engine.features.shared_states._write": "states that further runs find",
    "engine.step.TrainStep.load_state_dict": "what a checkpoint holds",
    "model.weights.load_strictly": "weights",
    # What is stored.
    "model.weights._update_digest": "a digest of weights",
    "runs.checkpoint._write_state": "a checkpoint",
    "training.checkpoints.CheckpointWriter.tensors": "weights",
    # An evaluation, batch by batch.
    "engine.evaluation.EachExample.note": "what became of each example",
    "engine.evaluation.values_by_row": "what was predicted of each example",
    "engine.evaluation.SplitSums.update": "sums over batches, in float64 on the host",
    "objectives.answering.Answering.samples": "predictions for people to look at",
    "objectives.classification.Classification.display_pairs": "the same",
    "tasks.regression.Regression.display_pairs": "the same",
    "tasks.similarity.contrastive.Contrastive.display_pairs": "the same",
    "tasks.text_to_text.seq2seq.Seq2Seq.samples": "the same",
    "tasks.choice.task.MultipleChoice.display_pairs": "the same",
    "tasks.multilabel.Multilabel.display_pairs": "the same",
    "tasks.multilabel.Multilabel.results": "how many labels are said at most, so "
    "that no text's are kept as long as all labels",
    "tasks.span.task.SpanExtraction.display_pairs": "the same",
    "tasks.tagging.objective.TokenTagging.display_pairs": "the same",
    "objectives.language_model.LanguageModel.example_results": "each text's number of targets, "
    "so that there are never more logits than one text's",
    "objectives.language_model.LanguageModel.samples": "predictions for people to look at",
    # Answers.
    "engine.evaluation.predictions": "predictions, which are written on the host",
    "generation.decoding.generate": "that token goes to the device",
    "generation.decoding.draw_tokens": "the next token is drawn on the host: a seed means the "
    "same on any device",
    "generation.filling.fill_gaps": "a text that was typed, and what fits its gaps",
}
"""Functions of the package that may wait for the device, and what for. Cases name them by their
last words."""

NOTED = "HostCopy.__init__"
SPECIAL = {name: getattr(tiny.VOCABULARY, name) for name in ("cls", "sep", "mask", "unk", "pad")}
BOTH_SIDES = {"direction": "bidirectional"}
ADAMW = functools.partial(AdamW, fused=True)
TOLERANCE = {"rtol": 1e-3, "atol": 3e-2}
"""Attention of the device is computed by other kernels; distillation begins close to 0."""


@dataclass(frozen=True)
class Case:
    """Something that runs on any device.

    Args:
        compute: Returns plain values and tensors, which are about the same on the host.
        waits: The functions that wait: these and no others.
        fault: What is raised, by one that has been planted.
        on_host: Whether it can be compared with the host: nothing is drawn that it draws otherwise.
    """

    compute: Callable[[torch.device], Any]
    waits: frozenset[str] = frozenset()
    fault: str | None = None
    on_host: bool = True


CASES: dict[str, Case] = {}


def case(
    name: str, *waits: str, **options: Any
) -> Callable[[Callable[[torch.device], Any]], Callable[[torch.device], Any]]:
    """Add a function of the device to the cases."""

    def add(compute: Callable[[torch.device], Any]) -> Callable[[torch.device], Any]:
        assert name not in CASES
        CASES[name] = Case(compute, frozenset(map(_whole_name, waits)), **options)
        return compute

    return add


def _whole_name(last_words: str) -> str:
    (whole,) = (name for name in WAITS if name.endswith(f".{last_words}"))
    return whole


def begun(
    objective: Objective, device: torch.device, data: Dataset | None = None, *,
    edit: Edit | None = None, penalty: Penalty | None = None, losses: Any = None,
    kind: str = "fp32", micro_batch: int = 8, shape: Mapping[str, object] = {}, **recipe: Any,
) -> tiny.Run:  # fmt: skip
    """Return a tiny run on the device, put together as a real one is."""
    model = tiny.model(
        objective, *(loss.objective for loss in losses or ()), **{"depth": 2, **shape}
    )
    tiny.lively(model, std=0.2)
    inherited = frozenset(n for n, _ in model.named_parameters() if not n.startswith("heads.class"))
    if edit is not None:
        edit(model, SPECIAL)
    model.to(device)
    for listener in [objective, *(loss.objective for loss in losses or ())]:
        listener.on_train_start(model, inherited)
    data = data or tiny.Questions(causal=model.backbone.causal)
    for loss in losses or ():
        loss.objective.on_data(data)
    chosen = tiny.Recipe(
        precision=Precision(kind, device), inherited=inherited,
        **{"optimizer": ADAMW, "clip": 1.0, "total": 2, **recipe},
    )  # fmt: skip
    step = tiny.train_step(model, losses or objective, chosen)
    if penalty is not None:
        penalty.start(Start(model, inherited, functools.partial(_fisher, model)))
        step._penalty = penalty
    return tiny.Run(step, data, chosen, micro_batch=micro_batch)


def losses_of(*args: Any, **options: Any) -> list[float]:
    """Return the losses of a tiny run's steps."""
    return begun(*args, **options).go().losses


def _fisher(model: Any, sequences: int, kind: Any) -> dict[str, Tensor]:
    batches = [tiny.Questions(examples=sequences).batch(np.arange(sequences))]
    return fisher_information(model, tiny.bound(CausalLM()), batches, kind, seed=3)


# --- objectives -----------------------------------------------------------------------------------


class Numbers(tiny.Questions):
    """The same texts with numbers for labels."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        value = batch.pop("label").double()
        return {**batch, "value": value}


class Gaps(tiny.Questions):
    """The same texts, whose last token is a gap."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        return {**batch, "gap": batch["mask"].sum(1) - 1}


class Words(type(tiny.VOCABULARY)):
    """The vocabulary of these texts, whose words are the numbers of their tokens."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split() if word.isdigit()]


def cloze() -> Cloze:
    """Return an objective that writes nothing, with a word for each label."""
    words = {label: str(number) for number, label in enumerate(tiny.LABELS, 5)}
    made = Cloze("{text} {mask}", words)
    task = made.task_of(ClassificationTask(tiny.LABELS), words={}, lines=True, before_text=None)
    made.setup = lambda info: Cloze.setup(made, replace(info, vocabulary=Words(), task=task))
    return made


class Several(tiny.Questions):
    """The same texts with one label and a place for another."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        label_B = batch.pop("label")
        return {**batch, "labels": torch.stack([label_B, torch.full_like(label_B, -1)], 1)}


class Spans(tiny.Questions):
    """The same texts, each a window of which the second half is asked for."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        del batch["label"]
        last_B = batch["mask"].sum(1) - 1
        first_B = torch.zeros_like(last_B)
        span_B2 = torch.stack([last_B // 2, last_B - 1], 1)
        window_B5 = torch.stack([last_B, first_B, last_B, first_B, last_B], 1)
        return {**batch, "span": span_B2, "window": window_B5}


class Tagged(tiny.Questions):
    """The same texts, of which each token is a word with a tag."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        del batch["label"]
        target_BT = torch.where(batch["mask"], batch["tokens"] % 2, IGNORE)
        return {**batch, "target": target_BT, "word": target_BT}


class Answered(tiny.Questions):
    """The same texts, of which the second half is written."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        del batch["label"]
        prefix_B = batch["mask"].sum(1) // 2
        next_BT = followers(batch)
        is_source_BT = torch.arange(next_BT.shape[1]) < prefix_B[:, None] - 1
        written = next_BT.masked_fill(is_source_BT, IGNORE)
        segment_BT = torch.zeros_like(next_BT)
        return {**batch, "prefix": prefix_B, "next_tokens": written, "segment": segment_BT}


class Turns:
    """Candidates of turns, of which the right one is said."""

    def __init__(self) -> None:
        self.groups = tiny.groups()
        self.lengths = self.groups.lengths

    def __len__(self) -> int:
        return len(self.groups)

    def batch(self, indices: Any) -> Batch:
        batch = self.groups.batch(indices)
        next_BCT = followers(batch)
        is_right_BC = torch.arange(next_BCT.shape[1]) == batch["label"][:, None]
        said = next_BCT.masked_fill(~is_right_BC[..., None], IGNORE)
        return {**batch, "next_tokens": said, "segment": torch.zeros_like(next_BCT)}


def followers(batch: Batch) -> torch.Tensor:
    """Return the token after each one, `IGNORE` where there is none."""
    behind = batch["tokens"].roll(-1, -1)
    is_there = batch["mask"] & batch["mask"].roll(-1, -1)
    is_there[..., -1] = False
    return torch.where(is_there, behind, IGNORE)


OBJECTIVES: dict[str, tuple[Callable[[], Objective], Callable[[], Dataset], dict[str, object]]] = {
    "clm": (CausalLM, lambda: tiny.blocks(tokens=1100), {}),
    "clm of labelled texts": (CausalLM, tiny.Questions, {}),
    "mlm": (MaskedLM, lambda: tiny.blocks(tokens=1100), BOTH_SIDES),
    "mlm of whole words": (
        lambda: MaskedLM(whole_word=True),
        lambda: tiny.blocks(tokens=1100),
        {**BOTH_SIDES, "residual": "post", "segments": 2, "output_transform": True},
    ),
    **{
        f"replaced tokens, {mode}": (
            functools.partial(ReplacedTokens, mode, width=0.5),
            lambda: tiny.Questions(causal=False),
            BOTH_SIDES,
        )
        for mode in ("detect", "all_tokens", "replace")
    },
    "distillation": (
        lambda: SourceDistillation(CausalLM()),
        tiny.Questions,
        {"residual": "tutorial", "position_kind": "sinusoidal"},
    ),
    "distillation of an mlm": (
        lambda: SourceDistillation(MaskedLM()),
        lambda: tiny.Questions(causal=False),
        BOTH_SIDES,
    ),
    "classification": (lambda: Classification(dropout=0), tiny.Questions, {}),
    "pairs": (Contrastive, tiny.pairs, {}),
    "classification, annealed": (
        lambda: Classification(dropout=0, annealing="linear", class_weight={"animal": 0.1}),
        tiny.Questions,
        {},
    ),
    "cloze": (cloze, tiny.Questions, {}),
    "cloze in a masked model": (cloze, lambda: Gaps(causal=False), BOTH_SIDES),
    "regression": (lambda: Regression(dropout=0), Numbers, {}),
    "multilabel": (lambda: Multilabel(dropout=0), Several, {}),
    "choice": (lambda: MultipleChoice(dropout=0), tiny.groups, {}),
    "spans": (SpanExtraction, Spans, {}),
    "tags": (lambda: TokenTagging(dropout=0, class_weight={"animal": 0.1}), Tagged, {}),
    "dialog": (lambda: NextUtterance(dropout=0, reply_tokens=0), Turns, {}),
    "text to text": (lambda: PrefixLM(generate=False), Answered, {}),
    "text to text by two stacks": (
        lambda: Seq2Seq(generate=False),
        Answered,
        {"direction": "encoder_decoder"},
    ),
    "conversations": (lambda: SupervisedChat(generate=False), Answered, {}),
    "classification with a pooler": (
        lambda: Classification(dropout=0, pooler=True),
        lambda: tiny.Questions(causal=False),
        BOTH_SIDES,
    ),
    "classification of all states": (
        lambda: Classification("concat", 0, (8,), batch_norm=True),
        tiny.Questions,
        {},
    ),
}
"""How to make one, what it trains on, and the shape of its model."""


def _evaluated(name: str, device: torch.device) -> Any:
    make, data, shape = OBJECTIVES[name]
    objective = make()
    run = begun(objective, device, data(), shape=shape).go()
    model, precision, examples = run.step.model, run.recipe.precision, EachExample()
    split = Split("validation", run.data, order=np.arange(9))
    scores = evaluate(model, objective, split, batch=8, precision=precision, each=examples)
    shown = samples(model, objective, split, count=3, precision=precision)
    outcomes = [(outcome.index, outcome.loss, outcome.targets) for outcome in examples.gathered()]
    return run.losses, scores.measures, outcomes, [(s.tokens, s.target) for s in shown]


_ANSWERED = ("EachExample.note", "values_by_row", "Answering.samples")
_OF_LABELS = (*_ANSWERED, "Classification.display_pairs")

for _name, (_make, _, _) in OBJECTIVES.items():
    _waits = {
        Classification: _OF_LABELS,
        Cloze: _OF_LABELS,
        Regression: (*_ANSWERED, "Regression.display_pairs"),
        Multilabel: (*_ANSWERED, "Multilabel.results", "Multilabel.display_pairs"),
        MultipleChoice: (*_ANSWERED, "MultipleChoice.display_pairs"),
        SpanExtraction: (*_ANSWERED, "SpanExtraction.display_pairs"),
        NextUtterance: (*_ANSWERED, "MultipleChoice.display_pairs"),
        TokenTagging: (*_ANSWERED, "TokenTagging.display_pairs"),
        SourceDistillation: (),
        ReplacedTokens: (),
        Contrastive: (*_ANSWERED, "Contrastive.display_pairs"),
        Seq2Seq: (
            "LanguageModel.example_results",
            "EachExample.note",
            "LanguageModel.samples",
            "Seq2Seq.samples",
        ),
    }.get(
        type(_make()),
        ("LanguageModel.example_results", "EachExample.note", "LanguageModel.samples"),
    )
    case(f"steps and scores: {_name}", NOTED, "SplitSums.update", *_waits)(
        functools.partial(_evaluated, _name)
    )


class Taught(tiny.Questions):
    """The same texts with the answers of a teacher."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        shares = torch.rand(len(indices), 3, generator=torch.Generator().manual_seed(1))
        shares = shares / shares.sum(1, keepdim=True)
        is_even_B = torch.from_numpy(indices % 2 == 0)
        members = torch.stack([is_even_B, ~is_even_B], 1)
        return {**batch, "teacher_further": shares, "slices_further": members}


FURTHER: dict[str, Callable[[], Objective]] = {
    "distillation": lambda: Distillation(("RUN",), confidence=0.4),
    "distillation of first choices": lambda: Distillation(("RUN",), hard=True),
    "slices": lambda: SliceHeads({name: Slice(length=(0, 9)) for name in ("even", "odd")}),
    "views": CrossView,
    "consistency under dropout": lambda: Consistency("dropout", symmetric=True),
    **{
        f"consistency under {name}": functools.partial(Consistency, name, confidence=0.4)
        for name in PERTURBATIONS
    },
}
"""Losses of what the head of the main one says."""

for _name, _make in FURTHER.items():

    @case(f"steps: {_name}", NOTED)
    def _(device: torch.device, make: Callable[[], Objective] = _make) -> list[float]:
        losses = [Loss("main", Classification(dropout=0)), Loss("further", make())]
        return losses_of(losses[0].objective, device, Taught(), losses=losses)


class TaughtWords(Tagged):
    """The same texts with the answers of a teacher to each word."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        size = (*batch["word"].shape, 3)
        shares = torch.rand(size, generator=torch.Generator().manual_seed(1))
        return {**batch, "teacher_further": shares / shares.sum(-1, keepdim=True)}


for _name in ("distillation", "distillation of first choices", "consistency under delete"):

    @case(f"steps: {_name} of words", NOTED)
    def _(device: torch.device, make: Callable[[], Objective] = FURTHER[_name]) -> list[float]:
        losses = [Loss("main", TokenTagging(dropout=0)), Loss("further", make())]
        return losses_of(losses[0].objective, device, TaughtWords(), losses=losses)


STUDENTS: dict[str, Callable[[], WithTeachers]] = {
    "a student of predictions": lambda: DistilLM(("RUN", "RUN"), MaskedLM()),
    "a student of hidden tokens": lambda: DistilLM(("RUN",), MaskedLM(), only_masked=True),
    "a student of attention": lambda: RelationDistillation(("RUN",)),
    "a student of parts of the width": lambda: RelationDistillation(("RUN",), heads=4),
}
"""Losses that compare with other models."""

for _name, _make in STUDENTS.items():

    @case(f"steps: {_name}", NOTED)
    def _(device: torch.device, make: Callable[[], WithTeachers] = _make) -> list[float]:
        objective, teacher = make(), tiny.model(MaskedLM(), seed=1, **BOTH_SIDES)
        teacher.to(device).eval().requires_grad_(requires_grad=False)
        objective.set_teachers([teacher] * len(objective.teachers))
        return losses_of(objective, device, tiny.Questions(causal=False), shape=BOTH_SIDES)


class Paired(tiny.Questions):
    """The same texts as pairs of texts."""

    def batch(self, indices: Any) -> Batch:
        batch = super().batch(indices)
        return {**batch, "segment": batch["mask"].long(), "pair": batch["label"] % 2}


BESIDE_MASKED: dict[str, Callable[[], Objective]] = {"sentence pairs": SentencePair}
"""Losses that read the text with its hidden tokens."""

for _name, _make in BESIDE_MASKED.items():

    @case(f"steps and scores: {_name}", NOTED, "SplitSums.update")
    def _(device: torch.device, make: Callable[[], Objective] = _make) -> object:
        losses = [Loss("main", MaskedLM()), Loss("further", make())]
        data, shape = Paired(causal=False), {**BOTH_SIDES, "segments": 2}
        run = begun(losses[0].objective, device, data, losses=losses, shape=shape).go()
        split = Split("validation", data, order=np.arange(9))
        scores = evaluate(
            run.step.model, losses[1].objective, split, batch=8, precision=run.recipe.precision
        )
        return run.losses, scores.measures


@case(
    "steps and scores: text that is remembered",
    NOTED,
    "SplitSums.update",
    "CarriedMemory.state_dict",
    "CarriedMemory.load_state_dict",
)
def _(device: torch.device) -> object:
    data = tiny.blocks(tokens=1100)
    shape = {"position_kind": "relative", "residual": "post", "recurrence": 24}
    run = begun(CausalLM(), device, data, shape=shape, total=4)
    run.sampler = LaneSampler(len(data), run.batch, 0)
    run.step._memories = CarriedMemory(
        run.step.model.backbone.shape, run.batch, 3, run.sampler.steps_per_epoch, device
    )
    run.micro_batch = 3
    run.go()
    remembered = run.step._memories.state_dict()
    run.step._memories.load_state_dict(remembered)
    split = Split("validation", data, context=TextContext("memory", 24, data.length))
    precision = run.recipe.precision
    scores = evaluate(run.step.model, tiny.bound(CausalLM()), split, batch=8, precision=precision)
    return run.losses, scores.measures["loss"], remembered["states"].abs().mean().tolist()


@case("mixed losses on streams of their own", NOTED)
def _(device: torch.device) -> list[float]:
    losses = [
        Loss("main", Classification(dropout=0)),
        Loss("auxiliary", CausalLM(), weight=lambda step: 0.5**step),
        Loss("other", CausalLM(), stream="text"),
    ]
    run = begun(losses[0].objective, device, losses=losses)
    data = {"main": run.data, "text": tiny.blocks(tokens=1100)}
    streams = {name: Stream(rows, StepSampler(len(rows), 8, 0)) for name, rows in data.items()}
    sizes = {name: len(rows) for name, rows in data.items()}
    mixture = Mixture(sizes, total=6, steps_per_epoch=3, seed=1)
    loader = StepDataLoader(streams, 8, lambda: 0, mixture)
    return [float(run.step(loader.load(step), step).total) for step in range(6)]


# --- what is added, what pulls, what trains when --------------------------------------------------

EDITS = (
    Adapters(4), ParallelAdapters(4), LoRA(2, dropout=0),
    LoRA(2, dropout=0, targets=("output", "feed_forward")),
    LoRA(2, dropout=0, dora=True, lr_ratio=16.0), IA3(), GatedPrefix(3), PALs(3), MixLayers(),
    FreshTop(), NewRows(("cls", "sep")), Segments(),
)  # fmt: skip
PENALTIES: Mapping[str, Callable[[], Penalty]] = {
    "l2_sp": lambda: L2SP(0.1, 0.1),
    "ewc": lambda: EWC(sequences=3),
    "empirical ewc": lambda: EWC(sequences=3, fisher="empirical", normalise="none"),
}
PLANS: tuple[Plan, ...] = (
    plans.AllAtOnce(), plans.Only(("head.*",)), plans.NewWeights(), plans.Biases(),
    plans.TopBlocks(1), plans.GradualUnfreezing("1 steps"), plans.ChainThaw("1 steps", None),
    plans.SequentialUnfreezing(),
)  # fmt: skip

for _edit in EDITS:

    @case(f"edit {_edit}", NOTED)
    def _(device: torch.device, edit: Edit = _edit) -> list[float]:
        return losses_of(Classification(dropout=0), device, edit=edit)


for _name, _penalty in PENALTIES.items():

    @case(f"penalty {_name}", NOTED, *(("EWC.start",) if "ewc" in _name else ()))
    def _(device: torch.device, penalty: Callable[[], Penalty] = _penalty) -> list[float]:
        return losses_of(CausalLM(), device, penalty=penalty())


for _plan in PLANS:

    @case(f"plan {_plan}", NOTED)
    def _(device: torch.device, plan: Plan = _plan) -> list[float]:
        return losses_of(Classification(dropout=0), device, plan=plan, total=6, frozen_eval=True)


@case("a stage that ends early, with its best weights", NOTED)
def _(device: torch.device) -> Any:
    run = begun(Classification(dropout=0), device, plan=plans.ChainThaw("4 steps", 1), total=20)
    stages = run.step.stages
    run.trainer.add_event_handler(
        _after_a_step(), lambda: stages.observe_validation(len(run.reports), (1.0,))
    )
    return run.go().losses, [(span.begin, span.end) for span in stages.spans]


def _after_a_step() -> Any:
    from ignite.engine import Events

    return Events.ITERATION_COMPLETED


@case("a resume", NOTED, "TrainStep.load_state_dict")
def _(device: torch.device) -> Any:
    whole = begun(CausalLM(), device, total=4).go()
    first, second = begun(CausalLM(), device, total=2), begun(CausalLM(), device, total=4)
    first.go().step.read()
    stored = io.BytesIO()
    torch.save(first.step.state_dict(), stored)
    stored.seek(0)
    second.step.load_state_dict(torch.load(stored, weights_only=True, map_location="cpu"))
    second.step.model.load_state_dict(first.step.model.state_dict())
    second.progress.step = 2
    second.go()
    assert second.losses == whole.losses[2:]
    return second.losses


# --- how it trains --------------------------------------------------------------------------------

OPTIMIZERS = {"AdamW": ADAMW, "Muon": MuonWithAdamW}

for _name, _optimizer in OPTIMIZERS.items():

    @case(f"{_name} in micro-batches", NOTED)
    def _(device: torch.device, optimizer: Any = _optimizer) -> list[float]:
        return losses_of(CausalLM(), device, optimizer=optimizer, micro_batch=3)

    @case(f"{_name} where a gradient is not finite", NOTED)
    def _(device: torch.device, optimizer: Any = _optimizer) -> Any:
        run = begun(CausalLM(), device, optimizer=optimizer, rate=0.1)
        steps: list[int] = []

        def spoil(gradient: Tensor) -> Tensor:
            steps.append(len(steps))
            return gradient * (torch.nan if len(steps) == 3 else 1)

        run.step.model.backbone.token_embedding.weight.register_hook(spoil)
        micro = [{"main": run.data.batch(np.arange(8))}]
        reports = [run.step(micro, step) for step in range(4)]
        losses = [float(report.total) for report in reports]
        assert losses[2] == losses[3] != losses[1]  # the third step was not taken
        return losses, sum(report.skipped for report in reports) + run.step.read()


@case("an optimizer that is not fused", NOTED, "TrainStep._update")
def _(device: torch.device) -> list[float]:
    return losses_of(CausalLM(), device, optimizer=torch.optim.SGD)


@case("no clipping", NOTED)
def _(device: torch.device) -> list[float]:
    return losses_of(CausalLM(), device, clip=None)


@case("sparse attention", NOTED)
def _(device: torch.device) -> Any:
    return [
        losses_of(CausalLM(), device, shape={"attention": attention, "window": 4})
        for attention in ("strided", "fixed")
    ]


@case("dropout, and blocks that are computed again", NOTED, on_host=False)
def _(device: torch.device) -> list[float]:
    run = begun(CausalLM(), device, shape={"dropout": 0.1, "attention_dropout": 0.1})
    run.step.model.backbone.set_activation_checkpointing(True)
    return run.go().losses


@case("bf16", NOTED)
def _(device: torch.device) -> list[float]:
    return losses_of(MaskedLM(), device, kind="bf16", shape=BOTH_SIDES)


@case("fp16", NOTED, "TrainStep._update", on_host=False)
def _(device: torch.device) -> list[float]:
    return losses_of(CausalLM(), device, kind="fp16")


# --- what else is computed ------------------------------------------------------------------------


@case("cached features", NOTED)
def _(device: torch.device) -> Any:
    run = begun(Classification(dropout=0), device, plan=plans.Only(("head.*",)))
    options = {"batch": 7, "device": device}
    model, precision = run.step.model, run.recipe.precision
    every = CachedFeatures(run.data, model, precision, layers=None, **options)
    run.data = CachedFeatures(run.data, model, precision, layers=(-1,), **options)
    return run.go().losses, every.batch(np.arange(8))["states"]


@case("predicted labels", "evaluation.predictions")
def _(device: torch.device) -> list[Tensor]:
    run = begun(objective := Classification(), device)
    precision = run.recipe.precision
    predicted = predictions(run.step.model, objective, run.data, batch=8, precision=precision)
    return [value for _, outputs in predicted for value in outputs.values()]


@case("text that goes on, with the cache and without it", "draw_tokens", "decoding.generate")
def _(device: torch.device) -> list[list[int]]:
    model = begun(CausalLM(), device).step.model.eval()
    said: list[list[int]] = []
    for cached in (True, False):
        with torch.inference_mode():
            said += generate(
                model, [3, 9, 17], rows=2, max_new_tokens=6, use_cache=cached, sampling=Sampling(),
                sampler=TokenSampler(0, 2), allowed_V=torch.arange(tiny.VOCABULARY.size) > 4,
            )  # fmt: skip
    return said


# --- whole commands -------------------------------------------------------------------------------

TINY = (
    "model=tiny", "model.width=32", "model.heads=2", "model.depth=1", "model.feedforward=64",
    "model.positions=64", "tokenizer.size=600", "data=sample_text", "data.length=32",
)  # fmt: skip
LOOP = (
    "loop.batch=8", "loop.log_every=2", "loop.evaluate_every=2 steps", "checkpoint.every=2 steps",
    "loop.steps=4",
)  # fmt: skip


@contextlib.contextmanager
def on(device: torch.device) -> Iterator[Path]:
    """Let commands compute on the device, which has no name that they know; yield a folder."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("transfer_cli.engine.precision.choose_device", lambda name: device)
        for name in ("TRANSFER_DATA", "TRANSFER_CACHE"):
            patch.setenv(name, f"{folder}/{name}")
        yield Path(folder)


def transfer(*words: object) -> str:
    """Run a command; return what it printed."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main([str(word) for word in words])
    assert code == 0, out.getvalue()
    return out.getvalue()


TRAINED = (
    NOTED, "handlers.records", "run.build_run", "load_strictly", "_write_state",
    "CheckpointWriter.tensors",
    *_OF_LABELS, "SplitSums.update",
    "LanguageModel.example_results", "LanguageModel.samples", "finished_run._load_on_device",
)  # fmt: skip


@case(
    "commands: a causal model", *TRAINED,
    "EWC.start", "PretrainingSource.model", "pretraining_fisher",
    "TrainStep.load_state_dict", "_update_digest", "draw_tokens",
    "decoding.generate",
    "evaluation.predictions",
    on_host=False,
)  # fmt: skip
def _(device: torch.device) -> None:
    with on(device) as folder:
        first, second, texts = folder / "first", folder / "second", folder / "texts"
        texts.write_text("Where is it ?\n")
        transfer("pretrain", *TINY, *LOOP, f"run.dir={first}")
        transfer("generate", f"run={first}", "prompt=The", "max_tokens=4")
        adapted = ("data=sample_questions", f"init_from={first}", *LOOP, f"run.dir={second}")
        transfer("finetune", "adaptation=ewc", "forgetting.data=source", *adapted)
        transfer("finetune", f"resume={second}", "loop.steps=6")
        transfer("evaluate", f"run={second}")
        transfer("predict", f"run={second}", f"input={texts}")


@case(
    "commands: a masked model", *TRAINED, "cached._bytes", "shared_states._write", "fill_gaps",
    on_host=False,
)  # fmt: skip
def _(device: torch.device) -> None:
    with on(device) as folder:
        first, second = folder / "first", folder / "second"
        transfer("pretrain", "objective=mlm", *TINY, *LOOP, f"run.dir={first}")
        transfer("fill", f"run={first}", "The [MASK] of")
        frozen = ("adaptation=frozen", "data=sample_questions", f"init_from={first}", *LOOP)
        transfer("finetune", *frozen, f"run.dir={second}")


# --- planted faults -------------------------------------------------------------------------------


class Faulty(Classification):
    """A classification that does something with its logits."""

    def __init__(self, fault: Callable[[Tensor], Any]) -> None:
        super().__init__(dropout=0)
        self._fault = fault

    def outputs(self, *args: Any) -> Tensor:
        """Return the logits."""
        logits = super().outputs(*args)
        self._fault(logits)
        return logits


FAULTS: Mapping[str, tuple[str, Callable[[Tensor], Any]]] = {
    "a host tensor": ("MixedError", lambda logits: logits + torch.ones(logits.shape)),
    "a host index": ("MixedError", lambda logits: logits[torch.arange(2)]),
    "a host scalar among others": ("MixedError", lambda x: torch.stack([x.sum(), torch.ones(())])),
    "item": ("WaitError", lambda logits: logits.detach().sum().item()),
    "float": ("WaitError", lambda logits: float(logits.detach().sum())),
    "bool": ("WaitError", lambda logits: bool(logits.isnan().any())),
    "nonzero": ("WaitError", lambda logits: (logits > 0).nonzero()),
    "a mask as an index": ("WaitError", lambda logits: logits[logits > 0]),
    "tolist": ("WaitError", lambda logits: logits.tolist()),
    "cpu": ("WaitError", lambda logits: logits.cpu()),
    "a copy to the host": ("WaitError", lambda x: torch.empty(x.shape).copy_(x.detach())),
    "a blocking copy to the device": ("WaitError", lambda x: torch.ones(2).to(x.device)),
    "item in a backward pass": (
        "WaitError",
        lambda logits: logits.register_hook(lambda gradient: gradient * gradient.sum().item()),
    ),
    "equal": ("WaitError", lambda logits: torch.equal(logits, logits + 0)),
}

for _name, (_error, _fault) in FAULTS.items():

    @case(f"planted: {_name}", NOTED, fault=_error)
    def _(device: torch.device, fault: Callable[[Tensor], Any] = _fault) -> list[float]:
        return losses_of(Faulty(fault), device)


# --- as a program ---------------------------------------------------------------------------------


def tried(chosen: Case, device: torch.device) -> dict[str, Any]:
    """Return what went wrong and which waits were met."""
    met: set[str] = set()
    try:
        expected = chosen.compute(torch.device("cpu")) if chosen.on_host else None
        with stand_in.watched(chosen.waits) as met:
            result = chosen.compute(device)
        if chosen.on_host:
            torch.testing.assert_close(flat(stand_in.on_host(result)), flat(expected), **TOLERANCE)
    except Exception as error:
        lines = traceback.format_exception(error)
        return {"error": type(error).__name__, "detail": "".join(lines), "waits": sorted(met)}
    return {"error": None, "detail": "", "waits": sorted(met)}


def flat(nested: Any) -> list[Tensor]:
    """Return the numbers of a nested value as tensors."""
    leaves = torch.utils._pytree.tree_leaves(nested)
    return [torch.as_tensor(leaf) for leaf in leaves if isinstance(leaf, Tensor | float | int)]


if __name__ == "__main__":
    there = stand_in.register()
    for _name in json.loads(sys.argv[1]):
        print(json.dumps({"case": _name, **tried(CASES[_name], there)}), flush=True)
