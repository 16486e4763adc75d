"""Texts whose answers are explained: which, their words, the number that stands for an answer.

Legend: K versions of a text, T positions, W words, C outputs, E size of an embedding, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from transfer_cli.analysis.analysis import Subject, batch_of_tokens, check_task, evenly_spread
from transfer_cli.batch import Batch, to_device
from transfer_cli.data.labelled import INPUT
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import ConfigError, one_of
from transfer_cli.model.probes import replace_embeddings
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.language_model import HEAD
from transfer_cli.objectives.sequence import SequenceObjective
from transfer_cli.tasks.choice.task import MultipleChoice
from transfer_cli.tasks.multilabel import Multilabel
from transfer_cli.tasks.regression import Regression

Removal = Literal["mask", "delete"]
Baseline = Literal["mask", "pad", "zero"]


class Word(NamedTuple):
    """A word as it is shown, and the positions of its pieces."""

    shown: str
    places: tuple[int, ...]


class TextRow(NamedTuple):
    """A text as the model reads it.

    Args:
        tokens: `[T]`, without padding.
        segment: The number of the text that a token belongs to, `[T]`; None: there is one text.
        gap: The position of the gap of a cloze; None: there is none, or it is behind the text.
    """

    tokens: Tensor
    segment: Tensor | None = None
    gap: int | None = None


@dataclass(frozen=True)
class ExplainedText:
    """A text and what is explained.

    Args:
        example: The number of its example, from 0.
        words: All but special tokens, which stay where others are taken away.
        output: The number of the output that is explained.
        label: The right one; None: it is not known.
    """

    example: int
    row: TextRow
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
        texts: What they were made of. Where the tokens are no beginning of theirs, words are shown
            as the tokenizer decodes them, unknown ones by its name for them.
    """
    special = {tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.begin}
    words: list[list[int]] = []
    for place, token in enumerate(tokens):
        if token in special:
            continue
        continues_word = place > 0 and tokens[place - 1] not in special
        if continues_word and not tokenizer.starts_word[token]:
            words[-1].append(place)
        else:
            words.append([place])
    places = [place for word in words for place in word]
    pieces = [
        (token, text, *offset)
        for text, (ids, offsets) in zip(texts, tokenizer.encode_with_offsets(texts), strict=True)
        for token, offset in zip(ids, offsets, strict=True)
    ][: len(places)]
    tokens_match = [token for token, *_ in pieces] == [tokens[place] for place in places]
    piece_at = dict(zip(places, pieces, strict=True)) if tokens_match else {}

    def shown(word: Sequence[int]) -> str:
        if piece_at:
            _, text, start, _ = piece_at[word[0]]
            if written := text[start : piece_at[word[-1]][-1]]:
                return written
        ids = [tokens[place] for place in word]
        return tokenizer.decode(ids).strip() or "".join(tokenizer.pieces(ids))

    return tuple(Word(shown(word), tuple(word)) for word in words)


