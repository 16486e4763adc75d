"""A run's whole state on disk: complete or absent, checked when read, and never a pickle.

`checkpoints/step-00012000/` holds `weights.safetensors`, `train_state.pt` (tensors and plain values
only, read with `weights_only`), `best/` (the best weights so far) and `meta.json`, which lists all
files with their sizes and hashes. It is written under another name, flushed to disk and renamed.

While a run is at work, one damaged file never damages all: a checkpoint shares no file with the one
before it, nor with the run's own `best/`. What is equal in a finished run is on the disk once: its
model has such a list, too.
"""

import hashlib
import logging
import pickle
import re
import shutil
import struct
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from transfer_cli.errors import CheckpointError, RunError, raised_as
from transfer_cli.runs.atomic import as_run_error, flush, replaced_file, replaced_folder, write_json
from transfer_cli.safe_files import read_json

log = logging.getLogger(__name__)

FORMAT = 2

META = "meta.json"
STATE = "train_state.pt"
BEST = "best"
"""The folder of the best weights: of a run's own, and of those that a checkpoint takes along."""

_NAME = re.compile(r"step-\d{8,}")
_LEFTOVER = re.compile(r"\.(step-\d{8,}|best)\.(\d+|old)")


class _LaterFormatError(CheckpointError):
    """Not damaged, but written by a later version of this program."""


# --- writing -----------------------------------------------------------------------------------


def write(
    folder: Path,
    step: int,
    write_weights: Callable[[Path], None],
    state: Mapping[str, Any],
    best: Path | None = None,
) -> None:
    """Write a checkpoint at `folder`, replacing one that is there.

    Args:
        state: Tensors and plain values for a resume.
        best: The folder that `write_best` wrote last. The checkpoint has its own copy, since that
            folder changes later.
    """
    with as_run_error(folder), replaced_folder(folder) as temporary:
        write_weights(temporary)
        _write_state(state, temporary / STATE)
        files = _fingerprints(temporary)
        if best is not None:
            earlier = [checkpoint for checkpoint in find_all(folder.parent) if checkpoint != folder]
            files |= _take_along(best, temporary, earlier[:-1])
        _write_meta(temporary, step, files)
        for path in (*temporary.rglob("*"), temporary):
            flush(path)


def write_best(folder: Path, step: int, write_weights: Callable[[Path], None]) -> None:
    """Write the best weights so far at `folder`, replacing those before.

    This may happen often, so they are neither flushed nor hashed before a checkpoint takes them
    along; until then, a resume does not see them.
    """
    with as_run_error(folder), replaced_folder(folder) as temporary:
        write_weights(temporary)
        _write_meta(temporary, step, None)


def restore_best(checkpoint: Path, folder: Path, step: int) -> None:
    """Replace `folder`, a run's best weights, by those in a checkpoint.

    A run that was killed may have found better ones after its last checkpoint. It will find them
    again, and until then they are not the best.
    """
    with as_run_error(folder), replaced_folder(folder) as temporary:
        _copy_files(checkpoint / BEST, temporary)
        known = {
            name.removeprefix(f"{BEST}/"): entry for name, entry in _best_of(checkpoint).items()
        }
        _write_meta(temporary, step, known)


@contextmanager
def listing_files(folder: Path, names: Collection[str]) -> Iterator[None]:
    """Write the list of files that the block changes at its end.

    Until then there is none, so that a kill leaves no list that is not true.
    """
    with as_run_error(folder):
        (folder / META).unlink(missing_ok=True)
        yield
        files = {name: _fingerprint(folder / name) for name in names}
        write_json(folder / META, {"format": FORMAT, "files": files})


def _write_meta(folder: Path, step: int, files: Mapping[str, Any] | None) -> None:
    write_json(folder / META, {"format": FORMAT, "step": step, "files": files})


def _write_state(state: Mapping[str, Any], path: Path) -> None:
    try:
        torch.save(dict(state), path)
    except RuntimeError as error:
        # All that torch says of a full disk is where its own code noticed.
        raise RunError(
            f"{path.parent.parent} cannot be written. Is the disk full? Free some space there"
        ) from error


