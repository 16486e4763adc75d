"""Ways to get a run's tokenizer: trained on its text, read from a file, or that of its model.

Training is deterministic. The library's own is not: it numbers letters in the order of a hash table
and breaks ties between merges by number. We count the pieces ourselves and fix the letters first.
"""

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from transfer_cli.data.chat_template import CHATML, CHATML_TOKENS
from transfer_cli.data.tokenizer import SENTINEL, SPECIALS, UNKNOWN, WORD_MARKS, Tokenizer
from transfer_cli.data.tokenizer_file import MAX_VOCABULARY, load_tokenizer
from transfer_cli.errors import DataError, at_least
from transfer_cli.progress import progress

# WikiText writes 5,000 and well-known as `5 @,@ 000` and `well @-@ known`.
_WIKITEXT_OR_SYMBOL = r"@[-,.]@|[\p{P}\p{S}]"

# BERT's limit. Rarer letters make their word unknown.
_MAX_LETTERS = 1000

# Larger counts are scaled down to this total: which pair is more frequent hardly changes, and
# training on a text of any size takes seconds.
_MAX_TRAINING_WORDS = 20_000_000

# Distinct words kept while counting, so that memory stays bounded.
_MAX_DISTINCT_WORDS = 4_000_000

Lines = Callable[[], Iterator[str]]

log = logging.getLogger(__name__)

FEWEST_TOKENS = 1000
"""The size of a vocabulary below which a smaller one saves nothing that counts."""

AUTO = "auto"
"""The size of a vocabulary that its text and its model decide."""


def is_auto(size: object) -> bool:
    """Return whether a text is to decide the size: `auto`, or `auto:4096` for at most so many."""
    return isinstance(size, str) and size.partition(":")[0] == AUTO


BYTES_A_TOKEN = 125
"""Bytes of text that a vocabulary should have for each of its tokens, see `vocabulary_size`."""


