"""Tokenizers of the tokenizers library: text to tokens and back.

Two promises hold for every tokenizer:

- `<unk>` in a text (rare words of WikiText) is exactly one token, the unknown token, if there is
  one (GPT-2's tokenizer has none: its one special token ends a text);
- `[CLS]`, `[MASK]` and so on in a text are ordinary text: only we put in special tokens, or a chat
  template does (`encode_marked`).

It is made in `tokenizer_recipes`, or read by `tokenizer_file`.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers

from transfer_cli.data.text_growth import TextGrowth, chain_parts
from transfer_cli.errors import DataError

log = logging.getLogger(__name__)

UNKNOWN = "<unk>"
SPECIALS = ("[PAD]", UNKNOWN, "[CLS]", "[SEP]", "[MASK]")

# What files from elsewhere call them. Those of causal models lack some, and the token that ends a
# text stands for them.
_ENDS_OF_TEXT = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>")
SENTINEL = "<extra_id_{}>"
"""What stands for hidden parts of a text, by number from 0 (Raffel et al. 2020)."""

_NAMES = {
    "pad": ("[PAD]", "<pad>", *_ENDS_OF_TEXT),
    "unk": (UNKNOWN, "[UNK]", *_ENDS_OF_TEXT),
    "cls": ("[CLS]", "<cls>", "<s>", "<|begin_of_text|>", "<bos>", *_ENDS_OF_TEXT),
    "sep": ("[SEP]", "<sep>", *_ENDS_OF_TEXT),
    "mask": ("[MASK]", "<mask>", *_ENDS_OF_TEXT),
}

_ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
          "special": True}  # fmt: skip
"""How the file says of a token that it is found in no text."""

WORD_MARKS = ("\u0120", "\u2581")
"""Marks that open a word: byte-level BPE and SentencePiece."""


class Tokenizer:
    """Text to tokens and back, with five special tokens.

    Attributes:
        size: Size of the vocabulary.
        hash: Hexadecimal digest of everything that changes the output.
        pad: Fills up a row of a batch.
        unk: Stands for what has no token.
        cls: Stands before a text, or behind it where models read from left to right.
        sep: Ends a text, or a line.
        mask: Hides a token.
        special: These five; several may be the same one (GPT-2).
        has_mask: Whether `mask` is a token of its own, by which others can be hidden.
        starts_word: `[size]`, True where a token begins a word.
        begin: The token that stands before each text, where none stands behind it (Llama); None:
            there is none.
        sentinels: The tokens `<extra_id_0>`, `<extra_id_1>` and so on, as many as there are.
        before_text: The token that stands before each text, whatever is behind it; None: none.
        after_text: The token that its template puts behind each text; None: none.
        separators: How many `sep` stand between two texts: 1, in RoBERTa 2.
        template: What says these three, as the library has it; None: nothing.
        ends_texts: Whether `sep` is what models of others end a text by, and not a line.
        is_byte_level: Whether its tokens are made of bytes, the space before a word among them, so
            that a first word may lack one.
    """

    def __init__(self, backend: tokenizers.Tokenizer, source: str = "this tokenizer") -> None:
        names = _special_names(backend, source)
        data = _with_our_rules(backend, names)
        if data["model"].get("dropout"):
            log.warning("%s drops merges at random (dropout); it is read without that", source)
            data["model"]["dropout"] = None
        self._source = source
        self._backend = tokenizers.Tokenizer.from_str(json.dumps(data))
        # Not part of the file format, so it has to be set each time.
        self._backend.encode_special_tokens = True
        # A tokenizer without an unknown token of its own knows all text.
        self._unknown = names["unk"] if names["unk"] not in _ENDS_OF_TEXT else UNKNOWN
        self.hash = _digest(data)
        self._growth = TextGrowth.of(self._backend, data)

        vocabulary: dict[str, int] = self._backend.get_vocab()
        self.size = max(vocabulary.values()) + 1
        self.pad, self.unk, self.cls, self.sep, self.mask = (vocabulary[names[k]] for k in _NAMES)
        self.special = frozenset((self.pad, self.unk, self.cls, self.sep, self.mask))
        self.has_mask = self.mask not in (self.cls, self.sep, self.pad)
        self._pieces = [""] * self.size
        for piece, token in vocabulary.items():
            self._pieces[token] = piece
        self.starts_word = _starts_word(self._pieces, self.special, data["model"])

        self.template = data["post_processor"]
        ends = _template_tokens(data["post_processor"], vocabulary)
        self.before_text, self.after_text, self.separators = ends
        self.begin = self.before_text if self.after_text is None else None
        self.ends_texts = names["sep"] in _ENDS_OF_TEXT
        self._splits_at_spaces = _splits_at_spaces(data)
        self._marks_spaces = _marks_spaces(data)
        self.sentinels: tuple[int, ...] = ()
        while (name := SENTINEL.format(len(self.sentinels))) in vocabulary:
            self.sentinels += (vocabulary[name],)
        splitters = chain_parts(data["pre_tokenizer"])
        self.is_byte_level = any(part.get("type") == "ByteLevel" for part in splitters)
        # The special tokens that a text can still produce by writing their names.
        self._leaking: frozenset[int] = frozenset()
        rows = self.encode_batch([f"{name} a{name}" for name in names.values()])
        self._leaking = (self.special - {self.unk}) & set().union(*rows)

    def __reduce__(self) -> tuple[Callable[..., "Tokenizer"], tuple[str, str]]:
        """Let another process have it."""
        return _from_json, (self._backend.to_str(), self._source)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of every text, computed by many threads.

        Half a surrogate pair, which UTF-8 cannot encode, counts as `?`.
        """
        texts = [text.replace(UNKNOWN, self._unknown) for text in texts]
        with library_errors(f"{self._source} cannot encode the text"):
            self._growth.check(texts)
            try:
                encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
            except TypeError:
                texts = [text.encode("utf-8", "replace").decode() for text in texts]
                encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        rows = [encoding.ids for encoding in encodings]
        if self._leaking:
            rows = [[self.unk if t in self._leaking else t for t in row] for row in rows]
        return rows

    def encode_with_offsets(
        self, texts: Sequence[str]
    ) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Return the tokens of every text as `encode_batch`, and the span of each in characters.

        Spaces at either end of a token are not part of its span. Tokens that share one character,
        as the bytes of an emoji, all have the span of that character.
        """
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        named = [text.replace(UNKNOWN, self._unknown) for text in texts]
        with library_errors(f"{self._source} cannot encode the text"):
            self._growth.check(named)
            encodings = self._backend.encode_batch(named, add_special_tokens=False)
        encoded = []
        for text, other, encoding in zip(texts, named, encodings, strict=True):
            ids = [self.unk if t in self._leaking else t for t in encoding.ids]
            at = range(len(text) + 1) if other == text else _original_places(text, self._unknown)
            spans = [_trim_span(text, at[start], at[end]) for start, end in encoding.offsets]
            encoded.append((ids, spans))
        return encoded

    def encode_marked(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        """Return the tokens of texts in which names of special tokens stand for these.

        So are texts that a chat template has written. Beside them: the character at which each
        token begins.
        """
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        with library_errors(f"{self._source} cannot encode the text"):
            self._growth.check(texts)
            encodings = self._special_backend.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, [start for start, _ in encoding.offsets]) for encoding in encodings]

    @cached_property
    def _special_backend(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._backend.to_str())

    def units(self, line: str) -> list[str]:
        """Cut a line into units: their tokens, one after the other, are the tokens of the line.

        Words repeat, so in much text each distinct unit can be encoded once. Where a tokenizer
        looks across spaces, the only unit is the line itself.
        """
        if self._splits_at_spaces:
            return line.split(" ")
        # Byte-level BPE keeps spaces: a run of them is not made of its parts.
        if not self._marks_spaces or "  " in line or not line.isprintable():
            return [line]
        words = line.split(" ")
        if words[0] == "":
            del words[0]  # the space that the first word would get anyway
        if words and words[-1] == "":
            words[-1] = " "
        return words

    def normalized(self, text: str) -> str:
        """Return a text as it is before it is cut into tokens: lower-cased, composed, ..."""
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; special tokens appear by name."""
        text = self._backend.decode(list(tokens), skip_special_tokens=False)
        return text.removeprefix(" ") if self._marks_spaces else text

    def token(self, piece: str) -> int | None:
        """Return the number of an entry of the vocabulary, or None."""
        number: int | None = self._backend.token_to_id(piece)
        return number

    def with_added(self, names: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer with further tokens behind its own, which no text is read as."""
        if not names:
            return self
        data: dict[str, Any] = json.loads(self._backend.to_str())
        known = set(self._pieces)
        for number, name in enumerate(names, self.size):
            if not name or name in known:
                why = "it is there" if name else "it is empty"
                raise DataError(f"{self._source} cannot get the token {name!r}: {why}.")
            known.add(name)
            data["added_tokens"].append({**_ADDED, "id": number, "content": name})
        return _from_json(json.dumps(data), self._source)

    def with_template(self, template: Mapping[str, Any] | None) -> "Tokenizer":
        """Return the same tokenizer with other special tokens around a text."""
        data = json.loads(self._backend.to_str()) | {"post_processor": template}
        return _from_json(json.dumps(data), self._source)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return each token's entry in the vocabulary."""
        return [self._pieces[token] for token in tokens]

    def to_json(self) -> str:
        """Return the `tokenizer.json` of the tokenizers library."""
        return str(self._backend.to_str(pretty=True))

    def encode(self, text: str) -> list[int]:
        """Return the tokens of `text`, without special tokens around them."""
        return self.encode_batch([text])[0]

    def encode_within(self, word: str) -> list[int]:
        """Return the tokens of a word that stands behind another in a text."""
        before, tokens = self.encode_batch(["a", f"a {word}"])
        return tokens[len(before) :] if tokens[: len(before)] == before else tokens

    @property
    def target_start(self) -> list[int]:
        """The tokens that an encoder-decoder's targets stand behind: T5's, BART's where it can."""
        return [self.pad] if self.cls == self.sep else [self.sep, self.cls]

    @property
    def document_start(self) -> int:
        """The token that stands before a document of running text."""
        return self.sep if self.before_text is None else self.before_text

    @cached_property
    def keeps_lines(self) -> bool:
        """Whether a line break is a token, or several, from which it comes back."""
        tokens = self.encode("\n\n")
        return self.unk not in tokens and self.decode(tokens).count("\n") == 2


@contextmanager
def library_errors(problem: str) -> Iterator[None]:
    """Turn any error of the library into a DataError; it has no classes of its own."""
    try:
        yield
    except (DataError, MemoryError):
        raise
    except BaseException as error:
        # A panic of its Rust code is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{problem}: {error}.") from error


def _from_json(text: str, source: str) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(text), source)


