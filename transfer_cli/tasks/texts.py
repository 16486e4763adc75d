"""Tasks whose examples are a text, or two, read in one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from transfer_cli.data.encoded_task import EncodedRows, Truncate, encode_texts
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.tasks.base import Direction, Task


@dataclass(frozen=True)
class TextsTask(Task):
    """A task whose examples have a `text`, perhaps a `pair`, and the `line` that they stand on.

    Args:
        truncate: Which of two texts is cut where they are too long together.
    """

    truncate: Truncate = field(default="longest_first", kw_only=True)

    def read(self, record: Record, text: str, pair: str | None, name: str) -> Any:
        """See `Task`."""
        return replace(super().read(record, text, pair, name), line=record.line)

    def targets(self, examples: Sequence[Any]) -> Mapping[str, Any] | None:
        """Return further keys of a batch, see `EncodedRows`; None: the examples' labels."""
        return None

    def encode(
        self, examples: Sequence[Any], tokenizer: Tokenizer, length: int, direction: Direction
    ) -> EncodedRows:
        """See `Task`; a text that is too long is cut, of two the one that `truncate` says."""
        targets = self.targets(examples)
        return encode_texts(examples, tokenizer, length, direction, targets, self.truncate)
