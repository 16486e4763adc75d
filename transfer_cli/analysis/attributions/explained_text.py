"""Texts whose answers are explained: their words, and the number that stands for an answer.

Legend: K versions of a text, T positions, W words, C outputs, E size of an embedding, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transfer_cli.analysis.analysis import Subject
from transfer_cli.batch import Batch, to_device
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError
from transfer_cli.model.probes import replaced_embeddings
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.choice.objective import MultipleChoice
from transfer_cli.tasks.multilabel.objective import Multilabel

Removal = Literal["mask", "delete"]
Baseline = Literal["mask", "pad", "zero"]


class Word(NamedTuple):
    """A word as it is shown, and the positions of its pieces."""

    shown: str
    places: tuple[int, ...]


@dataclass(frozen=True)
class ExplainedText:
    """A text as the model reads it, and what is explained.

    Args:
        example: The number of its example, from 0.
        tokens: `[T]`, without padding.
        segment: The number of the text that a token belongs to, `[T]`; None: there is one text.
        gap: The position of the gap of a cloze; None: there is none, or it is behind the text.
        words: All but special tokens, which stay where others are taken away.
        output: The number of the output that is explained.
        explained: What it says.
        prediction: The model's answer.
        label: The right one; None: it is not known.
    """

    example: int
    tokens: Tensor
    segment: Tensor | None
    gap: int | None
    words: tuple[Word, ...]
    output: int
    explained: str
    prediction: str
    label: str | None


def words_of(
    tokens: Sequence[int], tokenizer: Tokenizer, texts: Sequence[str] = ()
) -> tuple[Word, ...]:
    """Return the words of a row of tokens; pieces belong to the word that they go on with.

    Args:
        tokens: Without padding.
        tokenizer: The model's.
        texts: What they were made of. Where the tokens are no beginning of theirs, words are shown
            as the tokenizer decodes them, unknown ones by its name for them.
    """
    apart = {tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.begin}
    found: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in apart:
            continue
        goes_on = place > 0 and tokens[place - 1] not in apart
        if goes_on and not tokenizer.starts_word[token]:
            found[-1].append(place)
        else:
            found.append([place])
    spans = _spans([place for own in found for place in own], tokens, tokenizer, texts)
    return tuple(
        Word(_written(own, spans) or _decoded([tokens[at] for at in own], tokenizer), tuple(own))
        for own in found
    )


class _Span(NamedTuple):
    """Where a token stands in a text."""

    text: str
    start: int
    end: int


def _spans(
    places: Sequence[int], tokens: Sequence[int], tokenizer: Tokenizer, texts: Sequence[str]
) -> dict[int, _Span]:
    """Return where the tokens at some places stand in the texts; nothing if they do not."""
    known = [
        (token, _Span(text, *offset))
        for text, (ids, offsets) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True)
        for token, offset in zip(ids, offsets, strict=True)
    ][: len(places)]
    if [token for token, _ in known] != [tokens[place] for place in places]:
        return {}
    return {place: span for place, (_, span) in zip(places, known, strict=True)}


def _written(places: Sequence[int], spans: Mapping[int, _Span]) -> str:
    if not spans:
        return ""
    first, last = spans[places[0]], spans[places[-1]]
    return first.text[first.start : last.end]


def _decoded(pieces: Sequence[int], tokenizer: Tokenizer) -> str:
    text = tokenizer.decode(pieces).strip()
    return text or "".join(tokenizer.pieces(pieces))


class Explainer:
    """Asks a model about a text whose words are taken away, or whose embeddings are replaced.

    It is asked in float32, since differences are small.

    Args:
        subject: The model.
        removal: What becomes of a word that is taken away: its pieces become the mask token, or
            are deleted. None: the first, unless the model never learnt that token: a causal one,
            or one whose tokenizer has none.
        baseline: The embedding that paths begin at. None: that of the mask token likewise, else
            that of padding. At 0 the norm of a model that adds no positions is not continuous.
    """

    def __init__(
        self, subject: Subject, removal: Removal | None = None, baseline: Baseline | None = None
    ) -> None:
        self._subject, self._model, self._objective = subject, subject.model, subject.objective
        objective, has_mask = self._objective, subject.tokenizer.has_mask
        if not isinstance(objective, SequenceObjective | CausalLM):
            what = objective.task or type(objective).__name__
            raise ConfigError(
                f"run: {subject.opened.path} was trained for {what}, and attributions explain one "
                "number for a text; they take runs of classification, multilabel, regression, "
                "choice and cloze, and causal language models"
            )
        learnt = has_mask and not self._model.backbone.causal
        self.removal: Removal = removal or ("mask" if learnt else "delete")
        self.baseline: Baseline = baseline or ("mask" if learnt else "pad")
        if "mask" in (removal, baseline) and not has_mask:
            key = "removal" if removal == "mask" else "baseline"
            raise ConfigError(
                f"{key}: this tokenizer has no mask token of its own; take "
                f"{'delete' if key == 'removal' else 'pad'}"
            )

    @property
    def is_choice(self) -> bool:
        """Whether a text is one of several choices, of which it explains the one that is taken."""
        return isinstance(self._objective, MultipleChoice)

    def outputs(self, batch: Batch) -> Tensor:
        """Return what the model says of texts, `[K, C]`; of a language model log-probabilities.

        These are of the token that it would go on with, `[K, V]`.
        """
        model, objective = self._model, self._objective
        encoded = Encoding(model, batch)
        if isinstance(objective, SequenceObjective):
            return objective.scores(model, batch, encoded)
        top_KE = encoded.pooled("cls_last")
        logits_KV = model.heads[HEAD](top_KE, model.backbone.token_embedding.weight)
        # Published models may have more outputs than their tokenizer has tokens.
        logs_KV: Tensor = logits_KV[:, : self._subject.tokenizer.size].float().log_softmax(-1)
        return logs_KV

    def sureness(self, outputs_KC: Tensor) -> Tensor:
        """Return outputs as faithfulness is measured in: probabilities where there are some."""
        if isinstance(self._objective, CausalLM):
            return outputs_KC.exp()
        if isinstance(self._objective, Multilabel):
            return outputs_KC.sigmoid()
        return outputs_KC.softmax(1) if isinstance(self._objective, Classification) else outputs_KC

    def without(self, text: ExplainedText, removed: Sequence[Set[int]]) -> tuple[Tensor, Tensor]:
        """Return the explained output and its `sureness` for versions of a text, `[K]` each.

        Args:
            text: The text.
            removed: The numbers of the words that each version lacks.
        """
        scores, shares = [], []
        for begin in range(0, len(removed), self._subject.batch):
            rows = [
                self._version(text, each) for each in removed[begin : begin + self._subject.batch]
            ]
            with torch.inference_mode():
                outputs_KC = self.outputs(self._batch(rows))
                shares.append(self.sureness(outputs_KC)[:, text.output].double().cpu())
                scores.append(outputs_KC[:, text.output].double().cpu())
        return torch.cat(scores), torch.cat(shares)

    def embeddings(self, text: ExplainedText) -> tuple[Tensor, Tensor]:
        """Return the embeddings of a text's tokens and of the baseline, `[T, E]` each.

        They differ at words alone.
        """
        backbone, tokenizer = self._model.backbone, self._subject.tokenizer
        with torch.no_grad():
            text_TE = backbone.embeddings_of(text.tokens.to(self._subject.precision.device))
            baseline_TE = text_TE.clone()
            places = [place for word in text.words for place in word.places]
            if self.baseline == "zero":
                baseline_TE[places] = 0
            else:
                token = tokenizer.mask if self.baseline == "mask" else tokenizer.pad
                baseline_TE[places] = backbone.embeddings_of(
                    torch.tensor([token], device=text_TE.device)
                )
        return text_TE, baseline_TE

    def of_embeddings(self, text: ExplainedText) -> Callable[[Tensor], Tensor]:
        """Return the explained output as a function of the embeddings of the text's tokens."""

        def function(given_KTE: Tensor) -> Tensor:
            batch = self._batch([(text.tokens, text.segment, text.gap)] * len(given_KTE))
            with replaced_embeddings(self._model.backbone, given_KTE):
                return self.outputs(batch)[:, text.output]

        return function

    def _version(
        self, text: ExplainedText, removed: Set[int]
    ) -> tuple[Tensor, Tensor | None, int | None]:
        places = [place for number in removed for place in text.words[number].places]
        if self.removal == "mask":
            tokens = text.tokens.clone()
            tokens[places] = self._subject.tokenizer.mask
            return tokens, text.segment, text.gap
        kept = torch.ones(len(text.tokens), dtype=torch.bool)
        kept[places] = False
        gap = None if text.gap is None else int(kept[: text.gap].sum())
        return text.tokens[kept], None if text.segment is None else text.segment[kept], gap

    def _batch(self, rows: Sequence[tuple[Tensor, Tensor | None, int | None]]) -> Batch:
        """Return versions of a text as a batch on the device, never packed."""
        tokens, segments, gaps = zip(*rows, strict=True)
        lengths_K = torch.tensor([len(each) for each in tokens])
        pad = self._subject.tokenizer.pad
        batch = {
            "tokens": pad_sequence(list(tokens), batch_first=True, padding_value=pad),
            "mask": torch.arange(int(lengths_K.max())) < lengths_K[:, None],
            "index": torch.arange(len(rows)),
        }
        batch["padded"] = ~batch["mask"].all()
        if segments[0] is not None:
            batch["segment"] = pad_sequence(list(segments), batch_first=True)
        if gaps[0] is not None:
            batch["gap"] = torch.tensor(gaps)
        if self.is_choice:
            batch |= {
                key: batch[key][:, None] for key in ("tokens", "mask", "segment") if key in batch
            }
        return to_device(batch, self._subject.precision.device)
