"""What the Hugging Face hub has, fetched by its client into its own cache, and used from there.

Of a data set the hub itself makes Parquet files, whatever it was uploaded as, on a branch of their
own: `CONFIG/SPLIT/0000.parquet` and so on.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transfer_cli.errors import (
    CheckpointError,
    ConfigError,
    DataError,
    TransferError,
    did_you_mean,
    list_names,
    pip_install,
)
from transfer_cli.runs.directory import HUB

_PARQUET_BRANCH = {"repo_type": "dataset", "revision": "refs/convert/parquet"}
_DEFAULT_CONFIG = "default"
_MOST_LISTED = 20


@dataclass(frozen=True)
class RepositoryKind:
    """Something that the hub has.

    Args:
        noun: What people call it.
        name_form: How its name is typed.
        offline_cure: What to do without a network.
        error: What is raised if it cannot be had.
    """

    noun: str
    name_form: str
    offline_cure: str
    error: type[TransferError]


MODEL = RepositoryKind(
    "model", "hf:owner/name", "fetch the folder elsewhere and give its path", CheckpointError
)
DATA_SET = RepositoryKind(
    "data set", "owner/name", "fetch its files elsewhere and give their paths", DataError
)


@contextmanager
def client(kind: RepositoryKind, repository: str, key: str, no_revision: str) -> Iterator[Any]:
    """Yield the hub's client, whose errors become one line, `no_revision` for a lack of that."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ConfigError(
            f"{key}: {repository} needs the package huggingface_hub; install it with "
            f"{pip_install('hf')}, or {kind.offline_cure}"
        ) from error
    try:
        yield huggingface_hub
    except TransferError:
        raise
    except Exception as error:
        problems = {
            errors.HFValidationError: f"{repository!r} is no name of a {kind.noun}; expected "
            f"{kind.name_form}",
            errors.RevisionNotFoundError: f"{repository} {no_revision}",
            errors.GatedRepoError: f"{repository} is for those who have agreed to its terms; agree "
            "on its page and log in with `hf auth login`",
            errors.RepositoryNotFoundError: f"there is no {kind.noun} {repository!r}, or it is "
            "private (`hf auth login`)",
            errors.LocalEntryNotFoundError: f"{repository} is not in the cache, and its server "
            f"cannot be reached; check the network, or {kind.offline_cure}",
            # The libraries below the client raise errors of many kinds.
            Exception: f"{repository} cannot be fetched: {error}",
        }
        problem = next(text for kind, text in problems.items() if isinstance(error, kind))
        raise kind.error(f"{key}: {problem}") from error


def resolve_path(path: str) -> Path:
    """Return the path of a file; that of a split of a data set of the hub, which is a folder.

    Such a split is `hf:owner/name/split`, of a data set of several tables
    `hf:owner/name/config/split`. It is fetched at need.
    """
    if not path.startswith(HUB):
        return Path(path).expanduser()
    parts = path.removeprefix(HUB).split("/")
    if len(parts) not in (3, 4) or not all(parts):
        raise DataError(f"{path}: expected {HUB}owner/name/split or {HUB}owner/name/config/split")
    owner, name, *config, split = parts
    none_made = (
        "has no Parquet files, which the hub makes of public data sets alone; fetch its files and "
        "say data=table data.train=FILE"
    )
    with client(DATA_SET, f"{owner}/{name}", path, none_made) as library:
        files, is_online = _files(library, f"{owner}/{name}")
        splits = _splits(files)
        table = _config(path, config[0] if config else None, splits)
        if split not in splits[table]:
            raise DataError(
                f"{path}: there is no split {split!r}, but "
                f"{list_names(splits[table], _MOST_LISTED)}.{did_you_mean(split, splits[table])}"
            )
        folder = library.snapshot_download(
            f"{owner}/{name}",
            allow_patterns=[f"{table}/{split}/*.parquet"],
            local_files_only=not is_online,
            **_PARQUET_BRANCH,
        )
    return Path(str(folder)) / table / split


def _config(path: str, named: str | None, splits: Mapping[str, Sequence[str]]) -> str:
    """Return the config that is meant: the one that is named, the only one, or the default."""
    name = named or (next(iter(splits)) if len(splits) == 1 else _DEFAULT_CONFIG)
    if name in splits:
        return name
    there = list_names(splits, _MOST_LISTED) or "none"
    if named is None:
        raise DataError(f"{path}: it has the configs {there}; name one (data=hub: data.config=)")
    hint = did_you_mean(named, splits)
    raise DataError(f"{path}: there is no config {named!r}, but {there}.{hint}")


def _splits(files: list[str]) -> dict[str, list[str]]:
    """Return the splits of each config, in order."""
    splits: dict[str, list[str]] = {}
    for file in sorted(files):
        config, _, rest = file.partition("/")
        split, _, name = rest.partition("/")
        if name.endswith(".parquet") and split not in splits.setdefault(config, []):
            splits[config].append(split)
    return splits


def _files(library: Any, name: str) -> tuple[list[str], bool]:
    """Return the files of a data set on the hub, or without a network in the cache; and which."""
    errors = library.errors
    try:
        return list(library.HfApi().list_repo_files(name, **_PARQUET_BRANCH)), True
    except (
        errors.HFValidationError, errors.RepositoryNotFoundError, errors.RevisionNotFoundError
    ):  # fmt: skip
        raise
    except Exception:  # of the many kinds that the libraries below raise without a network
        folder = Path(
            library.snapshot_download(
                name, local_files_only=True, allow_patterns=["-"], **_PARQUET_BRANCH
            )
        )
        return [path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")], False