def vocabulary_size(num_bytes: int, room: int, most: int) -> int:
    """Return the size of a vocabulary that suits a text and a model.

    With a token for every 125 bytes of English, half of the pieces of words occur 10 times or more;
    with three times as many half occur once. What this is worth is in docs/pretraining.md.

    Args:
        num_bytes: Of the training text, in UTF-8.
        room: The largest size that suits the model.
        most: The largest size at all.
    """
    return max(FEWEST_TOKENS, min(num_bytes // BYTES_A_TOKEN, room, most))


class TokenizerRecipe(ABC):
    """A way to get a run's tokenizer."""

    @abstractmethod
    def key(self) -> str:
        """Describe everything but the text that changes the tokenizer."""

    @abstractmethod
    def make(self, lines: Lines) -> Tokenizer:
        """Return the tokenizer, trained on `lines` if there is something to train."""


@dataclass(frozen=True)
class WordPiece(TokenizerRecipe):
    """Pieces of words, with `##` before all but a word's first (Devlin et al. 2019).

    Punctuation marks and symbols are single pieces, except for WikiText's `@-@`, `@,@` and `@.@`.

    Args:
        size: Size of the vocabulary; smaller when the text does not hold as many pieces.
        lowercase: Drop case and accents.
        sentinels: Further tokens that stand for hidden parts of a text, see `SENTINEL`.
    """

    size: int = 28_996
    lowercase: bool = False
    sentinels: int = 0

    def __post_init__(self) -> None:
        _check_size(self.size, len(SPECIALS) + 2, "the special tokens and a letter")
        at_least("sentinels", self.sentinels, 0)

    def key(self) -> str:
        key = f"wordpiece 1 size={self.size} lowercase={self.lowercase}"
        return key + _sentinels_key(self.sentinels)

    def make(self, lines: Lines) -> Tokenizer:
        normalizer = normalizers.BertNormalizer(lowercase=self.lowercase)
        symbols = pre_tokenizers.Split(tokenizers.Regex(_WIKITEXT_OR_SYMBOL), behavior="isolated")
        splitter = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), symbols])
        counts = _count_pieces(lines(), splitter, normalizer)
        letters = _letters(counts, min(_MAX_LETTERS, (self.size - len(SPECIALS)) // 2))
        later = {letter for piece in counts for letter in piece[1:]}
        trainer = trainers.WordPieceTrainer(
            vocab_size=self.size,
            special_tokens=[*SPECIALS, *(f"##{letter}" for letter in letters if letter in later)],
            initial_alphabet=letters,
            limit_alphabet=len(letters),
            show_progress=False,
        )
        trained = _train(tokenizers.Tokenizer(models.WordPiece(unk_token=UNKNOWN)), trainer, counts)
        # A new tokenizer: in the trained one, the letters given first are special.
        model = models.WordPiece(trained.get_vocab(), unk_token=UNKNOWN)
        backend = tokenizers.Tokenizer(model)
        backend.normalizer = normalizer
        backend.pre_tokenizer = splitter
        # Tokenised text has spaces before its commas: leave them.
        backend.decoder = decoders.WordPiece(prefix="##", cleanup=False)
        return Tokenizer(backend).with_added(sentinel_names(self.sentinels))


@dataclass(frozen=True)
class BytePairs(TokenizerRecipe):
    """Byte-level byte-pair encoding (Radford et al. 2019), which knows every text.

    Every word includes the space before it, also the first word of a text, so that a word is the
    same token everywhere. `<unk>` counts as a word with a space on each side.

    Args:
        size: Size of the vocabulary; smaller when the text does not hold as many pieces.
        sentinels: Further tokens that stand for hidden parts of a text, see `SENTINEL`.
    """

    size: int = 32_768
    sentinels: int = 0

    def __post_init__(self) -> None:
        _check_size(self.size, len(SPECIALS) + 256, "the special tokens and every byte")
        at_least("sentinels", self.sentinels, 0)

    def key(self) -> str:
        return f"bytepairs 1 size={self.size}" + _sentinels_key(self.sentinels)

    def make(self, lines: Lines) -> Tokenizer:
        splitter = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(
            vocab_size=self.size,
            special_tokens=list(SPECIALS),
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        counts = _count_pieces(lines(), splitter)
        backend = _train(tokenizers.Tokenizer(models.BPE()), trainer, counts)
        backend.pre_tokenizer = splitter
        backend.decoder = decoders.Sequence(
            [decoders.Replace(UNKNOWN, f"{WORD_MARKS[0]}{UNKNOWN}"), decoders.ByteLevel()]
        )
        return Tokenizer(backend).with_added(sentinel_names(self.sentinels))


@dataclass(frozen=True)
class SizedByText(TokenizerRecipe):
    """A tokenizer that is trained, with the size that suits its text and a model.

    Args:
        recipe: The same with the largest size.
        room: The largest size that suits the model.
    """

    recipe: WordPiece | BytePairs
    room: int

    def key(self) -> str:
        most = min(self.room, self.recipe.size)
        return f"{self.recipe.key()}, or {FEWEST_TOKENS} to {most}, one for {BYTES_A_TOKEN} bytes"

    def make(self, lines: Lines) -> Tokenizer:
        most = max(FEWEST_TOKENS, min(self.room, self.recipe.size))
        num_bytes = 0
        for line in lines():
            num_bytes += len(line.encode("utf-8", "replace")) + 1
            if num_bytes >= most * BYTES_A_TOKEN:
                break
        size = vocabulary_size(num_bytes, self.room, self.recipe.size)
        return replace(self.recipe, size=size).make(lines)


@dataclass(frozen=True)
class FromFile(TokenizerRecipe):
    """A `tokenizer.json` that there is, with a padding, unknown, `cls`, `sep` and mask token."""

    path: str

    def key(self) -> str:
        """Describe the file by its content, so that an edited file is another tokenizer."""
        whole = self._load()
        return f"file {whole.hash} {whole.begin, whole.before_text, whole.separators}"

    def make(self, lines: Lines) -> Tokenizer:
        return self._load()

    def _load(self) -> Tokenizer:
        return load_tokenizer(Path(self.path).expanduser())


@dataclass(frozen=True)
class Inherited(TokenizerRecipe):
    """The tokenizer of the model that a run starts from.

    Args:
        add: Tokens to add to it; no text is read as one.
        sentinels: How many tokens to add that stand for hidden parts of a text, see `SENTINEL`.
        chat_template: How conversations become texts: a file, or `chatml`, whose tokens are added
            where they are not there; None: as the model says.
    """

    add: tuple[str, ...] = ()
    sentinels: int = 0
    chat_template: str | None = None

    def __post_init__(self) -> None:
        at_least("sentinels", self.sentinels, 0)

    def grown(self, tokenizer: Tokenizer) -> Tokenizer:
        """Return the tokenizer of a model with these tokens."""
        marks = CHATML_TOKENS if self.chat_template == CHATML else ()
        missing = (name for name in marks if tokenizer.token(name) is None)
        return tokenizer.with_added([*self.add, *sentinel_names(self.sentinels), *missing])

    def key(self) -> str:
        raise DataError(_NO_MODEL)

    def make(self, lines: Lines) -> Tokenizer:
        raise DataError(_NO_MODEL)


_NO_MODEL = (
    "tokenizer=inherited is that of init_from=RUN, and there is none; take tokenizer=wordpiece."
)


def sentinel_names(count: int) -> list[str]:
    """Return the names of so many sentinels."""
    return [SENTINEL.format(number) for number in range(count)]


def _sentinels_key(sentinels: int) -> str:
    return f" sentinels={sentinels}" if sentinels else ""


def _check_size(size: int, smallest: int, holds: str) -> None:
    if size < smallest:
        raise ValueError(f"size is {size}, but {holds} alone are {smallest} tokens")
    if size > MAX_VOCABULARY:
        raise ValueError(f"size must be at most {MAX_VOCABULARY:,}, got {size}")


def _count_pieces(
    lines: Iterable[str], splitter: Any, normalizer: normalizers.Normalizer | None = None
) -> Counter[str]:
    """Count the pieces in which tokens are learnt, without `<unk>`."""
    words: Counter[str] = Counter()
    for line in lines:
        words.update(line.split())
        if len(words) > _MAX_DISTINCT_WORDS:
            words = Counter(dict(words.most_common(_MAX_DISTINCT_WORDS // 2)))
    pieces: Counter[str] = Counter()
    for word, count in words.items():
        text = word.replace(UNKNOWN, " ").encode("utf-8", "replace").decode()
        if not text.strip():
            continue
        if normalizer is not None:
            text = normalizer.normalize_str(text)
        for piece, _ in splitter.pre_tokenize_str(text):
            pieces[piece] += count
    return pieces


def _letters(pieces: Counter[str], limit: int) -> list[str]:
    """Return the `limit` most frequent letters, in the order of their code points."""
    counts: Counter[str] = Counter()
    for piece, count in pieces.items():
        for letter in piece:
            counts[letter] += count
    ranked = sorted(counts, key=lambda letter: (-counts[letter], letter))
    return sorted(ranked[:limit])


def _train(
    backend: tokenizers.Tokenizer, trainer: trainers.Trainer, pieces: Counter[str]
) -> tokenizers.Tokenizer:
    """Learn merges from counted pieces, written out as text, since the library takes no counts."""
    scale = max(1.0, pieces.total() / _MAX_TRAINING_WORDS)
    at_once = 2000

    def text() -> Iterator[str]:
        for piece, count in pieces.items():
            left = round(count / scale)
            while left > 0:
                yield f"{piece} " * min(left, at_once)
                left -= at_once

    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with progress("learning tokens"):
        backend.train_from_iterator(text(), trainer)
    return backend
