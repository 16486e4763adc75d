"""Every error that a user can act on, and the exit code that each one ends with.

`TransferError` and its children are printed as one line without a traceback. Anything else that
escapes is our fault and keeps its traceback (exit code 1).
"""

import difflib
import math
import shlex
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import metadata

_LONGEST_NAME = 100
_MOST_NAMES = 10_000

EXIT_DONE = 0
EXIT_OUR_FAULT = 1
EXIT_USER = 2
EXIT_DIVERGED = 4
EXIT_SWEEP = 5
EXIT_PRUNED = 6
EXIT_STOPPED = 75
EXIT_INTERRUPTED = 130


class TransferError(Exception):
    """A cause and a cure, in one line."""

    exit_code = EXIT_USER


class ConfigError(TransferError):
    """A config key or value that cannot work."""


class DataError(TransferError):
    """Text or labels that cannot be found, fetched or read.

    Args:
        message: The cause and the cure.
        reason: The fault of a row in a few words, which others may have as well.
    """

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason


class SelectionError(TransferError):
    """A pattern that selects no parameters, or the wrong ones."""


class CheckpointError(TransferError):
    """A run directory or checkpoint that is missing, damaged, unsafe or of another kind."""


class FinishedError(CheckpointError):
    """A run that is asked to go on and has nothing left to do."""


class RunError(TransferError):
    """A run that cannot start or go on: its directory, its device, its memory, its disk."""


class NotFiniteError(RunError):
    """A model that gives NaN or infinity; `what` says what is not finite, and where."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} is not finite; the model has diverged, or half precision is too narrow for it "
            "(precision=fp32)"
        )


class DivergedError(TransferError):
    """Training produced numbers that are not finite."""

    exit_code = EXIT_DIVERGED


class StoppedError(TransferError):
    """A run that was asked to stop, and stopped with a checkpoint."""

    exit_code = EXIT_STOPPED


class PrunedError(TransferError):
    """A trial that its search has given up as hopeless."""

    exit_code = EXIT_PRUNED


class WorkerError(TransferError):
    """A process that was started to work on a run has ended before the run did.

    Args:
        exit_code: The exit code of the run, as a shell would call what happened.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class PeerError(WorkerError):
    """Another process of the run has failed and says why; this one ends without a message."""


class SweepError(TransferError):
    """A sweep in which at least one job failed."""

    exit_code = EXIT_SWEEP


@contextmanager
def raised_as(error: type[Exception], start: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise an error in place of `kinds`, by default of a `ValueError`; `start` begins its text."""
    caught = kinds or (ValueError,)
    try:
        yield
    except caught as cause:
        raise error(f"{start}{cause}") from cause


def did_you_mean(word: str, choices: Iterable[str], cutoff: float = 0.5) -> str:
    """Return " Did you mean 'x'?" for the choice closest to `word`, or "" when none is close."""
    # Names are short and few. To compare what a hostile file holds instead could take hours.
    names = [name for name in choices if len(name) <= _LONGEST_NAME][:_MOST_NAMES]
    same = [name for name in names if name.casefold() == word.casefold()]
    close = same or difflib.get_close_matches(word[:_LONGEST_NAME], names, n=1, cutoff=cutoff)
    return f" Did you mean {close[0]!r}?" if close else ""


def list_names(names: Iterable[object], most: int = 3) -> str:
    """Return "a, b, c and 3 more"."""
    texts = [str(name) for name in names]
    left = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {left:,} more" if left > 0 else "")


def pip_install(extra: str) -> str:
    """Return the command that installs the packages of an extra of this one."""
    try:
        pairs = [package.partition("; ") for package in metadata.requires("transfer-cli") or ()]
    except metadata.PackageNotFoundError:
        pairs = []
    names = [name for name, _, marker in pairs if f'"{extra}"' in marker]
    return shlex.join(["pip", "install", *(names or [f".[{extra}]"])])  # else used from a checkout


def one_of(
    name: str, value: object, choices: Collection[str], error: type[Exception] = ConfigError
) -> None:
    """Raise an error unless `value` is one of the choices; it names the closest."""
    if value not in choices:
        close = did_you_mean(str(value), choices)
        raise error(f"{name}: {value!r} is not one of {', '.join(choices)}.{close}")


def at_least(name: str, value: float, least: float, error: type[Exception] = ValueError) -> None:
    """Raise an error unless `value` is `least` or more, and finite.

    `name` begins the message, such as "size" or "loop.batch:".
    """
    if not least <= value < math.inf:
        bound = "0 or more" if least == 0 else f"at least {least:g}"
        raise error(f"{name} must be {bound}, got {value}")


def between(
    name: str, value: float, least: float, most: float, error: type[Exception] = ValueError
) -> None:
    """Raise an error unless `value` is in a range, ends included; for `name` see `at_least`."""
    at_least(name, value, least, error)
    if value > most:
        raise error(f"{name} must be at most {most:,}, got {value}")


def check_share(key: str, share: float) -> None:
    """Raise `ValueError` unless an option is a share, between 0 and 1."""
    if not 0 < share < 1:
        raise ValueError(f"{key} must be between 0 and 1, got {share}")


def count_or_auto(key: str, value: int | str) -> None:
    """Refuse what is neither a number of 1 or more nor auto."""
    if isinstance(value, str) and value != "auto":
        raise ConfigError(f"{key}: expected a whole number or auto, got {value!r}")
    if not isinstance(value, str):
        at_least(f"{key}:", value, 1, ConfigError)


def above_zero(name: str, value: float, error: type[Exception] = ValueError) -> None:
    """Raise an error unless `value` is above 0, and finite; for `name` see `at_least`."""
    if not 0 < value < math.inf:
        raise error(f"{name} must be above 0, got {value}")