class Explainer:
    """Asks a model about a text whose words are taken away, or whose embeddings are replaced.

    It is asked in float32, since differences are small.

    Args:
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
        # Of text to text and of conversations what is written follows another layout of the text.
        is_plain = isinstance(objective, CausalLM) and objective.direction == "causal"
        if not isinstance(objective, SequenceObjective) and (objective.task or not is_plain):
            what = objective.task or type(objective).__name__
            raise ConfigError(
                f"run: {subject.opened.path} was trained for {what}, and attributions explain one "
                "number for a text; they take runs of classification, multilabel, regression, "
                "choice and cloze, and causal language models"
            )
        # A text is one of several choices then, of which it explains the one that is taken.
        self.is_choice = isinstance(objective, MultipleChoice)
        knows_mask = has_mask and not self._model.backbone.causal
        self.removal: Removal = removal or ("mask" if knows_mask else "delete")
        self.baseline: Baseline = baseline or ("mask" if knows_mask else "pad")
        if "mask" in (removal, baseline) and not has_mask:
            key = "removal" if removal == "mask" else "baseline"
            raise ConfigError(
                f"analysis.attributions.{key}: this tokenizer has no mask token of its own; take "
                f"{'delete' if key == 'removal' else 'pad'}"
            )

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

    def confidence(self, outputs_KC: Tensor) -> Tensor:
        """Return outputs as faithfulness is measured in: probabilities where there are some."""
        objective = self._objective
        if isinstance(objective, CausalLM):
            return outputs_KC.exp()
        if isinstance(objective, Multilabel):
            return objective.calibrated(outputs_KC).sigmoid()
        if isinstance(objective, Classification):
            return objective.calibrated(outputs_KC).softmax(1)
        return outputs_KC

    def score_without(self, text: ExplainedText, sets: Sequence[Set[int]]) -> tuple[Tensor, Tensor]:
        """Return the explained output and its `confidence` without each set of words, `[K]`."""
        scores, shares = [], []
        for begin in range(0, len(sets), self._subject.batch):
            removed = sets[begin : begin + self._subject.batch]
            rows = [self._without_words(text, words) for words in removed]
            with torch.inference_mode():
                outputs_KC = self.outputs(self.batch_of(rows))
                shares.append(self.confidence(outputs_KC)[:, text.output].double().cpu())
                scores.append(outputs_KC[:, text.output].double().cpu())
        return torch.cat(scores), torch.cat(shares)

    def embeddings(self, text: ExplainedText) -> tuple[Tensor, Tensor]:
        """Return the embeddings of a text's tokens and of the baseline, `[T, E]` each.

        They differ at words alone.
        """
        backbone, tokenizer = self._model.backbone, self._subject.tokenizer
        with torch.no_grad():
            text_TE = backbone.embed_tokens(text.row.tokens.to(self._subject.precision.device))
            baseline_TE = text_TE.clone()
            places = [place for word in text.words for place in word.places]
            if self.baseline == "zero":
                baseline_TE[places] = 0
            else:
                token = tokenizer.mask if self.baseline == "mask" else tokenizer.pad
                baseline_TE[places] = backbone.embed_tokens(
                    torch.tensor([token], device=text_TE.device)
                )
        return text_TE, baseline_TE

    def embedding_function(self, text: ExplainedText) -> Callable[[Tensor], Tensor]:
        """Return the explained output as a function of the embeddings of the text's tokens."""

        def function(embeddings_KTE: Tensor) -> Tensor:
            batch = self.batch_of([text.row] * len(embeddings_KTE))
            with replace_embeddings(self._model.backbone, embeddings_KTE):
                return self.outputs(batch)[:, text.output]

        return function

    def _without_words(self, text: ExplainedText, removed: Set[int]) -> TextRow:
        places = [place for number in removed for place in text.words[number].places]
        row = text.row
        if self.removal == "mask":
            tokens = row.tokens.clone()
            tokens[places] = self._subject.tokenizer.mask
            return row._replace(tokens=tokens)
        kept = torch.ones(len(row.tokens), dtype=torch.bool)
        kept[places] = False
        gap = None if row.gap is None else int(kept[: row.gap].sum())
        return TextRow(row.tokens[kept], None if row.segment is None else row.segment[kept], gap)

    def batch_of(self, rows: Sequence[TextRow]) -> Batch:
        """Return versions of a text as a batch on the device, never packed."""
        tokens, segments, gaps = zip(*rows, strict=True)
        batch = batch_of_tokens(tokens, self._subject.tokenizer.pad)
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


# --- which texts are explained -----------------------------------------------------------------

FEWEST_WORDS = 2
"""Of a text: those with fewer have nothing to compare."""