def _take_along(best: Path, temporary: Path, older: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Put the best weights into a new checkpoint; return their fingerprints.

    The same ones in an older checkpoint than the last are shared: no file is changed in place.
    """
    meta, known = _read_meta(best), _check_sizes(best)
    if known is None:
        known = _fingerprints(best)
        _write_meta(best, meta["step"], known)
    files = {f"{BEST}/{name}": fingerprint for name, fingerprint in known.items()}
    twins = (old / BEST for old in reversed(older) if _has_its_sizes(old, files))
    _copy_files(best, temporary / BEST, next(twins, None))
    return files


def _copy_files(source: Path, target: Path, twin: Path | None = None) -> None:
    """Copy the files of a folder; where `twin` holds the same ones, share those."""
    for name, path in _files(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # the disk knows no links
            if twin is not None:
                (target / name).hardlink_to(twin / name)
                continue
        shutil.copyfile(path, target / name)


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the files of a checkpoint by their paths inside it, without the list of them."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / META and not path.name.startswith("."):
            yield path.relative_to(folder).as_posix(), path


def _fingerprints(folder: Path) -> dict[str, dict[str, Any]]:
    names, paths = zip(*_files(folder), strict=True)
    with ThreadPoolExecutor(max_workers=2) as pool:
        return dict(zip(names, pool.map(_fingerprint, paths), strict=True))


def _fingerprint(path: Path) -> dict[str, Any]:
    # Measured where the processor has no instructions for SHA: 1.7 times as fast as SHA-256.
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32))
    return {"bytes": path.stat().st_size, "blake2b": digest.hexdigest()}


# --- finding and removing ----------------------------------------------------------------------


def is_sharded(checkpoint: Path) -> bool:
    """Return whether every process has written its own part of the weights."""
    return any(checkpoint.glob("shard-*.safetensors"))


def folder_name(step: int) -> str:
    """Return the folder name of a step's checkpoint."""
    return f"step-{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, from its folder's name."""
    return int(checkpoint.name.removeprefix("step-"))


def find_all(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run, oldest first, without looking at their files."""
    return [checkpoint for checkpoint in _folders(folder) if (checkpoint / META).is_file()]


def newest_good(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint of a run, None without one; log damaged ones."""
    problem, left = None, find_all(folder)
    while left:
        last = left.pop()
        if problem is not None:
            log.warning("%s; trying step %d, with %d more left", problem, step_of(last), len(left))
        try:
            verify(last)
        except _LaterFormatError:
            raise
        except CheckpointError as error:
            problem = error
        else:
            return last
    if problem is not None:
        best = folder / BEST
        cure = f"begin a new run with its best weights by init_from={best}, or " * _is_whole(best)
        raise CheckpointError(
            f"{problem}, and no other checkpoint is whole; restore one from a copy, {cure}remove "
            f"{folder} to begin anew"
        )
    return None


def whole_best(folder: Path) -> Path:
    """Return the folder of a run's best weights; where they are damaged, of their newest copy.

    Args:
        folder: The folder of the run's checkpoints. The newest one has taken these weights along.
    """
    try:
        verify(folder / BEST)
    except CheckpointError as error:
        checkpoints = find_all(folder)[::-1]
        files = _best_of(checkpoints[0]) if checkpoints else {}
        for checkpoint in checkpoints if files else ():
            if _has_its_sizes(checkpoint, files) and _is_whole(checkpoint, files):
                log.warning("%s; taking their copy in %s", error, checkpoint / BEST)
                return checkpoint / BEST
        raise CheckpointError(
            f"{error}, and no checkpoint holds a whole copy; restore one from elsewhere"
        ) from error
    return folder / BEST


def hash_of(name: str, folder: Path) -> str | None:
    """Return the hash of a file in the list of a checkpoint or a finished model; None: no list."""
    with suppress(CheckpointError):
        hexadecimal = (_read_meta(folder)["files"] or {}).get(name, {}).get("blake2b")
        return hexadecimal if isinstance(hexadecimal, str) else None
    return None


def whole_copy_of(name: str, model: Path, checkpoints: Path) -> Path | None:
    """Return a whole copy, among a run's checkpoints, of a damaged file of its finished model."""
    with suppress(CheckpointError, OSError):
        digest = _read_meta(model)["files"].get(name)
        for copy in sorted(checkpoints.glob(f"*/{name}")):
            if copy.is_file() and _fingerprint(copy) == digest:
                return copy
    return None


def prune(folder: Path, keep: int, newest: int) -> None:
    """Remove all checkpoints but the newest `keep` undamaged ones; 0 keeps all.

    Args:
        newest: The step of the one just written. A later one is damaged: the run was resumed from
            before it.
    """
    if not keep:
        return
    checkpoints = _folders(folder)
    whole = [path for path in checkpoints if step_of(path) <= newest and _has_its_sizes(path)]
    for old in checkpoints:
        if old not in whole[-keep:]:
            remove(old)


def link_equal_files(model: Path, checkpoints: Path) -> None:
    """Let the files of a finished run that are equal be links to one, where the disk knows links.

    No file is ever changed in place, so each can be replaced or removed without the others.
    """
    known: dict[str, Path] = {}
    for folder in (model, checkpoints / BEST, *find_all(checkpoints)):
        with suppress(CheckpointError):  # a damaged list: that is said by who reads it
            for name, fingerprint in (_check_sizes(folder) or {}).items():
                path = folder / name
                first = known.setdefault(str(fingerprint), path)
                with suppress(OSError):
                    if not path.samefile(first):
                        with replaced_file(path) as temporary:
                            temporary.hardlink_to(first)


def remove(folder: Path) -> None:
    """Remove a checkpoint, if it is there; a kill half-way leaves none that looks complete."""
    if folder.is_dir():
        with as_run_error(folder):
            (folder / META).unlink(missing_ok=True)
            shutil.rmtree(folder)


def clear_leftovers(folder: Path) -> None:
    """Repair what a killed process left among the checkpoints. The caller holds the lock."""
    for path in folder.glob(".*"):
        match = _LEFTOVER.fullmatch(path.name)
        if match is None:
            continue
        place = folder / match[1]
        if match[2] == "old" and not place.exists():
            path.rename(place)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _folders(folder: Path) -> list[Path]:
    folders = (path for path in folder.glob("step-*") if _NAME.fullmatch(path.name))
    return sorted(folders, key=step_of)


# --- reading -----------------------------------------------------------------------------------


def verify(folder: Path, names: Collection[str] | None = None) -> None:
    """Compare files of a checkpoint with its list; best weights may have none yet.

    Args:
        folder: The checkpoint, the best weights, or a finished model.

    Raises:
        CheckpointError: A file is missing, of another size or of other content.
    """
    files = _check_sizes(folder, names)
    with raised_as(CheckpointError, f"{folder} is damaged: ", OSError, SafetensorError):
        # Best weights that have no list yet are looked at as far as can be seen.
        for path in folder.glob("*.safetensors") if files is None else ():
            with safe_open(path, framework="pt"):
                pass
        for name, known in (files or {}).items():
            if _fingerprint(folder / name) != known:
                raise CheckpointError(
                    f"{folder / name} is damaged: its content is not what was written, by its hash "
                    f"in {folder / META}"
                )


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Return the training state."""
    _read_meta(checkpoint)
    path = checkpoint / STATE
    try:
        check_uncompressed(path)
        state = torch.load(path, weights_only=True, map_location="cpu")
        if not isinstance(state, dict):
            raise TypeError("it holds no dictionary")  # noqa: TRY301 - one of what torch raises
    except (
        OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, EOFError,
        AssertionError, struct.error, zipfile.BadZipFile, pickle.UnpicklingError,
    ) as error:  # fmt: skip
        reason = next(iter(str(error).splitlines()), "it ends too early")
        raise CheckpointError(
            f"{path} is damaged or holds more than plain values: {reason}"
        ) from error
    return state


@contextmanager
def as_checkpoint_error(checkpoint: Path) -> Iterator[None]:
    """Name the checkpoint in an error of loading its state."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"{checkpoint / STATE} does not fit this run ({type(error).__name__}: {error}); go on "
            f"with the version that wrote it, or begin a new run by init_from={checkpoint}"
        ) from error


def check_uncompressed(path: Path) -> None:
    """Refuse a compressed file, which torch never writes but reads."""
    with zipfile.ZipFile(path) as zipped:
        members = zipped.infolist()
    packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
    if packed or sum(member.file_size for member in members) > path.stat().st_size:
        raise ValueError("it is packed, which no file of torch's is")


def _read_meta(folder: Path) -> dict[str, Any]:
    try:
        meta = read_json(folder / META)
        if meta["format"] > FORMAT:
            raise _LaterFormatError(f"{folder} was written by a later version of this program")
        if type(meta["format"]) is not int:
            raise TypeError(f"format is {meta['format']!r}")  # noqa: TRY301 - as the next lines do
        if meta["files"] is not None:
            meta["files"] = {name: dict(known) for name, known in meta["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"{folder / META} is damaged: {reason}") from error
    return meta


def _best_of(checkpoint: Path) -> dict[str, Any]:
    """Return the fingerprints of the best weights that a checkpoint has taken along."""
    files = _read_meta(checkpoint)["files"] or {}
    return {name: known for name, known in files.items() if name.startswith(f"{BEST}/")}


def _check_sizes(folder: Path, names: Collection[str] | None = None) -> dict[str, Any] | None:
    """Return a checkpoint's list, of `names` alone, if all exist in their sizes; reads no file."""
    files: dict[str, Any] | None = _read_meta(folder)["files"]
    if files is not None and names is not None:
        missing = [name for name in names if name not in files]
        if missing:
            raise CheckpointError(f"{folder / META} is damaged: it does not list {missing[0]}")
        files = {name: files[name] for name in names}
    with raised_as(CheckpointError, "", OSError):
        # Looked up among the files in the folder: a hostile list could name any file.
        there = dict(_files(folder))
        for name, known in (files or {}).items():
            if name not in there:
                raise CheckpointError(f"{folder} is damaged: {name} is missing")
            size = there[name].stat().st_size
            if size != known.get("bytes"):
                raise CheckpointError(
                    f"{folder / name} is damaged: {size} bytes instead of {known.get('bytes')}"
                )
    return files


def _has_its_sizes(folder: Path, files: Mapping[str, Any] | None = None) -> bool:
    """Return whether a checkpoint has all files in their sizes; also whether it lists `files`."""
    try:
        listed_files = _check_sizes(folder)
    except _LaterFormatError:
        raise
    except CheckpointError:
        return False
    return files is None or files.items() <= (listed_files or {}).items()


def _is_whole(folder: Path, names: Collection[str] | None = None) -> bool:
    try:
        verify(folder, names)
    except CheckpointError:
        return False
    return True
