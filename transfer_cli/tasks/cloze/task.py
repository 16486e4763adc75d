"""The record of the task: classification, whose examples are written by a pattern."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from transfer_cli.data.encoded_task import EncodedRows, label_targets
from transfer_cli.data.labelled import Example
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.tasks.base import Direction
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.cloze.pattern import ClozePattern, PatternEncoder


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
        """See `Task`."""
        return self.lines, self.before_text

    @classmethod
    def sample(cls) -> tuple["ClozeTask", Sequence[Example]]:
        """See `Task`."""
        found, examples = ClassificationTask.sample()
        words = {"number": ("How",), "place": ("Where",)}
        return cls(found.labels, pattern="{text} {mask}", words=words), examples

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
        found = list(encoder.rows(examples, length, self.truncate))
        targets = label_targets(examples)
        if encoder.has_gap:
            targets["gap"] = [gap for _, gap, _ in found]
        return EncodedRows(
            examples,
            [row for row, _, _ in found],
            tokenizer.pad,
            targets=targets,
            is_cut=[is_cut for _, _, is_cut in found],
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
