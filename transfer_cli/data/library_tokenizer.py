"""Tokenizers of the tokenizers library, and what is refused of a stranger's `tokenizer.json`.

Before the library takes memory for it: each normalizer of a chain may replace a letter by many, a
template may repeat the text, and a chain of forty would make more of a line than any memory holds.
"""

import base64
import binascii
import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers.normalizers import Normalizer

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.runs.atomic import replaced_file
from transfer_cli.safe_files import UnreadableError, parse_json, read_text

log = logging.getLogger(__name__)

MAX_PARTS = 100
"""Of a chain of normalizers, of pre-tokenizers, of decoders, of a template."""

MAX_CHAIN_GROWTH = 4096
"""What the parts of a chain may make of one character together: those of ALBERT's, 648, if there
were a letter that all of them lengthen."""

MAX_GROWTH = 4
"""How many bytes a batch of texts may become for each of its own, beside `_UNMEASURED`. The library
takes some forty for each that they become."""

_UNMEASURED = 2**24
"""Characters that texts may become without being measured: some hundred MiB at most."""

_MEASURED_CHARACTERS = 1024
"""Characters of a text that are measured at once."""

_UNICODE_GROWTH = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12}
"""What Unicode makes of one character at most; BERT's may put spaces around it, too."""

_BYTES_OF_CHARACTER = 4


@dataclass(frozen=True)
class TextGrowth:
    """The normalizer of a tokenizer, and how many characters it makes of one at most."""

    normalizer: Normalizer | None
    most: int

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, data: Mapping[str, Any]) -> "TextGrowth":
        """Return that of a tokenizer whose file `check_growth` has let through."""
        return cls(backend.normalizer, _chain_growth(list(_chain_parts(data.get("normalizer")))))

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that would become too long."""
        if self.normalizer is None or sum(map(len, texts)) * self.most <= _UNMEASURED:
            return
        size = grown = 0
        for text in texts:
            for start in range(0, len(text), _MEASURED_CHARACTERS):
                part = text[start : start + _MEASURED_CHARACTERS].encode("utf-8", "replace")
                size += len(part)
                grown += len(self.normalizer.normalize_str(part.decode()).encode())
                if grown > MAX_GROWTH * size + _UNMEASURED:
                    raise UnreadableError(
                        f"its normalizers make {grown:,} bytes of {size:,}, in a text of "
                        f"{len(text):,} characters; leave that text out, or break it"
                    )


def check_growth(data: Mapping[str, Any]) -> None:
    """Refuse the content of a `tokenizer.json` that would make too much of a text."""
    chains = {
        name: list(_chain_parts(data.get(name)))
        for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")
    }
    # How many characters a part may put in place of one. The longest that Unicode has are 18.
    max_step = 64
    for name, nodes in chains.items():
        if len(nodes) > MAX_PARTS:
            raise UnreadableError(f"its {name} has {len(nodes):,} parts, the most is {MAX_PARTS}")
        most = _chain_growth(nodes)
        if most > MAX_CHAIN_GROWTH or max(map(_max_growth, nodes), default=1) > max_step:
            raise UnreadableError(
                f"its {name} makes up to {most:,} characters of one; no text is encoded with it"
            )
    kinds = [node.get("type") for node in (*chains["normalizer"], *chains["pre_tokenizer"])]
    max_byte_levels = 2  # one makes characters of bytes, which are bytes again to the next one
    if kinds.count("ByteLevel") > max_byte_levels:
        raise UnreadableError("it makes bytes of a text more than twice")
    for node in chains["post_processor"]:
        for kind in ("single", "pair"):
            _check_template(node.get(kind))
    added = data.get("added_tokens")
    names = [token for token in added or () if isinstance(token, dict) and token.get("normalized")]
    size = sum(len(str(token.get("content"))) for token in names)
    if size * _chain_growth(chains["normalizer"]) > _UNMEASURED:
        raise UnreadableError("its normalizers make too much of its added tokens")


def _check_template(pieces: Any) -> None:
    if not isinstance(pieces, list):
        return
    parts = [piece.get("Sequence") for piece in pieces if isinstance(piece, dict)]
    names = [str(piece.get("id")) for piece in parts if isinstance(piece, dict)]
    if len(pieces) > MAX_PARTS or len(set(names)) < len(names):
        raise UnreadableError(
            f"its post_processor repeats the text, or has more than {MAX_PARTS} parts"
        )


def _chain_parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a chain, also of chains in it, in order."""
    if not isinstance(node, dict):
        return
    inside = [node[key] for key in ("normalizers", "pretokenizers", "decoders", "processors")
              if isinstance(node.get(key), list)]  # fmt: skip
    if inside:
        for part in chain.from_iterable(inside):
            yield from _chain_parts(part)
    else:
        yield node