class ChosenTexts:
    """The texts of a split, or of a file, as a model reads and answers them.

    Args:
        label: The label whose score is explained; None: the one that the model says.
    """

    def __init__(self, subject: Subject, explainer: Explainer, label: str | None = None) -> None:
        self._subject, self._explainer = subject, explainer
        self._objective = subject.objective
        self._is_language_model = isinstance(self._objective, CausalLM)
        check_task(subject)
        self._texts = subject.material.texts(subject.split)
        self._label: int | None = None
        if label is not None:
            key, labels = "analysis.attributions.label", self._objective.info.labels
            if not labels or self._is_language_model:
                raise ConfigError(f"{key}: this model has none to choose from; leave it out")
            one_of(key, label, labels)
            self._label = labels.index(label)

    def __len__(self) -> int:
        return len(self._texts)

    def evenly_spread(self, most: int) -> Iterator[ExplainedText]:
        """Yield `most` texts, evenly spread, or all; those of a single word are left out."""
        return self._explained(evenly_spread(len(self._texts), most).tolist())

    def wrong_answers(self, most: int) -> Iterator[ExplainedText]:
        """Return the first `most` texts that are answered wrongly."""
        key = "analysis.attributions.only_wrong"
        if self._is_language_model or isinstance(self._objective, Regression):
            raise ConfigError(
                f"{key}: what this model says is neither right nor wrong; leave it out"
            )
        if tuple(self._subject.material.names) == (INPUT,):
            raise ConfigError(
                f"{key}: texts of a file have no right answers; leave it out, or name labelled "
                "data (data=)"
            )
        every = self._explained(range(len(self._texts)))
        return islice((text for text in every if text.prediction != text.label), most)

    def _explained(self, rows: Sequence[int]) -> Iterator[ExplainedText]:
        explain = self._explain_next_token if self._is_language_model else self._explain_answer
        for text in map(explain, rows):
            if text is not None and len(text.words) >= FEWEST_WORDS:
                yield text

    def _explain_next_token(self, row: int) -> ExplainedText | None:
        """Return a text and the token that a causal language model would go on with."""
        opened, tokenizer = self._subject.opened, self._subject.tokenizer
        tokens = opened.start.prompt_layout.encode(self._texts[row])[-opened.length :]
        if not tokens:
            return None
        row_read = TextRow(torch.tensor(tokens))
        with torch.inference_mode():
            token = int(self._explainer.outputs(self._explainer.batch_of([row_read])).argmax())
        answer = repr(tokenizer.decode([token]) or tokenizer.pieces([token])[0])  # may be a space
        words = words_of(tokens, tokenizer, [self._texts[row]])
        return ExplainedText(row, row_read, words, token, answer, answer, label=None)

    def _explain_answer(self, row: int) -> ExplainedText:
        subject, objective = self._subject, self._objective
        batch = subject.split.data.batch(np.array([row]))
        view = to_device({**batch, "padded": ~batch["mask"].all()}, subject.precision.device)
        with torch.inference_mode():
            outputs_C = self._explainer.outputs(view)[0].cpu()
            predictions = objective.predictions(subject.model, view, Encoding(subject.model, view))
        output = int(outputs_C.argmax()) if self._label is None else self._label
        task: Any = subject.material.task
        values = {name: tensor[0].cpu().tolist() for name, tensor in predictions.items()}
        answer = task.answer(subject.split.encoded, row, {row: values})
        example = subject.split.encoded.examples[row]
        if self._explainer.is_choice:
            # The choice alone is explained; what is said of the others stays as it is.
            prediction = explained = str(example.choices[output])
            batch = {name: tensor[:, output] for name, tensor in batch.items() if tensor.dim() > 2}
            output = 0
        else:
            labels = objective.info.labels
            # Also where the model is too unsure to give it.
            said = task.said(answer)
            prediction = said[0] if said else str(task.cells(answer)[0])
            explained = labels[output] if labels else "the value"
        mask_T = batch["mask"][0]
        row_read = TextRow(
            batch["tokens"][0][mask_T],
            batch["segment"][0][mask_T] if "segment" in batch else None,
            int(batch["gap"][0]) if "gap" in batch else None,
        )
        words = words_of(row_read.tokens.tolist(), subject.tokenizer, task.texts(example))
        given = task.labels_of(example)
        is_known = given or getattr(example, "label", None) is not None  # none at all may be right
        label = "|".join(given) if is_known else None
        return ExplainedText(row, row_read, words, output, explained, prediction, label)
