"""A student of a model's attention: how tokens relate in one block (Wang et al. 2020, 2021).

Legend: B batch, A heads of relations, T queries, S keys, W width of a head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch, Counts, Sums
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, at_least
from transfer_cli.metrics import LOSS, Metric
from transfer_cli.model.attention import AttentionInputs, Projections, masked_scores
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.probes import set_probe
from transfer_cli.model.shape import BackboneShape
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.with_teachers import WithTeachers

ATTENTION_AND_VALUES = {"attention": ("query", "key"), "values": ("value", "value")}
"""The relations of the first paper: which two projections each is the product of."""
SELF_PAIRS = {"queries": ("query", "query"), "keys": ("key", "key"), "values": ("value", "value")}
"""Those of the second, which need no equal numbers of heads."""

_LAYOUT_KEYS = ("states", "pooled", "row_text", "row_places")
"""What the student's frozen backbone said of a batch, and how `loop.pack` lays it out."""


@dataclass(eq=False, repr=False)
class RelationDistillation(WithTeachers):
    """KL(R_T || R_S) of relations between tokens in the last block, mean over heads.

    A relation is a softmax(x y^T / sqrt(W)) of a head's projections over what a query sees. By
    default they are the attention (queries by keys) and values by values; with `heads`, queries,
    keys and values each by themselves, their concatenated width split into so many parts.

    Student and teacher may differ in width and depth, and no head is needed; what follows the
    projections in the student's last block does not train by it. Its pass is its own where other
    losses are computed.

    Args:
        teachers: One run, or published model, with the run's own tokenizer.
        heads: Parts of the width of either side; None: their own heads, equally many on both.
        teacher_layer: The teacher's block, from 0; None: its last.
    """

    reaches_all = False
    needs_whole_model = True

    heads: int | None = None
    teacher_layer: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.teachers) > 1:
            raise ValueError(
                f"teachers names {len(self.teachers)} models, whose relations have no mean; give "
                "one"
            )
        if self.heads is not None:
            at_least("heads", self.heads, 1)
        if self.teacher_layer is not None:
            at_least("teacher_layer", self.teacher_layer, 0)
        self.relations = ATTENTION_AND_VALUES if self.heads is None else SELF_PAIRS

    @property
    def weights(self) -> Mapping[str, float]:
        return dict.fromkeys(self.relations, 1.0)

    def check_teachers(self, shapes: Sequence[BackboneShape], key: str) -> None:
        """See `WithTeachers`; the student looks the way that its teacher does."""
        super().check_teachers(shapes, key)
        (direction,) = {shape.direction for shape in shapes}
        self.direction = None if direction == "auto" else direction

    def misfit(self, teacher: BackboneShape) -> str:
        layer = self.teacher_layer
        if teacher.has_encoder:
            return "has an encoder and a decoder; give a model of one stack"
        if layer is not None and layer >= teacher.depth:
            return f"has the blocks 0 to {teacher.depth - 1}, so there is no teacher_layer={layer}"
        if layer is not None and teacher.distinct_blocks < teacher.depth:
            return "has blocks that share their weights; leave teacher_layer out"
        return self._relation_problem("", teacher, teacher.depth - 1 if layer is None else layer)

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        student = backbone.shape
        for teacher in self.shapes:
            problem = self._relation_problem("model: the student ", student, student.depth - 1)
            if problem:
                raise ConfigError(problem)
            if self.heads is None:
                self._check_head_counts(student, teacher)
        return {}

    def counts(self, batch: Batch) -> dict[str, int]:
        return dict.fromkeys(self.relations, int(batch["mask"].sum()))

    def loss_sums(self, model: TransferModel, batch: Batch, encoded: Encoding) -> dict[str, Tensor]:
        """Return each relation's divergence summed over real tokens, in nats and float32."""
        (teacher,) = self.teacher_models
        tokens = {key: value for key, value in batch.items() if key not in _LAYOUT_KEYS}
        with torch.no_grad():
            theirs = _projections(teacher, tokens, self.teacher_layer)
        # A pass of its own: one that other losses began has recorded nothing.
        ours = _projections(model, tokens, None)
        real_B1T1 = batch["mask"].flatten(0, -2)[:, None, :, None]
        sums = {}
        for name, (left, right) in self.relations.items():
            log_p, log_q = (self._log_relation(side, left, right) for side in (theirs, ours))
            seen = real_B1T1 & log_p.isfinite()
            # `where`, since unseen keys are -inf on both sides.
            divergence = torch.where(seen, log_p.exp() * (log_p - log_q), 0)
            sums[name] = divergence.sum() / log_p.shape[1]
        return sums

    def compute_metrics(self, totals: Sums, counts: Counts, text: TextStats) -> dict[str, float]:
        means = {name: float(totals[name]) / counts[name] for name in self.relations}
        return {"loss": sum(means.values()), **means}

    def declared_metrics(self) -> tuple[Metric, ...]:
        """Return the loss, then the relations; there are no results of single examples."""
        plain = replace(LOSS, per_example=False)
        return (
            replace(plain, headline=True),
            *(replace(plain, name=name) for name in self.relations),
        )

    def _relation_problem(self, whose: str, shape: BackboneShape, layer: int) -> str:
        """Return why a block's relations cannot be compared, and a cure; else ""."""
        if shape.has_window[layer] or shape.is_sparse:
            return (
                f"{whose}has a window of attention in its block {layer}, or sparse attention, and "
                "relations are of all that a query may see; take a block or model without"
            )
        widths = {shape.heads * shape.head_size, shape.kv_heads * shape.head_size}
        if self.heads is not None and any(width % self.heads for width in widths):
            many = " and ".join(map(str, sorted(widths)))
            return (
                f"{whose}has projections of {many} numbers, which cannot be split into "
                f"{self.heads} equal parts; give another {self.key}.heads"
            )
        return ""

    def _check_head_counts(self, student: BackboneShape, teacher: BackboneShape) -> None:
        for option, what, few, many in (
            ("heads", "heads", student.heads, teacher.heads),
            ("key_value_heads", "heads of keys", student.kv_heads, teacher.kv_heads),
        ):
            if few != many:
                raise ConfigError(
                    f"{self.key}.heads: the student has {few} {what} and its teacher {many}; give "
                    f"model.{option}={many}, or compare parts of the width with "
                    f"{self.key}.heads={many}"
                )

    def _log_relation(self, projections: Projections, left: str, right: str) -> Tensor:
        """Return the logarithm of a relation, `[B, A, T, S]`, -inf where a query sees no key."""
        first, second = (self._split_heads(getattr(projections, name)) for name in (left, right))
        if left != right:
            second = second.repeat_interleave(first.shape[1] // second.shape[1], dim=1)
            return masked_scores(first, second, projections.inputs).float().log_softmax(-1)
        return masked_scores(first, first, _mask_only(projections.inputs)).float().log_softmax(-1)

    def _split_heads(self, states_BHTW: Tensor) -> Tensor:
        if self.heads is None:
            return states_BHTW
        parts: Tensor = states_BHTW.transpose(1, 2).flatten(2).unflatten(2, (self.heads, -1))
        return parts.transpose(1, 2)


def _projections(model: TransferModel, batch: Batch, layer: int | None) -> Projections:
    """Return what a block's attention computes with; the last block's, unless a layer is given."""
    projections: dict[int, Projections] = {}
    with set_probe(model.backbone, projections=projections.__setitem__):
        Encoding(model, batch).states  # noqa: B018 - computes them
    return projections[model.backbone.shape.depth - 1 if layer is None else layer]


def _mask_only(inputs: AttentionInputs) -> AttentionInputs:
    """Return what queries see, without the biases that a position kind adds to it."""
    attn_mask = inputs.attn_mask
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return inputs
    return replace(inputs, attn_mask=attn_mask.isfinite().any(1, keepdim=True))
