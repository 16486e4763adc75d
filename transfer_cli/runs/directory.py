"""The run directory: the one thing that a command hands to the next.

```
RUN/
  config.yaml       fully resolved           overrides.txt     what was typed
  plan.txt          stages, rates, tensors: what trains when; what an export will be
  presets.json      the options chosen       environment.json  versions, device
  origins.json      digests of the data and weights that it is made from
  status.json       starting | running | stopped | finished | failed: why
  results.json      final measures           metrics.jsonl     one line a record
  timing.json       seconds, memory, energy  speed.jsonl       tokens a second, over time
  items.jsonl       what became of each test and validation example
  tensorboard/      the same as curves       checkpoints/      step-00012000/, best/
  model/            weights, model.json, tokenizer.json: all that the next run needs; their hashes
  parts/NAME/       the same of a model that trained inside it, such as ELECTRA's generator
  analyses/         what was found out about the run later: NAME.json, pictures beside it
  trackers.json     what each tracker calls the run
  .lock             held by the command that writes here
```

Nothing in `results.json`, `metrics.jsonl` and `items.jsonl` depends on the clock: a run that was
stopped or killed and resumed has the same ones, to the last bit, as a run that was not. With
`loop.minutes` the rate itself depends on the clock.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transfer_cli.errors import CheckpointError, RunError, did_you_mean, raised_as
from transfer_cli.runs.atomic import check_inside, make_dated_folder, remove, write_json, write_text
from transfer_cli.runs.locks import Lock, holder_of
from transfer_cli.safe_files import read_json

CONFIG = "config.yaml"
MODEL = "model"
CHECKPOINTS = "checkpoints"
PARTS = "parts"
TOKENIZER = "tokenizer.json"
LOCK = ".lock"
HUB = "hf:"
"""The beginning of the name of a published model, which is no path."""
PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".ckpt"})
"""What files that could run code when opened are called."""

_FILES = (
    "config.yaml", "overrides.txt", "plan.txt", "presets.json", "environment.json", "origins.json",
    "status.json", "results.json", "timing.json", "metrics.jsonl", "speed.jsonl",
    "weights.safetensors", "model.json", "tokenizer.json", "meta.json", "items.jsonl",
    "trackers.json",
)  # fmt: skip
_PUBLISHED = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
"""What a published model may be called, `owner/name` or `name`."""
_TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, _FILES))})\.\d+")
"""What a file is called while it is written: see `replaced_file`."""


class RunDirectory:
    """Paths in a run directory, the small files in it, and the right to write there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / CONFIG
        self.overrides = path / "overrides.txt"
        self.plan = path / "plan.txt"
        self.presets = path / "presets.json"
        self.environment = path / "environment.json"
        self.origins = path / "origins.json"
        self.status = path / "status.json"
        self.results = path / "results.json"
        self.timing = path / "timing.json"
        self.metrics = path / "metrics.jsonl"
        self.speed = path / "speed.jsonl"
        self.items = path / "items.jsonl"
        self.tensorboard = path / "tensorboard"
        self.checkpoints = path / CHECKPOINTS
        self.best = self.checkpoints / "best"
        self.model = path / MODEL
        self.parts = path / PARTS
        self.analyses = path / "analyses"
        self.trackers = path / "trackers.json"
        self._lock: Lock | None = None

    # --- whose it is ---------------------------------------------------------------------------

    @staticmethod
    def holds_run(path: Path) -> bool:
        """Return whether a run is at `path`: one that got as far as writing its config."""
        return (path / CONFIG).is_file()

    @staticmethod
    def check_free(path: Path) -> None:
        """Refuse a folder that a new run cannot use.

        The rest of a command that was killed before its run began is ignored.
        """
        if path.exists() and not path.is_dir():
            raise RunError(f"run.dir: {path} is not a folder")
        # Looked at before the config is: another command may be writing it just now.
        is_free = not path.is_dir() or RunDirectory(path)._holds_no_more_than_a_start()
        if (path / CONFIG).exists():
            raise RunError(
                f"run.dir: {path} already holds a run; go on with it by resume={path}, "
                "or choose another folder"
            )
        if not is_free:
            raise RunError(f"run.dir: {path} is not empty; choose a new or an empty folder")

    @classmethod
    def create(cls, path: Path) -> "RunDirectory":
        """Make a new run directory at exactly `path`, locked."""
        cls.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"run.dir: {path} cannot be written: {error.strerror}") from error
        run = cls(path)
        run.lock("run.dir")
        try:
            # Another command may have been quicker; then nothing here is ours.
            cls.check_free(path)
        except RunError:
            run.unlock()
            raise
        try:
            run._remove_contents()
            run.set_status("starting")
        except BaseException:
            run.discard()
            run.unlock()
            raise
        return run

    @classmethod
    def create_new(cls, root: Path, name: str) -> "RunDirectory":
        """Make a new run directory under `root`, locked; its name is the time and `name`."""
        return cls.create(make_dated_folder(root, name))

    def lock(self, key: str) -> None:
        """Keep other commands from writing here, until `unlock` or the end of this process."""
        lock_files = (self.path / LOCK, holder_of(self.path / LOCK))
        places = (self.config, self.status, *lock_files, *self._contents())
        check_inside(self.path, places, key)
        lock = Lock(self.path / LOCK)
        try:
            is_free = lock.take()
        except OSError as error:
            raise RunError(f"{key}: {self.path} cannot be written: {error.strerror}") from error
        if not is_free:
            raise RunError(
                f"{key}: another command is writing to {self.path}; wait until it has ended, or "
                "choose another folder"
            )
        self._lock = lock

    def unlock(self) -> None:
        """Let others write here."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def clear_leftovers(self) -> None:
        """Remove half-written files of a killed command. The caller holds the lock."""
        for folder in (self.path, self.model, self.checkpoints, *self.parts.glob("*")):
            for path in _temporaries(folder):
                remove(path, ignore_errors=True)

    def discard(self) -> None:
        """Remove a directory whose run never began. The caller holds the lock."""
        with suppress(RunError):  # a full disk may be the very reason
            # Whatever a kill leaves from here on is no hindrance to the next command.
            self.set_status("starting")
        with suppress(OSError):
            self.config.unlink(missing_ok=True)
            self._remove_contents()
            self.status.unlink(missing_ok=True)
            if self._lock is not None:
                self._lock.remove()
            self.path.rmdir()

    def _contents(self) -> list[Path]:
        """Return all files and folders that a run ever writes, but for its lock and status."""
        return [
            self.overrides, self.plan, self.presets, self.environment, self.origins, self.results,
            self.timing, self.metrics, self.speed, self.items, self.tensorboard, self.checkpoints,
            self.model, self.parts, self.analyses, self.trackers,
        ]  # fmt: skip

    def _holds_no_more_than_a_start(self) -> bool:
        """Return whether nothing here is part of a run or a user's own."""
        ours = [*_temporaries(self.path), self.path / LOCK, holder_of(self.path / LOCK)]
        others = set(self.path.iterdir()) - set(ours)
        # Written before all else, into an empty folder.
        marked = (self.path / LOCK).exists() and self.read_status() == "starting"
        return not others or (marked and others <= {self.status, *self._contents()})

    def _remove_contents(self) -> None:
        for path in (*self._contents(), *_temporaries(self.path)):
            remove(path, ignore_errors=True)

    @classmethod
    def open(cls, path: Path, key: str) -> "RunDirectory":
        """Return the run at `path`; `key` is the config key that named it."""
        check_is_folder(path, key)
        if not (path / CONFIG).is_file():
            raise CheckpointError(f"{key}: {path} is no run directory: it holds no {CONFIG}")
        return cls(path)

    @staticmethod
    def folder_of(path: Path) -> Path:
        """Return the folder of the run that `path` names: itself, or that of its checkpoint."""
        return path.parent.parent if path.parent.name == CHECKPOINTS else path

    # --- its files -----------------------------------------------------------------------------

    def write_start(
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
        # Last, since a folder with a config counts as a run.
        write_text(self.config, config)
        self.set_status("running")

    @contextmanager
    def written_at_once(self) -> Iterator[None]:
        """Finish and unlock a run that is started and written in the context.

        After an error there is nothing of it.
        """
        try:
            yield
            self.set_status("finished")
        except BaseException:
            self.discard()
            raise
        finally:
            self.unlock()

    def read_command(self) -> str:
        """Return the command that made the run; "an unknown command" when the file is missing."""
        return _read_word(self.environment, "command", "an unknown command")

    def read_presets(self) -> dict[str, str]:
        """Return the option that was chosen for each config group."""
        with raised_as(
            CheckpointError, f"{self.presets} is missing or damaged: ", OSError, ValueError
        ):
            presets = read_json(self.presets)
        return {group: str(option) for group, option in presets.items()}

    def set_status(self, status: str, reason: str | None = None) -> None:
        """Write `status.json`."""
        write_json(self.status, {"status": status} | ({"reason": reason} if reason else {}))

    def read_status(self) -> str:
        """Return starting, running, stopped, finished or failed; "unknown" without the file."""
        return _read_word(self.status, "status", "unknown")


def _read_word(path: Path, key: str, otherwise: str) -> str:
    try:
        return str(read_json(path)[key])
    except (OSError, ValueError, KeyError):
        return otherwise


def check_is_folder(path: Path, key: str) -> None:
    """Refuse a path at which there is no folder."""
    if not path.is_dir():
        raise CheckpointError(f"{key}: there is no folder {path}{folder_hint(path)}")


def folder_hint(path: Path, names: Iterable[str] = ()) -> str:
    """Return ". Did you mean 'x'?" for the folder beside a path that is called most like it.

    `names` are further ones, which stand for themselves.
    """
    with suppress(OSError):
        beside = [sibling.name for sibling in path.parent.iterdir() if sibling.is_dir()]
        also = names if path.parent == Path() else ()
        return did_you_mean(path.name, [*beside, *also], 0.6).replace(" ", ". ", 1)
    return ""


def check_model_folder(path: Path, key: str, names: Iterable[str] = ()) -> None:
    """Refuse a path of a model at which there is no folder; `names` may have been meant, too."""
    if path.is_file():
        _refuse_pickles([path], key)
        raise CheckpointError(f"{key}: {path} is a file; give the run directory that it belongs to")
    if not path.is_dir():
        cure = folder_hint(path, names)
        is_name = _PUBLISHED.fullmatch(str(path)) and not (path.parts[1:] and path.parent.is_dir())
        if "," in str(path) and all(Path(part).is_dir() for part in str(path).split(",")):
            cure = f"; several are written as a list, {key}=[A,B]"
        elif is_name and not cure:
            cure = f"; for the published model of that name type {key}={HUB}{path}"
        raise CheckpointError(
            f"{key}: there is no folder {path}; name a run directory, its model/ or one of its "
            f"checkpoints{cure}"
        )


def model_folders(path: Path, key: str, names: Iterable[str] = ()) -> tuple[Path, Path]:
    """Return the folders with a model's weights and with its description."""
    check_model_folder(path, key, names)
    if path.parent.name == CHECKPOINTS and (path.parent.parent / MODEL).is_dir():
        # A finished model may be of another build than its checkpoints; then they have their own.
        has_own = (path.parent / "model.json").is_file()
        return path, path.parent if has_own else path.parent.parent / MODEL
    model = path / MODEL if (path / MODEL).is_dir() else path
    if not (model / "model.json").is_file():
        _refuse_pickles(path.iterdir(), key)
        raise CheckpointError(
            f"{key}: {path} is neither a run directory nor its model/ folder "
            "nor one of its checkpoints, nor a published model (which has a config.json)"
        )
    return model, model


def _refuse_pickles(paths: Iterable[Path], key: str) -> None:
    pickles = sorted(path for path in paths if path.suffix in PICKLES)
    if pickles:
        raise CheckpointError(
            f"{key}: {pickles[0]} is a pickle, which could run code when opened; "
            "only run directories of this tool with safetensors are read"
        )


def _temporaries(folder: Path) -> list[Path]:
    return [path for path in folder.glob(".*") if _TEMPORARY.fullmatch(path.name)]
