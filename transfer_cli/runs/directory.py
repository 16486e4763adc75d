"""The run directory: the one thing that a command hands to the next.

```
RUN/
  config.yaml       fully resolved           overrides.txt     what was typed
  plan.txt          stages, rates, tensors: what trains when
  presets.json      the options chosen       environment.json  versions, device
  status.json       running | stopped | finished | failed: why
  results.json      final measures           metrics.jsonl     one line a record
  tensorboard/      the same as curves       checkpoints/      step-00012000/, best/
  model/            weights, model.json, tokenizer.json: all that the next run needs
```
"""

import errno
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from transfer_cli.errors import CheckpointError, RunError

CONFIG = "config.yaml"
MODEL = "model"
CHECKPOINTS = "checkpoints"
TOKENIZER = "tokenizer.json"
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
"""What files that could run code when opened are called."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class RunDirectory:
    """Paths in a run directory, and the small files in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.overrides = path / "overrides.txt"
        self.plan = path / "plan.txt"
        self.presets = path / "presets.json"
        self.environment = path / "environment.json"
        self.status = path / "status.json"
        self.results = path / "results.json"
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / CHECKPOINTS
        self.best = self.checkpoints / "best"
        self.model = path / MODEL

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that a new run cannot have.

        Raises:
            RunError: It holds a run, or anything else.
        """
        if (path / CONFIG).exists():
            raise RunError(
                f"run.dir: {path} already holds a run; go on with it by resume={path}, "
                "or choose another folder"
            )
        if path.exists() and not path.is_dir():
            raise RunError(f"run.dir: {path} is not a folder")
        if path.is_dir() and any(path.iterdir()):
            raise RunError(f"run.dir: {path} is not empty; choose a new or an empty folder")

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make a new run directory at exactly `path`.

        Raises:
            RunError: The folder holds something already, or cannot be made.
        """
        cls.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            probe = path / ".write"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise RunError(f"run.dir: {path} cannot be written: {error.strerror}") from error
        return cls(path)

    @classmethod
    def create_new(cls, root: Path, name: str) -> "RunDirectory":
        """Make a run directory under `root`, named by time and `name`; never one that exists."""
        stamp = datetime.now().astimezone().strftime("%Y-%m-%d_%H-%M-%S")
        for attempt in itertools.count(1):
            path = root / (f"{stamp}-{name}" if attempt == 1 else f"{stamp}-{name}-{attempt}")
            try:
                # Two runs that start in the same second must not share a folder.
                path.mkdir(parents=True)
            except FileExistsError:
                continue
            except OSError as error:
                raise RunError(f"run.root: {root} cannot be written: {error.strerror}") from error
            return cls(path)
        raise AssertionError

    @classmethod
    def open(cls, path: Path, key: str) -> "RunDirectory":
        """Return the run at `path`; `key` is the config key that named it.

        Raises:
            CheckpointError: There is no run.
        """
        if not path.is_dir():
            raise CheckpointError(f"{key}: there is no folder {path}")
        if not (path / CONFIG).is_file():
            raise CheckpointError(f"{key}: {path} is no run directory: it holds no {CONFIG}")
        return cls(path)

    def discard(self) -> None:
        """Remove a directory of which nothing came."""
        shutil.rmtree(self.path, ignore_errors=True)

    def start(
        self,
        command: str,
        config: str,
        overrides: Sequence[str],
        presets: Mapping[str, str],
        environment: Mapping[str, Any],
    ) -> None:
        """Write down what the run is, before it does anything."""
        write_text(self.overrides, "".join(f"{override}\n" for override in overrides))
        write_json(self.presets, presets)
        write_json(self.environment, {"command": command, **environment})
        self.set_status("running")
        # Last, since a folder with a config counts as a run.
        write_text(self.config, config)

    def read_command(self) -> str:
        """Return the command that made the run; "an unknown command" when the file is missing."""
        try:
            return str(json.loads(self.environment.read_text(encoding="utf-8"))["command"])
        except (OSError, ValueError, KeyError):
            return "an unknown command"

    def read_presets(self) -> dict[str, str]:
        """Return the option that was chosen for each config group.

        Raises:
            CheckpointError: The file is missing or damaged.
        """
        try:
            found: dict[str, str] = json.loads(self.presets.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.presets} is missing or damaged: {error}") from error
        return found

    def set_status(self, status: str, reason: str | None = None) -> None:
        """Write `status.json`."""
        write_json(self.status, {"status": status} | ({"reason": reason} if reason else {}))

    def read_status(self) -> str:
        """Return running, stopped, finished or failed; "unknown" when the file is missing."""
        try:
            return str(json.loads(self.status.read_text(encoding="utf-8"))["status"])
        except (OSError, ValueError, KeyError):
            return "unknown"


def find_model(path: Path, key: str) -> tuple[Path, Path]:
    """Return the folders with a model's weights and with its description.

    Args:
        path: A run directory, its `model/`, or one of its checkpoints.
        key: The config key that named it.

    Raises:
        CheckpointError: There is none of these.
    """
    if path.is_file():
        _refuse_pickles([path], key)
        raise CheckpointError(f"{key}: {path} is a file; give the run directory that it belongs to")
    if not path.is_dir():
        raise CheckpointError(
            f"{key}: there is no folder {path}; name a run directory, its model/ or one of its "
            "checkpoints"
        )
    if path.parent.name == CHECKPOINTS and (path.parent.parent / MODEL).is_dir():
        # A finished model may be of another build than its checkpoints; then they have their own.
        own = (path.parent / "model.json").is_file()
        return path, path.parent if own else path.parent.parent / MODEL
    model = path / MODEL if (path / MODEL).is_dir() else path
    if not (model / "model.json").is_file():
        _refuse_pickles(path.iterdir(), key)
        raise CheckpointError(
            f"{key}: {path} is neither a run directory nor its model/ folder "
            "nor one of its checkpoints"
        )
    return model, model


def _refuse_pickles(paths: Iterable[Path], key: str) -> None:
    pickles = sorted(path for path in paths if path.suffix in PICKLES)
    if pickles:
        raise CheckpointError(
            f"{key}: {pickles[0]} is a pickle, which could run code when opened; "
            "only run directories of this tool with safetensors are read"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the disk says while `path` is written into one line.

    Raises:
        RunError: There is no space left, no right to write, or no such folder.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        full = getattr(error, "errno", errno.ENOSPC) in _FULL
        cure = "Free some space there" if full else "Choose another place"
        raise RunError(f"{path} cannot be written: {reason}. {cure}") from error


def write_text(path: Path, text: str) -> None:
    """Write a file so that readers see the old one or the new one, never a part.

    Raises:
        RunError: It cannot be written.
    """
    with writing(path):
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")  # a device or a pipe cannot be replaced
            return
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
