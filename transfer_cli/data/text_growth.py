"""How much longer a tokenizer's normalizers make a text: each may put many letters for one."""

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import tokenizers
from tokenizers.normalizers import Normalizer

MAX_GROWTH = 4
"""How many bytes a batch of texts may become for each of its own, beside `UNMEASURED`. The library
takes some forty for each that they become."""

UNMEASURED = 2**24
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
        return cls(backend.normalizer, chain_growth(list(chain_parts(data.get("normalizer")))))

    def check(self, texts: Sequence[str]) -> None:
        """Refuse texts that would become too long."""
        if self.normalizer is None or sum(map(len, texts)) * self.most <= UNMEASURED:
            return
        size = grown = 0
        for text in texts:
            for start in range(0, len(text), _MEASURED_CHARACTERS):
                part = text[start : start + _MEASURED_CHARACTERS].encode("utf-8", "replace")
                size += len(part)
                grown += len(self.normalizer.normalize_str(part.decode()).encode())
                if grown > MAX_GROWTH * size + UNMEASURED:
                    raise ValueError(
                        f"its normalizers make {grown:,} bytes of {size:,}, in a text of "
                        f"{len(text):,} characters; leave that text out, or break it"
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


def chain_growth(nodes: Sequence[Mapping[str, Any]]) -> int:
    """Return how many characters the parts of a chain make of one together, at most."""
    return math.prod(map(max_growth, nodes))


def max_growth(node: Mapping[str, Any]) -> int:
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
