"""Language models that learn from others in each step: from teachers, or from their own start.

Legend: B batch, T positions, N compared positions, D width, V vocabulary, K teachers, R rows.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from transfer_cli.batch import Batch, Counts, Sums, rows_compared, rows_with_target, select_rows
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, RunError, above_zero, at_least, list_names
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.added import added_parameters
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.model.vocabulary_loss import summed_divergence
from transfer_cli.objectives.base import Encoding, ExampleResults, Objective, Sample, TaskInfo
from transfer_cli.objectives.language_model import (
    HEAD,
    LanguageModel,
    language_model_head,
    log_mean_softmax,
    token_logits,
)
from transfer_cli.seeds import ExampleNoise

LANGUAGE_MODELS: Mapping[str, str] = {
    "causal": "transfer_cli.objectives.causal_lm.CausalLM",
    "bidirectional": "transfer_cli.objectives.masked_lm.MaskedLM",
    "encoder_decoder": "transfer_cli.tasks.text_to_text.seq2seq.Seq2Seq",
}
"""Direction -> the usual `language_model` of a student."""


@dataclass(eq=False, repr=False)
class WithTeachers(Objective):
    """A loss that needs finished models beside the one that trains.

    It opens none: a run checks their shapes before there is a model, and sets them before the
    first step. They are no part of the run's model, of its checkpoints and of its optimizer.

    Args:
        teachers: Runs, or published models; they have the run's own tokenizer.
    """

    teachers: tuple[str, ...]
    language_model: LanguageModel | None = field(default=None, init=False)
    """Whose head is needed of a teacher; None: its backbone is all."""

    def __post_init__(self) -> None:
        if not self.teachers:
            raise ValueError("teachers is empty; give one run or more: teachers=[RUN]")
        self.shapes: tuple[BackboneShape, ...] = ()
        """Of the teachers; none where the objective is not at work in a run."""
        self.key = "objective"
        """The config key of this loss."""
        self._teacher_models: tuple[TransferModel, ...] = ()

    def check_teachers(self, shapes: Sequence[BackboneShape], key: str) -> None:
        """Keep the shapes of the teachers, and refuse what misfits; `key` is that of this loss."""
        self.shapes, self.key = tuple(shapes), key
        for name, shape in zip(self.teachers, shapes, strict=True):
            problem = self.misfit(shape)
            if problem:
                raise ConfigError(f"{key}.teachers: {name} {problem}")

    @abstractmethod
    def misfit(self, teacher: BackboneShape) -> str:
        """Return why nothing can be learnt from a teacher of this shape, and a cure; else ""."""

    def set_teachers(self, models: Sequence[TransferModel]) -> None:
        """Take the teachers, in evaluation mode, frozen and on the device."""
        self._teacher_models = tuple(models)

    @property
    def teacher_runs(self) -> Sequence[str]:
        return self.teachers

    @property
    def other_models(self) -> Sequence[TransferModel]:
        return self._teacher_models

    @property
    def teacher_models(self) -> tuple[TransferModel, ...]:
        """The teachers."""
        if not self._teacher_models:
            raise RunError(
                f"{self.key}: it compares with teachers, which a finished run does not hold; "
                "adapt the student to a task (transfer finetune), or evaluate another of its losses"
            )
        return self._teacher_models


@dataclass(eq=False, repr=False)
class DistilLM(WithTeachers):
    """A language model's own loss, the divergence from teachers, and the distance to their states.

    The divergence is tau^2 KL(p || q) of the teachers' predictions p and the student's q, both
    flattened by tau; several teachers are the mean of their probabilities. The paper's loss is the
    cross-entropy, which has the same gradient; a divergence of 0 means "as the teacher". The
    distance is 1 - cos of both last hidden states. Teacher and student read the same tokens,
    hidden ones among them, and each term is divided by its own number of positions.

    A finished student is opened as what `language_model` makes. Where that makes texts from others
    (`PrefixLM`, `Seq2Seq`), predictions are compared at the targets (word-level distillation; Kim
    and Rush 2016), on examples of its task.

    Args:
        teachers: Runs or published models with a language-model head and the run's tokenizer.
        language_model: What the student learns from the text itself.
        temperature: tau, above 0.
        kl_weight: Of the divergence, 5 in the released code.
        lm_weight: Of the language model's loss, 2 there.
        cosine_weight: Of the distance, 1 there; with 0 teacher and student may differ in width.
        only_masked: Whether predictions are compared at hidden tokens alone, not at all real ones.
    """

    language_model: LanguageModel
    temperature: float = 2.0
    kl_weight: float = field(default=5.0, kw_only=True)
    lm_weight: float = field(default=2.0, kw_only=True)
    cosine_weight: float = field(default=1.0, kw_only=True)
    only_masked: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        above_zero("temperature", self.temperature)
        above_zero("kl_weight", self.kl_weight)
        at_least("lm_weight", self.lm_weight, 0)
        at_least("cosine_weight", self.cosine_weight, 0)
        if self.only_masked and self.language_model.keeps_tokens:
            raise ValueError("only_masked: this language model hides no tokens; leave it out")
        self.task = self.language_model.task
        self.direction = self.language_model.direction
        self.keeps_tokens = self.language_model.keeps_tokens
        self.writes_answers = self.language_model.writes_answers

    @property
    def weights(self) -> Mapping[str, float]:
        """The language model's loss, the divergence, and the distance unless it counts nothing."""
        distance = {"distance": self.cosine_weight} if self.cosine_weight else {}
        return {"loss": self.lm_weight, "divergence": self.kl_weight, **distance}

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.language_model.setup(info)

    def misfit(self, teacher: BackboneShape) -> str:
        """See `WithTeachers`: the student looks as its language model does."""
        if teacher.direction == self.direction or not (self.direction or teacher.has_encoder):
            return ""
        return (
            f"is {teacher.direction}, and {type(self.language_model).__name__} is not; give "
            f"objective.language_model._target_={LANGUAGE_MODELS[teacher.direction]}"
        )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        width, direction = backbone.shape.width, backbone.shape.direction
        for name, shape in zip(self.teachers, self.shapes, strict=False):
            if shape.direction != direction:
                raise ConfigError(
                    f"{self.key}.teachers: {name} is {shape.direction}, and the student "
                    f"{direction}, so they read other rows; give a teacher that is {direction}"
                )
        if self.cosine_weight and any(shape.width != width for shape in self.shapes):
            widths = ", ".join(str(shape.width) for shape in self.shapes)
            raise ConfigError(
                f"{self.key}.cosine_weight: the student's states have {width} numbers, and those "
                f"of its teachers {widths}, so they have no angle; give "
                f"{self.key}.cosine_weight=0"
            )
        return self.language_model.modules(backbone)

    def described(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return the node of the language model: that is what a student is, once it has learnt."""
        language_model: dict[str, Any] = node["language_model"]
        return language_model

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the language model's view with `compared`, `[B, T]` bool.

        These are all real tokens but those of sources, where nothing is predicted.
        """
        view = self.language_model.prepare(batch, noise)
        is_read_whole = self.direction == "bidirectional"
        compared_BT = view["mask"] if is_read_whole else self.language_model.prediction_mask(view)
        return {**view, "compared": compared_BT}

    def counts(self, batch: Batch) -> dict[str, int]:
        """Return the number of targets, and of positions that are compared."""
        (targets,) = self.language_model.counts(batch).values()
        positions = int(batch["compared"].sum())
        compared = targets if self.only_masked else positions
        counts = {"loss": targets, "divergence": compared, "distance": positions}
        return {term: counts[term] for term in self.weights}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return each term, summed over its positions, in float32; losses are in nats."""
        sums = self.language_model.loss_sums(model, batch, encoded)
        return sums | self._teacher_sums(model, batch, encoded)

    def metric_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        sums = self.language_model.metric_sums(model, batch, encoded)
        return sums | self._teacher_sums(model, batch, encoded)

    def _teacher_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Sums:
        """Return the terms of the teachers."""
        # The student's frozen backbone has states of its own there.
        tokens = {key: value for key, value in batch.items() if key not in ("states", "pooled")}
        with torch.no_grad():
            tops = [Encoding(teacher, tokens).top.flatten(0, 1) for teacher in self.teacher_models]
        student = encoded.top.flatten(0, 1)
        rows_N = rows_with_target(batch) if self.only_masked else rows_compared(batch)
        sums = {"divergence": self._divergence(model, student, tops, rows_N)}
        if self.cosine_weight:
            own_ND = select_rows(student, rows_compared(batch)).float()
            theirs = [select_rows(top, rows_compared(batch)).float() for top in tops]
            cosines = [F.cosine_similarity(own_ND, each_ND, dim=-1) for each_ND in theirs]
            sums["distance"] = (1 - torch.stack(cosines).mean(0)).sum()
        return sums

    def example_results(
        self, model: TransferModel, batch: Batch, encoded: Encoding
    ) -> ExampleResults | None:
        return self.language_model.example_results(model, batch, encoded)

    def samples(self, model: TransferModel, batch: Batch, encoded: Encoding) -> list[Sample]:
        return self.language_model.samples(model, batch, encoded)

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        measures = self.language_model.compute_metrics(totals, counts, text)
        further = [term for term in self.weights if term != "loss"]
        return measures | {term: float(totals[term]) / counts[term] for term in further}

    def answer_metrics(self) -> tuple[Metric, ...]:
        return self.language_model.answer_metrics()

    def declared_metrics(self) -> tuple[Metric, ...]:
        further = {"divergence": LOSS, "distance": Metric("distance", higher_is_better=False)}
        return (
            *self.language_model.declared_metrics(),
            *(replace(further[n], name=n, per_example=False) for n in self.weights if n != "loss"),
        )

    def _divergence(
        self, model: TransferModel, student: Tensor, tops: list[Tensor], rows_N: Tensor
    ) -> Tensor:
        states = [select_rows(top, rows_N) for top in tops]

        def logits(rows: slice) -> Tensor:
            parts = [
                token_logits(teacher, state_ND[rows])
                for teacher, state_ND in zip(self.teacher_models, states, strict=True)
            ]
            return parts[0] if len(parts) == 1 else log_mean_softmax(parts)

        table_VD = model.backbone.token_embedding.weight
        output = language_model_head(model).linear_inputs(select_rows(student, rows_N), table_VD)
        return summed_divergence(*output, logits, self.temperature)


@dataclass(eq=False, repr=False)
class SourceDistillation(Objective):
    """tau^2 KL(p0 || p) of the next or masked tokens; p0 is the model at the start of the run.

    Learning without forgetting (Li and Hoiem 2016), on the run's own texts: no pretraining text is
    needed. The temperature softens both distributions. The paper's loss is the cross-entropy, which
    has the same gradient; a divergence of 0 means "unchanged".

    The starting model is not stored, so a finished run can only be evaluated by its other losses.

    Args:
        language_model: The pretraining objective. Predictions are compared at every real token
            (causal), or at the masked tokens of a masked copy of the text (masked).
        temperature: tau, above 0.
    """

    asks_language_model = True
    needs_whole_model = True

    language_model: LanguageModel
    temperature: float = 2.0

    def __post_init__(self) -> None:
        above_zero("temperature", self.temperature)
        self.direction = self.language_model.direction
        self.keeps_tokens = self.language_model.keeps_tokens
        self._source: TransferModel | None = None

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        self.language_model.setup(info)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        return self.language_model.modules(backbone)

    def on_train_start(self, model: TransferModel, inherited: Set[str]) -> None:
        """Keep a frozen copy of the language model, in evaluation mode."""
        source = TransferModel(
            copy.deepcopy(model.backbone), {HEAD: copy.deepcopy(model.heads[HEAD])}
        )
        source.readout = copy.deepcopy(model.readout)
        same = {name for name, part in added_parameters(source).items() if part.keeps_outputs}
        new = [n for n, _ in source.named_parameters() if n not in inherited and n not in same]
        if new:
            raise ConfigError(
                f"{self.info.key}: source distillation keeps the predictions of a pretrained "
                f"language model, but {list_names(new)} did not come from one; give init_from=RUN "
                "of a language model (transfer pretrain), and no edit that replaces a part of it"
            )
        self._source = source.eval().requires_grad_(requires_grad=False)

    @property
    def other_models(self) -> Sequence[TransferModel]:
        return () if self._source is None else (self._source,)

    def prepare(self, batch: Batch, noise: ExampleNoise) -> Batch:
        """Return the language model's view with `compared`, `[B, T]` bool, instead of `target`."""
        view = self.language_model.prepare(batch, noise)
        compared_BT = self.language_model.prediction_mask(view)
        inputs = {key: value for key, value in view.items() if key != "target"}
        return {**inputs, "compared": compared_BT}

    def counts(self, batch: Batch) -> dict[str, int]:
        return {"loss": int(batch["compared"].sum())}

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return tau^2 KL(p0 || p), summed over the compared positions, in nats and float32."""
        if self._source is None:
            raise RunError(
                f"{self.info.key}: source distillation compares with the model that its run "
                "started from, which a finished run does not hold; evaluate another of its losses"
            )
        with torch.no_grad():
            source_NV = self._log_softmax(self._source, batch, Encoding(self._source, batch))
        own_NV = self._log_softmax(model, batch, encoded)
        divergence = F.kl_div(own_NV, source_NV, reduction="sum", log_target=True)
        # The gradient shrinks by tau^2 as logits are divided by tau (Hinton et al. 2015).
        return {"loss": self.temperature**2 * divergence}

    def _log_softmax(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        top_ND = select_rows(encoded.top.flatten(0, 1), rows_compared(batch))
        return (token_logits(model, top_ND).float() / self.temperature).log_softmax(-1)
