"""The `config.json` of a published model, asked key by key."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from transfer_cli.errors import CheckpointError, did_you_mean, raised_as
from transfer_cli.safe_files import read_json

CONFIG = "config.json"

T = TypeVar("T")

_KINDS = {int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True)
class PublishedConfig:
    """What a config file says. Every answer is checked: a `CheckpointError` names key and file."""

    values: Mapping[str, Any]
    path: Path

    @classmethod
    def read(cls, folder: Path, name: str = CONFIG) -> "PublishedConfig":
        """Read the config of a model's folder."""
        path = folder / name
        with raised_as(CheckpointError, f"{path} cannot be read: ", OSError, ValueError):
            return cls(read_json(path), path)

    def value(self, key: str, default: T | None, kind: type[T]) -> T:
        """Return a whole number, a number, or true or false; without a default it must be there."""
        value = self.get(key, default)
        if type(value) is not kind and (kind is not float or type(value) is not int):
            raise self.error(key, _KINDS[kind])
        # A whole number stands for a float, too. `T` is int, float or bool, which mypy cannot know.
        return kind(value)  # type: ignore[call-arg]

    def one_of(self, key: str, known: Mapping[str, str], default: str) -> str:
        """Return what we call the value of a key."""
        value = self.get(key, default)
        if not isinstance(value, str) or value not in known:
            close = did_you_mean(value, known) if isinstance(value, str) else ""
            raise self.error(key, f"one of {', '.join(known)}", close)
        return known[value]

    def require(self, key: str, value: Any) -> None:
        """Refuse any other value, with which the model would compute something else than ours."""
        there = self.values.get(key)
        if there is not None and there != value:
            known = "null" if value is None else repr(value)
            raise self.error(key, f"{known}, which is all that is built here")

    def error(self, key: str, expected: str, hint: str = "") -> CheckpointError:
        """Return the error of a key whose value cannot be used."""
        return CheckpointError(
            f"{self.path}: {key} is {self.values.get(key)!r}, expected {expected}.{hint}"
        )

    def get(self, key: str, default: Any = None) -> Any:
        """Return whatever a key says; without a default it must be there."""
        value = self.values.get(key)
        answer = default if value is None else value
        if answer is None:
            raise CheckpointError(f"{self.path} has no {key}, which says how the model is built")
        return answer
