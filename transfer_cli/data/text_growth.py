"""How much longer than a text a tokenizer's file makes it, before the library takes memory for it.

A `tokenizer.json` may be a stranger's. Each normalizer of a chain may replace a letter by many, a
template may repeat the text, and a chain of forty would make more of a line than any memory holds.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tokenizers
from tokenizers.normalizers import Normalizer

from transfer_cli.safe_files import UnreadableError

MAX_PARTS = 100
"""Of a chain of normalizers, of pre-tokenizers, of decoders, of a template."""

MAX_STEP = 64
"""How many characters a part may put in place of one. The longest that Unicode has are 18."""

MAX_CHAIN = 4096
"""What the parts of a chain may make of one character together: those of ALBERT's, 648, if there
were a letter that all of them lengthen."""

MAX_GROWTH = 4
"""How many bytes a batch of texts may become for each of its own, beside `_SMALL`. The library
takes some forty for each that they become."""

_SMALL = 2**24
"""Characters that texts may become without being measured: some hundred MiB at most."""

_PART = 1024
"""Characters of a text that are measured at once."""

_UNICODE = {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 3, "BertNormalizer": 12}
"""What Unicode makes of one character at most; BERT's may put spaces around it, too."""

_BYTES_OF_CHARACTER = 4

_MAX_BYTE_LEVELS = 2
"""One makes characters of bytes, which are bytes again to the next one."""


@dataclass(frozen=True)
class TextGrowth:
    """The normalizer of a tokenizer, and how many characters it makes of one at most."""

    normalizer: Normalizer | None
    most: int

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, data: Mapping[str, Any]) -> "TextGrowth":
        """Return that of a tokenizer whose file `check_growth` has let through."""
        return cls(backend.normalizer, _product(list(_parts(data.get("normalizer")))))

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that would become too long.

        Raises:
            UnreadableError: They would.
        """
        if self.normalizer is None or sum(map(len, texts)) * self.most <= _SMALL:
            return
        size = grown = 0
        for text in texts:
            for start in range(0, len(text), _PART):
                part = text[start : start + _PART].encode("utf-8", "replace")
                size += len(part)
                grown += len(self.normalizer.normalize_str(part.decode()).encode())
                if grown > MAX_GROWTH * size + _SMALL:
                    raise UnreadableError(
                        f"its normalizers make {grown:,} bytes of {size:,}, in a text of "
                        f"{len(text):,} characters; leave that text out, or break it"
                    )


def check_growth(data: Mapping[str, Any]) -> None:
    """Refuse the content of a `tokenizer.json` that would make too much of a text.

    Raises:
        UnreadableError: It would.
    """
    chains = {
        name: list(_parts(data.get(name)))
        for name in ("normalizer", "pre_tokenizer", "decoder", "post_processor")
    }
    for name, nodes in chains.items():
        if len(nodes) > MAX_PARTS:
            raise UnreadableError(f"its {name} has {len(nodes):,} parts, expected {MAX_PARTS}")
        most = _product(nodes)
        if most > MAX_CHAIN or max(map(_most, nodes), default=1) > MAX_STEP:
            raise UnreadableError(
                f"its {name} makes up to {most:,} characters of one; no text is encoded with it"
            )
    kinds = [node.get("type") for node in (*chains["normalizer"], *chains["pre_tokenizer"])]
    if kinds.count("ByteLevel") > _MAX_BYTE_LEVELS:
        raise UnreadableError("it makes bytes of a text more than twice")
    for node in chains["post_processor"]:
        for kind in ("single", "pair"):
            _check_template(node.get(kind))
    added = data.get("added_tokens")
    names = [token for token in added or () if isinstance(token, dict) and token.get("normalized")]
    size = sum(len(str(token.get("content"))) for token in names)
    if size * _product(chains["normalizer"]) > _SMALL:
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


def _parts(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the parts of a chain, also of chains in it, in order."""
    if not isinstance(node, dict):
        return
    inside = [node[key] for key in ("normalizers", "pretokenizers", "decoders", "processors")
              if isinstance(node.get(key), list)]  # fmt: skip
    if inside:
        for part in chain.from_iterable(inside):
            yield from _parts(part)
    else:
        yield node


def _product(nodes: Sequence[Mapping[str, Any]]) -> int:
    product = 1
    for node in nodes:
        product *= _most(node)
    return product


def _most(node: Mapping[str, Any]) -> int:
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
    return _UNICODE.get(str(kind), 1)


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