def has_text_end(backend: tokenizers.Tokenizer) -> bool:
    """Return whether there is a token that ends texts or separates them."""
    return any(backend.token_to_id(name) is not None for name in _NAMES["sep"])


def _special_names(backend: tokenizers.Tokenizer, source: str) -> dict[str, str]:
    """Return the name of each special token in the vocabulary, where others may look like one."""
    vocabulary = backend.get_vocab()
    special = {t.content for t in backend.get_added_tokens_decoder().values() if t.special}
    names = {key: _choose_name(key, vocabulary, special) for key in _NAMES}
    unknown = getattr(backend.model, "unk_token", None)
    if unknown in vocabulary and unknown not in _ENDS_OF_TEXT:
        names["unk"] = unknown
    missing = [" or ".join(f"`{n}`" for n in _NAMES[key]) for key in names if not names[key]]
    if missing:
        raise DataError(
            f"{source} has no token {', no token '.join(missing)}. Add what is missing to its "
            "vocabulary, or take `tokenizer=wordpiece` or `tokenizer=bpe`."
        )
    return names


def _choose_name(key: str, vocabulary: Mapping[str, int], special: Set[str]) -> str:
    ends = () if key in ("cls", "sep") else _ENDS_OF_TEXT  # for want of another
    names = [name for name in _NAMES[key] if name in vocabulary]
    return min(names, key=lambda n: (n in ends, key != "unk" and n not in special), default="")


