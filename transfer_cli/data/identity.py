"""What a split was when a run read it: a few digests tell later whether it still is that.

Files are named for messages alone, since a data set may be moved.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from transfer_cli.errors import listed

_CHUNK = 1000
"""Examples that become JSON at once, which is faster than one by one."""


@dataclass(frozen=True)
class SplitIdentity:
    """What a split is.

    Args:
        source: The file, or files, that it comes from.
        content: Hex digest of all that it holds, in order.
        rows: Its examples; None: it is text without labels.
        texts: Hex digest of the examples without what people said of them.
        files: Of text, the digest of each file.
    """

    source: str
    content: str
    rows: int | None = None
    texts: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)

    def change_to(self, now: "SplitIdentity") -> str | None:
        """Return how the split that is there `now` differs from this one; None if it does not."""
        if self.content == now.content:
            return None
        if self.rows is not None and now.rows is not None and self.rows != now.rows:
            return f"has {now.rows:,} examples and not {self.rows:,}"
        if self.texts is not None and self.texts == now.texts:
            return "has the same texts with other labels"
        old, new = self.files.keys() - now.files.keys(), now.files.keys() - self.files.keys()
        other = [name for name, each in now.files.items() if self.files.get(name, each) != each]
        kinds = (("other content in", other), ("a new", sorted(new)), ("no", sorted(old)))
        if self.files.keys() & now.files.keys() and any(names for _, names in kinds):
            return "has " + ", ".join(f"{what} {listed(names)}" for what, names in kinds if names)
        return "has other texts"


def of_examples(
    source: str, examples: Sequence[Any], texts: Callable[[Any], Sequence[str]]
) -> SplitIdentity:
    """Return what labelled examples are.

    Args:
        source: See `SplitIdentity`.
        examples: Dataclasses of plain values.
        texts: Returns the texts of an example.
    """
    content, alone = (hashlib.blake2b(digest_size=16) for _ in range(2))
    names = [each.name for each in fields(examples[0])] if examples else []
    for chunk in _chunks(examples):
        content.update(_as_json([[getattr(each, name) for name in names] for each in chunk]))
        alone.update(_as_json([list(texts(each)) for each in chunk]))
    return SplitIdentity(source, content.hexdigest(), len(examples), alone.hexdigest())


def _chunks(examples: Sequence[Any]) -> Iterator[list[Any]]:
    rest = iter(examples)
    while chunk := list(itertools.islice(rest, _CHUNK)):
        yield chunk


def _as_json(content: Any) -> bytes:
    # ASCII, since what Python escapes otherwise depends on its version.
    return json.dumps(content, default=_plain).encode()


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else vars(value)
