"""Classification by the word that a language model puts into a gap, as a pattern writes it.

Legend: B batch, T positions, D width, C classes, N words, V vocabulary.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from transfer_cli.batch import Batch
from transfer_cli.data.encoded_task import EncodedRows, label_targets
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.heads import LanguageModelHead
from transfer_cli.model.pooling import Pooling
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.confidence import Calibrate
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.tasks.base import Direction
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.pattern import ClozePattern, PatternEncoder, label_words


@dataclass(frozen=True)
class ClozeTask(ClassificationTask):
    """One label for a text, or for a pair of texts, that a word in a gap stands for.

    A text is laid out as those of the model's pretraining were:

    ===================  =====================  ===============  ===========================
    direction            pretrained on lines    on other texts   one special token (GPT-2)
    ===================  =====================  ===============  ===========================
    causal               `sep` A                A                A
    bidirectional        `sep` A `sep`          `cls` A `sep`
    ===================  =====================  ===============  ===========================

    Args:
        pattern: See `ClozePattern`.
        words: The words of each label.
        lines: Whether it was pretrained on lines, with a `sep` before each (`data.corpus`).
        before_text: The token before A in other causal models (Llama); None: none.
    """

    objective: ClassVar[str] = "cloze"
    head: ClassVar[str] = HEAD

    pattern: str = field(kw_only=True)
    words: Mapping[str, tuple[str, ...]] = field(kw_only=True)
    lines: bool = field(default=False, kw_only=True)
    before_text: int | None = field(default=None, kw_only=True)

    @property
    def laid_out_as(self) -> tuple[bool, int | None]:
        return self.lines, self.before_text

    @classmethod
    def sample(cls) -> tuple["ClozeTask", Sequence[Example]]:
        task, examples = ClassificationTask.sample()
        words = {"number": ("How",), "place": ("Where",)}
        return cls(task.labels, pattern="{text} {mask}", words=words), examples

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> EncodedRows:
        """See `Task`; in a bidirectional model `gap` says where the mask token is."""
        encoder = self._encoder(tokenizer, direction)
        for example in examples:
            if (example.pair is not None) != encoder.pattern.has_pair:
                there = "one text each" if example.pair is None else "two texts each"
                raise ConfigError(
                    f"objective.pattern: examples have {there}, and {self.pattern!r} has "
                    f"{'a' if encoder.pattern.has_pair else 'no'} {{pair}}"
                )
        rows = list(encoder.rows(examples, length, self.truncate))
        targets = label_targets(examples)
        if encoder.has_gap:
            targets["gap"] = [gap for _, gap, _ in rows]
        return EncodedRows(
            examples,
            [row for row, _, _ in rows],
            tokenizer.pad,
            targets=targets,
            is_cut=[is_cut for _, _, is_cut in rows],
        )

    def _encoder(self, tokenizer: Tokenizer, direction: Direction) -> PatternEncoder:
        is_causal, sep = direction == "causal", tokenizer.sep
        # Where one token serves as all, it ends texts and no lines; see `PromptLayout`.
        line = sep if self.lines and not (is_causal and sep == tokenizer.cls) else None
        start: tuple[int, ...] = ()
        if line is None and not is_causal:
            start = (tokenizer.cls,)
        elif line is None and self.before_text is not None and not self.lines:
            start = (self.before_text,)
        end = () if is_causal else (sep,)
        pattern = ClozePattern(self.pattern)
        return PatternEncoder(pattern, tokenizer, start, end, line, has_gap=not is_causal)


class Cloze(Classification):
    """Cross-entropy of the label, from the logits of its words in a gap of the written text.

    Nothing is new in the model: the head is that of its pretraining, so before the first step the
    answers are those that it gives without training (`transfer score`). Schick and Schuetze 2021
    (PET), section 3.1; Gao et al. 2021 (LM-BFF), section 4.1.

    Args:
        pattern: How an example is written: `{text}`, perhaps `{pair}`, and `{mask}`, where the word
            stands. In a causal model it is last: the word follows.
        words: The word of each label, or a list of words, whose logits are averaged. None: what the
            data say, else the labels themselves. Each is a single token.
        calibrate, abstain: See `UnitObjective`.
    """

    asks_language_model = True

    def __init__(
        self,
        pattern: str,
        words: Mapping[str, Any] | None = None,
        *,
        calibrate: Calibrate = False,
        abstain: float | None = None,
    ) -> None:
        super().__init__(calibrate=calibrate, abstain=abstain)
        self.pattern = ClozePattern(pattern)
        self.words = words or {}

    @property
    def head(self) -> str:
        return HEAD

    def task_of(
        self, task: Any, *, words: Mapping[str, str], lines: bool, before_text: int | None
    ) -> Any:
        if not isinstance(task, ClassificationTask):
            return task
        by_label = label_words({**words, **self.words}, task.labels, "objective.words")
        return ClozeTask(
            task.labels,
            judged_by=task.judged_by,
            truncate=task.truncate,
            pattern=self.pattern.written,
            words=dict(zip(task.labels, by_label, strict=True)),
            lines=lines,
            before_text=before_text,
        )

    def setup(self, info: TaskInfo) -> None:
        super().setup(info)
        if not isinstance(info.task, ClozeTask):
            raise ConfigError(
                f"losses.{info.name}: a pattern writes all texts of a run anew, so it is a main "
                "objective; take objective=cloze"
            )
        token_of = partial(self.pattern.word_token, info.vocabulary)
        self._tokens = {label: [*map(token_of, info.task.words[label])] for label in info.labels}
        owner: dict[int, str] = {}
        for label, tokens in self._tokens.items():
            for token in tokens:
                if owner.setdefault(token, label) != label:
                    (word,) = info.vocabulary.pieces([token])
                    raise ConfigError(
                        f"objective.words: {owner[token]} and {label} both have the token "
                        f"{word!r}; give each words of its own"
                    )

    def modules(self, backbone: Backbone) -> dict[str, nn.Module]:
        if backbone.causal and not self.pattern.written.endswith("{mask}"):
            raise ConfigError(
                f"objective.pattern: {self.pattern.written!r} goes on after {{mask}}, and a causal "
                "model sees nothing of that; let {mask} be last"
            )
        if not backbone.causal and not self.info.vocabulary.has_mask:
            raise ConfigError(
                "objective: this tokenizer has no mask token of its own, so there is no gap; take "
                "objective=classification, or another model"
            )
        return {HEAD: LanguageModelHead(backbone.shape, backbone.vocabulary)}

    def check_start(self, model: TransferModel, inherited: Set[str]) -> None:
        """See `Objective`: the head has to be pretrained."""
        names = [f"heads.{HEAD}.{name}" for name, _ in model.heads[HEAD].named_parameters()]
        new = [name for name in names if name not in inherited]
        if new or not inherited:
            raise ConfigError(
                f"objective: cloze asks a language model, and {new[0] if new else 'all of it'} is "
                "new here; give init_from=RUN of transfer pretrain, or a published model with the "
                "head of its pretraining, or train one first: transfer pretrain init_from=..."
            )

    def finalize_options(self, model: TransferModel, trains: Set[str]) -> dict[str, Any]:
        """Return none: nothing depends on what trains."""
        return {}

    def pooling_of(self, model: TransferModel) -> Pooling | None:
        """Return how a causal model pools: its last state is all that is read of a text."""
        return "cls_last" if model.backbone.causal else None

    def outputs(self, model: TransferModel, batch: Batch, encoded: Encoding) -> Tensor:
        """Return the logits of the labels, in float32, `[B, C]`."""
        if model.backbone.causal:
            return self.head_outputs(model, encoded.pooled("cls_last"))
        top_BTD, gap_B = encoded.top, batch["gap"]
        row_B = torch.arange(len(gap_B), device=gap_B.device)
        return self.head_outputs(model, top_BTD[row_B, gap_B])

    def head_outputs(self, model: TransferModel, pooled_BD: Tensor) -> Tensor:
        """Return what the words say of the states at gaps, in float32, `[B, C]`."""
        logits_BV = model.heads[HEAD](pooled_BD, model.backbone.token_embedding.weight)
        tokens_N = torch.tensor([token for tokens in self._tokens.values() for token in tokens])
        logits_BN = logits_BV.index_select(1, tokens_N.to(logits_BV.device, non_blocking=True))
        by_label = logits_BN.float().split([len(tokens) for tokens in self._tokens.values()], dim=1)
        return torch.stack([logits_Bn.mean(1) for logits_Bn in by_label], dim=1)