def _with_our_rules(backend: tokenizers.Tokenizer, names: dict[str, str]) -> dict[str, Any]:
    """Return the content of its file with our rules for special tokens in text.

    The unknown token is found in the text and becomes one token; the other four are not found, nor
    is a token that serves as all five.
    """
    data: dict[str, Any] = json.loads(backend.to_str())
    unknown = names["unk"] if names["unk"] not in _ENDS_OF_TEXT else None
    added = [token for token in data["added_tokens"] if token["content"] not in names.values()]
    added += [
        # The space before `<unk>` is not a token of its own.
        {**_ADDED, "id": backend.token_to_id(name), "content": name, "lstrip": name == unknown,
         "special": name != unknown}
        for name in dict.fromkeys(names.values())
    ]  # fmt: skip
    added.sort(key=lambda token: int(token["id"]))
    return data | {"added_tokens": added, "truncation": None, "padding": None}


def _template_tokens(
    processor: dict[str, Any] | None, vocabulary: dict[str, int]
) -> tuple[int | None, int | None, int]:
    """Return the token before a text, the one behind it, and how many are between two.

    A template says it; without one they are none and one.
    """
    parts = (processor or {}).get("processors", [processor])
    template = next((p for p in parts if p and p.get("type") == "TemplateProcessing"), None)
    if template is None:
        return None, None, 1
    first, last = (template["single"][place].get("SpecialToken", {}).get("id") for place in (0, -1))
    between = 0
    for piece in template["pair"][1:]:
        between += "SpecialToken" in piece
        if piece.get("Sequence", {}).get("id") == "B":
            break
        if "Sequence" in piece:
            between = 0
    return vocabulary.get(first), vocabulary.get(last), max(1, between)


