"""Fills gaps in a text with a masked language model.

Legend: T positions, N gaps, V vocabulary.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import NotFiniteError
from transfer_cli.generation.prompt_layout import Around, PromptLayout
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.language_model import token_logits

MASKS = ("[MASK]", "<mask>")
"""Names of the mask token that every tokenizer accepts here."""

_CONTINUES = "##"
"""WordPiece's prefix of a piece that continues a word."""


@dataclass(frozen=True)
class Candidate:
    """A token for a gap.

    Args:
        token: Its name in the vocabulary.
        text: Its text, without a leading space.
        probability: Among all tokens, special tokens included.
    """

    token: str
    text: str
    probability: float


def split_at_gaps(text: str, tokenizer: Tokenizer) -> list[str]:
    """Return the pieces of a text before, between and after its gaps."""
    names = {*MASKS, *tokenizer.pieces([tokenizer.mask])}
    return re.split("|".join(map(re.escape, sorted(names))), text)


def encode_with_gaps(text: str, tokenizer: Tokenizer, around: Around) -> list[int]:
    """Return the tokens of a text with mask tokens in its gaps, laid out as in training.

    Args:
        around: lines: `sep` before the first and after each line, as in pretraining text
            (`data.corpus`); sentence: `cls` before and `sep` after the text, as in labelled texts
            (`data.encoded_task`) and in BERT; text: `sep` on both sides, as a document of running
            text whose lines do not end by it.
    """
    if around == "sentence":
        return [tokenizer.cls, *_encoded(text, tokenizer), tokenizer.sep]
    texts = text.split("\n") if around == "lines" else [text]
    lines = [[*_encoded(line, tokenizer), tokenizer.sep] for line in texts]
    return [tokenizer.sep, *(token for line in lines for token in line)]


def fill_gaps(
    model: TransferModel, tokenizer: Tokenizer, tokens: Sequence[int], top: int
) -> list[list[Candidate]]:
    """Return the most likely tokens for each gap, best first, without special tokens.

    Each gap is filled with the others open: there is no search over combinations.
    """
    device = model.backbone.token_embedding.weight.device
    tokens_1T = torch.tensor([tokens], device=device)

    def read(model: TransferModel) -> torch.Tensor:
        mask_1T = torch.ones_like(tokens_1T, dtype=torch.bool)
        hidden_1TD = model.readout(model.backbone(tokens_1T, mask_1T, padded=False))
        return token_logits(model, hidden_1TD[tokens_1T == tokenizer.mask])

    probabilities_NV = model(read).double().cpu().softmax(1)
    if not probabilities_NV.isfinite().all():
        raise NotFiniteError("run: its prediction")
    allowed_V = PromptLayout(tokenizer).allowed_tokens()
    allowed_V[tokenizer.sep] = False
    ranked_NV = probabilities_NV.masked_fill(~allowed_V, -1)
    best = ranked_NV.topk(min(top, int(allowed_V.sum())), dim=1)
    return [
        [
            Candidate(tokenizer.pieces([token])[0], tokenizer.decode([token]).strip(), share)
            for token, share in zip(tokens_here, shares, strict=True)
        ]
        for tokens_here, shares in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def insert_candidates(text: str, tokenizer: Tokenizer, words: Sequence[Candidate]) -> str:
    """Return the text with a candidate in each gap."""
    before, *after = split_at_gaps(text, tokenizer)
    for word, piece in zip(words, after, strict=True):
        shown = word.text.removeprefix(_CONTINUES) or word.text
        before += shown + piece
    return before


def _encoded(text: str, tokenizer: Tokenizer) -> list[int]:
    *before, last = split_at_gaps(text, tokenizer)
    # In vocabularies where spaces belong to words, the space before a gap belongs to its word.
    first, *after = [*(piece.removesuffix(" ") for piece in before), last]
    tokens = tokenizer.encode(first)
    for piece in after:
        tokens += [tokenizer.mask, *_encoded_after_gap(piece, tokenizer)]
    return tokens


def _encoded_after_gap(piece: str, tokenizer: Tokenizer) -> list[int]:
    """Encode the text after a gap as after a word, so that a comma has no space before it."""
    if not piece or piece[0].isspace() or piece[0].isalnum():
        return tokenizer.encode(piece)
    word = tokenizer.encode("a")
    tokens = tokenizer.encode(f"a{piece}")
    is_apart = tokens[: len(word)] == word
    return tokens[len(word) :] if is_apart else tokenizer.encode(piece)
