"""What a run was made from: noted when it begins, compared when any of it is read again.

Of each split a few digests are noted. Files are named for messages alone, since data may be moved.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from transfer_cli.data.documents import TextSplit
from transfer_cli.data.labelled import LabelledData
from transfer_cli.data.split import LineRule
from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.data.tokenizer_file import load_tokenizer
from transfer_cli.data.tokenizer_recipes import TokenizerRecipe
from transfer_cli.errors import CheckpointError, DataError, list_names, one_of, raised_as
from transfer_cli.model.weights import ModelDescription, read_description
from transfer_cli.runs.atomic import write_json
from transfer_cli.runs.directory import TOKENIZER, RunDirectory
from transfer_cli.safe_files import check_field_types, read_json
from transfer_cli.tasks.base import build_task

log = logging.getLogger(__name__)

CHANGED = ("refuse", "accept")
"""The values of `data.changed`."""

_CHUNK_SIZE = 1000
"""Examples that become JSON at once, which is faster than one by one."""


@dataclass(frozen=True)
class SplitIdentity:
    """What a split is.

    Args:
        content: Hex digest of all that it holds, in order.
        rows: Its examples; None: it is text without labels.
        texts: Hex digest of the examples without what people said of them.
        files: Of text, the digest of each file.
    """

    source: str
    content: str
    rows: int | None = None
    texts: str | None = None
    files: dict[str, str] = field(default_factory=dict)

    def change_to(self, now: "SplitIdentity") -> str | None:
        """Return how the split that is there `now` differs from this one; None if it does not."""
        if self.content == now.content:
            return None
        if self.rows is not None and now.rows is not None and self.rows != now.rows:
            return f"has {now.rows:,} examples and not {self.rows:,}"
        if self.texts is not None and self.texts == now.texts:
            return "has the same texts with other labels"
        old, new = self.files.keys() - now.files.keys(), now.files.keys() - self.files.keys()
        other = [n for n, digest in now.files.items() if self.files.get(n, digest) != digest]
        kinds = (("other content in", other), ("a new", sorted(new)), ("no", sorted(old)))
        changes = [f"{what} {list_names(names)}" for what, names in kinds if names]
        has_common_files = self.files.keys() & now.files.keys()
        return f"has {', '.join(changes) if changes and has_common_files else 'other texts'}"


class Origins:
    """The data, tokenizer and weights that a run is made from.

    Each is given under the config key that names it. In a new run it is noted. Of a run that there
    is already, it is compared with what was noted then; what was not (in runs of earlier versions)
    is noted now.

    Args:
        run: The run that is read or gone on with; None: a new one.
        changed: Whether to refuse or accept data that have changed. A label that is new, another
            tokenizer and other weights are always refused.
    """

    def __init__(self, run: RunDirectory | None = None, changed: str = "refuse") -> None:
        one_of("data.changed", changed, CHANGED)
        self.changed = changed
        self._model: ModelDescription | None = None
        self._data: dict[str, dict[str, SplitIdentity]] = {}
        self._labels: dict[str, tuple[str, ...]] = {}
        self._weights: dict[str, str] = {}
        self.accepted: list[str] = []
        if run is not None:
            self._folder = run.model
            self._model = read_description(run.model)
            self._read(run)

    @property
    def lines(self) -> LineRule | None:
        """What became of line breaks when the run began; None: it is new."""
        return None if self._model is None else self._model.lines or "end"

    # --- what a run is made from ----------------------------------------------------------------

    def check_labelled(
        self, key: str, data: LabelledData, only: tuple[str, ...] = ()
    ) -> LabelledData:
        """Return labelled data, labels and task as when the run began; no `only`: all splits."""
        labels = self._labels.get(key)
        if self._model is not None and key == "data":
            labels = self._model.labels
            # What a finished run has fitted is fitted anew at its new end.
            stored = {**(self._model.task or {})}
            stored.pop("fitted", None)
            data = replace(data, task=stored or data.task)
        gone = [] if labels is None else [label for label in labels if label not in data.labels]
        data = data.with_label_numbers(data.labels if labels is None else labels)
        task = build_task(data.task, data.labels, key)
        splits = {
            name: examples_identity(data.source(name), examples, task.texts if task else repr)
            for name, examples in data.splits.items()
            if name in only or not only
        }
        why = [f"{data.source('train')}: the label {gone[0]!r} is gone"] if gone else []
        self._compare(key, splits, key, why)
        self._labels[key] = data.labels
        return data

    def check_text(self, key: str, splits: Mapping[str, TextSplit], shown_key: str = "") -> None:
        """Note or compare splits of a text; a message names it by `shown_key`."""
        identities = {
            name: SplitIdentity(split.source, split.fingerprint, files=dict(split.files))
            for name, split in splits.items()
        }
        self._compare(key, identities, shown_key or key)

    def check_tokenizer(
        self, tokenizer: Tokenizer | TokenizerRecipe
    ) -> Tokenizer | TokenizerRecipe:
        """Return a tokenizer, or the recipe of one; of a run that has its own, that one."""
        if self._model is None:
            return tokenizer
        place = "init_from"
        if not isinstance(tokenizer, Tokenizer):
            tokenizer, place = (
                load_tokenizer(self._folder / TOKENIZER),
                str(self._folder / TOKENIZER),
            )
        if tokenizer.hash != self._model.tokenizer_hash:
            raise CheckpointError(
                f"{place}: this is not the tokenizer that the run began with; put the original back"
            )
        return tokenizer

    def check_weights(self, key: str, place: Path, now: str) -> None:
        """Note or compare the fingerprint (`Pretrained.fingerprint`) of weights it starts from."""
        then = self._weights.setdefault(key, now)
        if then != now:
            raise CheckpointError(
                f"{key}: the weights in {place} are not those that the run began with (hash "
                f"{then[:8]}, now {now[:8]}); put the original back"
            )

    def _compare(
        self, key: str, splits: Mapping[str, SplitIdentity], shown_key: str, why: Sequence[str] = ()
    ) -> None:
        known, changes = self._data.setdefault(key, {}), []
        for name, now in splits.items():
            change = known[name].change_to(now) if name in known else None
            if change is not None:
                changes.append(f"{now.source}: {name} {change}")
        known.update(splits)
        if not changes:
            return
        message = f"{shown_key}: {list_names([*why, *changes], 2)}"
        if self.changed != "accept":
            raise DataError(
                f"{message} since the run began. Put it back, or say data.changed=accept to go on "
                "with what is there."
            )
        log.warning("data.changed=accept: %s", message)
        self.accepted.append(message)

    # --- the record -----------------------------------------------------------------------------

    def save(self, run: RunDirectory) -> None:
        """Write down what the run is made from."""
        data = {
            key: {name: asdict(split) for name, split in splits.items()}
            for key, splits in self._data.items()
        }
        record = {
            "data": data, "labels": self._labels, "weights": self._weights,
            "accepted": self.accepted,
        }  # fmt: skip
        write_json(run.origins, record)

    def _read(self, run: RunDirectory) -> None:
        if not run.origins.exists():
            log.info("%s has no record of what it was made from; nothing is compared", run.path)
            return
        kinds = (OSError, KeyError, TypeError, ValueError, AttributeError)
        with raised_as(CheckpointError, f"{run.origins} is damaged: ", *kinds):
            record = read_json(run.origins)
            self._data = {
                key: {name: _read_identity(split) for name, split in splits.items()}
                for key, splits in record["data"].items()
            }
            self._labels = {key: tuple(map(str, names)) for key, names in record["labels"].items()}
            self._weights = {key: str(digest) for key, digest in record["weights"].items()}
            self.accepted = list(map(str, record["accepted"]))


def _read_identity(record: Mapping[str, Any]) -> SplitIdentity:
    identity = SplitIdentity(**record)
    check_field_types(identity)
    return identity


def examples_identity(
    source: str, examples: Sequence[Any], texts: Callable[[Any], Sequence[str]]
) -> SplitIdentity:
    """Return what labelled examples, dataclasses of plain values, are."""
    content, alone = (hashlib.blake2b(digest_size=16) for _ in range(2))
    parts = fields(examples[0]) if examples else ()
    # Where files are is no content: they may be moved.
    names = [attribute.name for attribute in parts if attribute.compare or attribute.name != "file"]
    for first in range(0, len(examples), _CHUNK_SIZE):
        chunk = examples[first : first + _CHUNK_SIZE]
        content.update(_as_json([[getattr(example, name) for name in names] for example in chunk]))
        alone.update(_as_json([list(texts(example)) for example in chunk]))
    return SplitIdentity(source, content.hexdigest(), len(examples), alone.hexdigest())


def _as_json(content: Any) -> bytes:
    # ASCII, since what Python escapes otherwise depends on its version.
    return json.dumps(content, default=_json_value).encode()


def _json_value(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else vars(value)