def _digest(data: dict[str, Any]) -> str:
    """Return the hash of all that changes the output; the template of special tokens is unused."""
    kept = {k: v for k, v in data.items() if k not in ("version", "post_processor")}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False)
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def _starts_word(
    pieces: list[str], special: frozenset[int], model: dict[str, Any]
) -> npt.NDArray[np.bool_]:
    if model["type"] == "WordPiece":
        prefix = model["continuing_subword_prefix"]
        starts = [not piece.startswith(prefix) for piece in pieces]
    else:
        starts = [piece.startswith(WORD_MARKS) for piece in pieces]
        starts = starts if any(starts) else [True] * len(pieces)
    starts_word = np.array(starts, dtype=np.bool_)
    starts_word[list(special)] = True
    return starts_word


def _original_places(text: str, unknown: str) -> list[int]:
    """Return the index that each character, and the end, had before `UNKNOWN` was replaced."""
    places: list[int] = []
    at = 0
    for part in text.split(UNKNOWN):
        places += range(at, at + len(part))
        at += len(part)
        # The characters of the other name all begin where `UNKNOWN` began.
        places += [at] * len(unknown)
        at += len(UNKNOWN)
    return [*places[: len(places) - len(unknown)], len(text)]


def _trim_span(text: str, start: int, end: int) -> tuple[int, int]:
    part = text[start:end].lstrip()
    return end - len(part), end - len(part) + len(part.rstrip())


def _splits_at_spaces(data: dict[str, Any]) -> bool:
    """Return whether no token depends on text beyond a space."""
    splitter = data["pre_tokenizer"] or {}
    parts = splitter.get("pretokenizers", [splitter])
    return (
        data["model"]["type"] == "WordPiece"
        and (data["normalizer"] or {}).get("type") in (None, "BertNormalizer")
        and parts[0].get("type") in ("BertPreTokenizer", "WhitespaceSplit")
        and _has_only_our_tokens(data["added_tokens"])
    )


def _has_only_our_tokens(added: list[dict[str, Any]]) -> bool:
    """Return whether the added tokens are ours: no text has one but the unknown one."""
    known = {SENTINEL.format(number) for number in range(len(added))}
    return len([token for token in added if token["content"] not in known]) == len(_NAMES)


def _marks_spaces(data: dict[str, Any]) -> bool:
    """Return whether tokens include the space before a word, also before the first one."""
    splitter = data["pre_tokenizer"] or {}
    return (
        data["model"]["type"] == "BPE"
        and data["normalizer"] is None
        and splitter.get("type") == "ByteLevel"
        and bool(splitter["add_prefix_space"])
        and bool(splitter.get("use_regex", True))
        and _has_only_our_tokens(data["added_tokens"])
    )
