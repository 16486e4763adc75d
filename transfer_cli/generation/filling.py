"""What a masked language model would put into the gaps of a text.

Legend: T positions, N gaps, V vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.generation.layout import Layout
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.language_model import HEAD

MASKS = ("[MASK]", "<mask>")
"""What people write for a gap, whatever the tokenizer calls it."""

Around = Literal["lines", "sentence"]

_CONTINUES = "##"
"""What opens a piece that is not the first of its word, in vocabularies of word pieces."""


@dataclass(frozen=True)
class Candidate:
    """A token for a gap.

    Args:
        token: What the vocabulary calls it.
        text: What it looks like, without the space before it.
        probability: Of all tokens, special ones too.
    """

    token: str
    text: str
    probability: float


def parts(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return what stands before, between and after the gaps of a text."""
    names = {*MASKS, *tokenizer.pieces([tokenizer.mask])}
    return re.split("|".join(map(re.escape, sorted(names))), text)


def with_gaps(text: str, tokenizer: Tokenizer, around: Around) -> list[int]:
    """Return the tokens of a text with mask tokens in its gaps, laid out as the model knows it.

    Args:
        text: See `parts`.
        tokenizer: The run's.
        around: lines: a `sep` in front and one after each line, as in text to pretrain on
            (`data.corpus`); sentence: `cls` in front and `sep` behind, as BERT's texts and labelled
            ones have it (`data.encoded_task`).
    """
    if around == "sentence":
        return [tokenizer.cls, *_encoded(text, tokenizer), tokenizer.sep]
    lines = [[*_encoded(line, tokenizer), tokenizer.sep] for line in text.split("\n")]
    return [tokenizer.sep, *(token for line in lines for token in line)]


def fill(
    model: TransferModel, tokenizer: Tokenizer, tokens: Sequence[int], top: int
) -> list[list[Candidate]]:
    """Return the likeliest tokens for each gap, the best first; special tokens are none of them.

    Each gap is filled as if the others stayed open: what fits several gaps at once is not searched.

    Args:
        model: In evaluation mode.
        tokenizer: The run's.
        tokens: See `with_gaps`.
        top: How many candidates a gap gets.
    """
    device = model.backbone.token_embedding.weight.device
    tokens_1T = torch.tensor([tokens], device=device)

    def read(model: TransferModel) -> torch.Tensor:
        mask_1T = torch.ones_like(tokens_1T, dtype=torch.bool)
        top_1TD = model.readout(model.backbone(tokens_1T, mask_1T, padded=False))
        gaps_ND = top_1TD[tokens_1T == tokenizer.mask]
        logits_NV: torch.Tensor = model.heads[HEAD](gaps_ND, model.backbone.token_embedding.weight)
        return logits_NV

    shares_NV = model(read).double().cpu().softmax(1)
    allowed_V = Layout(tokenizer).allowed()
    allowed_V[tokenizer.sep] = False
    ranked_NV = shares_NV.masked_fill(~allowed_V, -1)
    best = ranked_NV.topk(min(top, int(allowed_V.sum())), dim=1)
    return [
        [_candidate(tokenizer, *pair) for pair in zip(found, shares, strict=True)]
        for found, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def filled(text: str, tokenizer: Tokenizer, words: Sequence[Candidate]) -> str:
    """Return the text with a candidate in each gap."""
    before, *after = parts(text, tokenizer)
    for word, piece in zip(words, after, strict=True):
        shown = word.text.removeprefix(_CONTINUES) or word.text
        before += shown + piece
    return before


def _candidate(tokenizer: Tokenizer, token: int, probability: float) -> Candidate:
    return Candidate(tokenizer.pieces([token])[0], tokenizer.decode([token]).strip(), probability)


def _encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    before, *after = parts(text, tokenizer)
    tokens = tokenizer.encode(_before_gap(before) if after else before)
    for number, piece in enumerate(after, 1):
        is_last = number == len(after)
        row = _encoded_after_gap(piece if is_last else _before_gap(piece), tokenizer)
        tokens += [tokenizer.mask, *row]
    return tokens


def _before_gap(piece: str) -> str:
    # Where spaces belong to words, this one belongs to the word that is missing.
    return piece.removesuffix(" ")


def _encoded_after_gap(piece: str, tokenizer: Tokenizer) -> list[int]:
    """Encode what follows a gap: a comma right after it is one right after a word."""
    if not piece or piece[0].isspace() or piece[0].isalnum():
        return tokenizer.encode(piece)
    word = tokenizer.encode("a")
    tokens = tokenizer.encode(f"a{piece}")
    is_apart = tokens[: len(word)] == word
    return tokens[len(word) :] if is_apart else tokenizer.encode(piece)