def _chain_growth(nodes: Sequence[Mapping[str, Any]]) -> int:
    product = 1
    for node in nodes:
        product *= _max_growth(node)
    return product


def _max_growth(node: Mapping[str, Any]) -> int:
    """Return how many characters a part makes of one at most."""
    kind = node.get("type")
    if kind == "Replace":
        return _most_replaced(node.get("pattern"), str(node.get("content")))
    if kind == "Precompiled":
        return _longest_entry(node.get("precompiled_charsmap"))
    if kind == "Prepend":  # once for each text
        return max(1, len(str(node.get("prepend"))))
    if kind == "ByteLevel":
        return _BYTES_OF_CHARACTER
    return _UNICODE_GROWTH.get(str(kind), 1)


def _most_replaced(pattern: Any, content: str) -> int:
    text = pattern.get("String") if isinstance(pattern, dict) else None
    if isinstance(text, str) and text:
        return max(1, -(-len(content) // len(text)))
    return 1 + len(content)  # an expression may match nothing, before each character


def _longest_entry(charsmap: Any) -> int:
    """Return the length of the longest text in SentencePiece's table of replacements.

    After the size of an index and the index, it holds texts with a zero byte after each.
    """
    try:
        raw = base64.b64decode(str(charsmap))
    except (ValueError, binascii.Error):
        return 1  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
    return max(1, *(len(text.decode("utf-8", "replace")) for text in texts))


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

WORD_MARKS = ("\u0120", "\u2581")
"""Marks that open a word: byte-level BPE and SentencePiece."""

MAX_FILE_BYTES = 64 * 2**20
"""Twice the largest `tokenizer.json` in use, of 256,000 tokens."""

MAX_VOCABULARY = 2**22
"""Sixteen times the largest vocabulary in use. The library takes memory for all numbers up to the
largest, so that one token of number 4,294,967,295 would end the process."""


class LibraryTokenizer(Tokenizer):
    """A tokenizer of the `tokenizers` library that has the five special tokens."""

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

        vocabulary = self._backend.get_vocab()
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
        self.sentinels = ()
        while (name := SENTINEL.format(len(self.sentinels))) in vocabulary:
            self.sentinels += (vocabulary[name],)
        self.is_byte_level = _is_byte_level(data)
        # The special tokens that a text can still produce by writing their names.
        self._leaking: frozenset[int] = frozenset()
        rows = self.encode_batch([f"{name} a{name}" for name in names.values()])
        self._leaking = (self.special - {self.unk}) & set().union(*rows)

    def __reduce__(self) -> tuple[Callable[..., "LibraryTokenizer"], tuple[str, str]]:
        """Let another process have it."""
        return _from_json, (self._backend.to_str(), self._source)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
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
        texts = [text.encode("utf-8", "replace").decode() for text in texts]
        with library_errors(f"{self._source} cannot encode the text"):
            self._growth.check(texts)
            encodings = self._special_backend.encode_batch(texts, add_special_tokens=False)
        return [(encoding.ids, [start for start, _ in encoding.offsets]) for encoding in encodings]

    @cached_property
    def _special_backend(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(self._backend.to_str())

    def units(self, line: str) -> list[str]:
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
        normalizer = self._backend.normalizer
        return text if normalizer is None else str(normalizer.normalize_str(text))

    def decode(self, tokens: Sequence[int]) -> str:
        text = self._backend.decode(list(tokens), skip_special_tokens=False)
        return text.removeprefix(" ") if self._marks_spaces else text

    def token(self, piece: str) -> int | None:
        number: int | None = self._backend.token_to_id(piece)
        return number

    def with_added(self, names: Sequence[str]) -> "LibraryTokenizer":
        if not names:
            return self
        data: dict[str, Any] = json.loads(self._backend.to_str())
        known = set(self._pieces)
        for number, name in enumerate(names, self.size):
            if not name or name in known:
                why = "it is there" if name else "it is empty"
                raise DataError(f"{self._source} cannot get the token {name!r}: {why}.")
            known.add(name)
            data["added_tokens"].append(
                {
                    "id": number, "content": name, "single_word": False, "lstrip": False,
                    "rstrip": False, "normalized": False, "special": True,
                }
            )  # fmt: skip
        return LibraryTokenizer(tokenizers.Tokenizer.from_str(json.dumps(data)), self._source)

    def with_template(self, template: Mapping[str, Any] | None) -> "LibraryTokenizer":
        """Return the same tokenizer with other special tokens around a text."""
        data = json.loads(self._backend.to_str()) | {"post_processor": template}
        return _from_json(json.dumps(data), self._source)

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        return [self._pieces[token] for token in tokens]

    def save(self, path: Path) -> None:
        with replaced_file(path) as temporary:
            temporary.write_text(self._backend.to_str(pretty=True), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> "LibraryTokenizer":
        """Read a `tokenizer.json`, ours or another's."""
        with library_errors(f"{path} is damaged, or no `tokenizer.json` of the library"):
            try:
                text = read_text(path, MAX_FILE_BYTES)
            except OSError as error:
                raise DataError(f"Cannot read the tokenizer {path}: {error.strerror}.") from error
            check_file(parse_json(text))
            return cls(tokenizers.Tokenizer.from_str(text), str(path))


def _from_json(text: str, source: str) -> LibraryTokenizer:
    return LibraryTokenizer(tokenizers.Tokenizer.from_str(text), source)


def has_text_end(backend: tokenizers.Tokenizer) -> bool:
    """Return whether there is a token that ends texts or separates them."""
    return any(backend.token_to_id(name) is not None for name in _NAMES["sep"])


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


def check_file(data: dict[str, Any]) -> None:
    """Raise for the content of a `tokenizer.json` that would make the library take all memory."""
    check_numbers(data)
    check_growth(data)


def check_numbers(data: dict[str, Any]) -> None:
    """Raise for numbers of tokens for which the library would take too much memory."""
    model, added = data.get("model"), data.get("added_tokens") or []
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not isinstance(added, list):
        raise UnreadableError("it has no vocabulary")
    numbers: list[Any] = [token.get("id") for token in added if isinstance(token, dict)]
    numbers += vocabulary.values() if isinstance(vocabulary, dict) else [len(vocabulary)]
    for number in numbers:
        if not isinstance(number, int) or not 0 <= number <= MAX_VOCABULARY:
            raise UnreadableError(
                f"a token has the number {number}, expected one up to {MAX_VOCABULARY:,}"
            )


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
        {
            "id": backend.token_to_id(name),
            "content": name,
            "single_word": False,
            # The space before `<unk>` is not a token of its own.
            "lstrip": name == unknown,
            "rstrip": False,
            "normalized": False,
            "special": name != unknown,
        }
        for name in dict.fromkeys(names.values())
    ]
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


def _is_byte_level(data: dict[str, Any]) -> bool:
    """Return whether a space is part of the word behind it, so that a first word may lack one."""
    return any(part.get("type") == "ByteLevel" for part in _chain_parts(data["pre_tokenizer"]))


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
