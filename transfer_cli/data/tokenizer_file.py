"""What is refused of a stranger's `tokenizer.json`, before the library takes memory for it.

Each normalizer of a chain may replace a letter by many, a template may repeat the text, and a chain
of forty would make more of a line than any memory holds.
"""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tokenizers
from tokenizers.normalizers import Normalizer

from transfer_cli.errors import DataError
from transfer_cli.safe_files import UnreadableError

MAX_FILE_BYTES = 64 * 2**20
"""Twice the largest `tokenizer.json` in use, of 256,000 tokens."""

MAX_VOCABULARY = 2**22
"""Sixteen times the largest vocabulary in use. The library takes memory for all numbers up to the
largest, so that one token of number 4,294,967,295 would end the process."""

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
        """Return that of a tokenizer whose file `check_file` has let through."""
        return cls(backend.normalizer, _chain_growth(list(chain_parts(data.get("normalizer")))))

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


def check_file(data: Mapping[str, Any]) -> None:
    """Refuse the content of a `tokenizer.json` that would make the library take all memory."""
    check_numbers(data)
    chains = {
        name: list(chain_parts(data.get(name)))
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
    added = data.get("added_tokens") or ()
    names = [token for token in added if isinstance(token, dict) and token.get("normalized")]
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


def chain_parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a chain, also of chains in it, in order."""
    if not isinstance(node, dict):
        return
    inside = [node[key] for key in ("normalizers", "pretokenizers", "decoders", "processors")
              if isinstance(node.get(key), list)]  # fmt: skip
    if inside:
        for part in chain.from_iterable(inside):
            yield from chain_parts(part)
    else:
        yield node


def _chain_growth(nodes: Sequence[Mapping[str, Any]]) -> int:
    return math.prod(map(_max_growth, nodes))


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
    except ValueError:
        return 1  # the library refuses it
    texts = raw[4 + int.from_bytes(raw[:4], "little") :].split(b"\0")
    return max(1, *(len(text.decode("utf-8", "replace")) for text in texts))


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


def check_numbers(data: Mapping[str, Any]) -> None:
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
