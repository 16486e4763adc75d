"""`transfer push`: a run, or a folder that `export` wrote, on the Hugging Face hub."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import yaml

from transfer_cli.config.schema import ExportConfig, PushConfig
from transfer_cli.errors import (
    CheckpointError,
    ConfigError,
    RunError,
    StoppedError,
    TransferError,
    pip_install,
)
from transfer_cli.metrics import without_details
from transfer_cli.runs.directory import CONFIG, MODEL, RunDirectory
from transfer_cli.runs.results import Results
from transfer_cli.safe_files import in_one_line
from transfer_cli.terminal import (
    STOP_SIGNALS,
    Column,
    Entry,
    Line,
    Page,
    Piece,
    TextTable,
    handle_signals,
    print_out,
    silent,
)

log = logging.getLogger(__name__)

CARD = "README.md"

_NAME = re.compile(r"(?!.*(--|\.\.|\.git$))\w[\w.-]*/\w([\w.-]*\w)?", re.ASCII)
_LONGEST_NAME = 96
"""What the hub takes."""

_EXPORTED = ("config.json", "adapter_config.json", "*.onnx", "*.gguf")
"""One of these is in a folder that others load."""


def push(config: PushConfig) -> None:
    """Upload what an export writes; whatever fails before, nothing is there."""
    place = Path(config.run).expanduser()
    with handle_signals(STOP_SIGNALS, _stop), TemporaryDirectory(prefix="transfer-") as temporary:
        with _hub_client(config.repository) as library:
            hub = library.HfApi()
            is_private = config.private if config.dry else _visibility(hub, config)
        folder = place
        if not _is_exported(place):
            folder = Path(temporary) / config.repository.rpartition("/")[2]
            _export(config, place, folder)
        if config.dry:
            print_out(_dry_run_page(config, folder))
            return
        with _hub_client(config.repository):
            hub.create_repo(config.repository, private=config.private, exist_ok=True)
            commit = hub.upload_folder(
                repo_id=config.repository, folder_path=folder, commit_message="Push by transfer"
            )
    kind = "private" if is_private else "public"
    facts = {"pushed": commit.commit_url, "visibility": kind, "card": "fill in its license there"}
    print_out(Page(*(_entry(name, text) for name, text in facts.items())))


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError("stopped before it was pushed")


@contextmanager
def _hub_client(repository: str) -> Iterator[Any]:
    """Yield the hub's client, of whose errors each becomes one line."""
    if not _NAME.fullmatch(repository) or len(repository) > _LONGEST_NAME:
        raise ConfigError(
            f"repository: {repository!r} is no name; expected owner/name, of letters, digits and "
            "single - _ ."
        )
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise ConfigError(
            f"repository: a push needs the package huggingface_hub: {pip_install('hf')}"
        ) from error
    try:
        yield huggingface_hub
    except TransferError:
        raise
    except Exception as error:  # the libraries below the client raise errors of many kinds
        status = getattr(getattr(error, "response", None), "status_code", None)
        first = next(filter(None, str(error).splitlines()), type(error).__name__)
        cause = f"cannot be pushed to: {in_one_line(first)}"
        if status == 401 or isinstance(error, errors.LocalTokenNotFoundError):
            cause = "needs a token that the hub knows: type `hf auth login`, or set HF_TOKEN"
        elif status == 403:
            cause = (
                "may not be written to by this token: it needs the right to write, and the owner "
                "has to be you or an organization of yours"
            )
        elif isinstance(error, errors.OfflineModeIsEnabled):
            cause = "needs the network, and HF_HUB_OFFLINE is set"
        raise RunError(f"repository: {repository} {cause}") from error


def _visibility(api: Any, config: PushConfig) -> bool:
    """Return whether the repository is private, or will be; refuse a token before all work."""
    from huggingface_hub.errors import RepositoryNotFoundError

    api.whoami()
    try:
        is_private = bool(api.repo_info(config.repository).private)
    except RepositoryNotFoundError:
        return config.private
    if config.private and not is_private:
        raise ConfigError(
            f"private: {config.repository} is there already, and public; give private=false to "
            "push to it, or another name"
        )
    return is_private


# --- what goes there ---------------------------------------------------------------------------


def _is_exported(place: Path) -> bool:
    is_run = (place / CONFIG).exists() or (place / "model.json").exists()
    return not is_run and any(any(place.glob(pattern)) for pattern in _EXPORTED)


def _export(config: PushConfig, place: Path, folder: Path) -> None:
    """Export a run, its measures as `model-index` in the head of its card."""
    from transfer_cli.commands.export.export import export  # torch: a wrong name needs none

    try:
        with silent():
            export(ExportConfig(run=config.run, to=str(folder), base=config.base))
    except CheckpointError as error:
        # Its cures are keys of `export`, which are none here.
        raise CheckpointError(f"{error}; push takes what `transfer export` writes, too") from error
    run = RunDirectory(place.parent if place.name == MODEL else place)
    try:
        results = Results.read(run.results)
    except (OSError, ValueError):
        results = Results()
        log.warning("run: %s has no results, so the card will name no measures", place)
    if results.failed:
        log.warning("run: %s has learnt next to nothing: %s", place, in_one_line(results.failed))
    card = (folder / CARD).read_text(encoding="utf-8")
    name = json.dumps(folder.name)
    card = re.sub(
        r"(?s)^```python\n.*?^```",
        lambda code: code[0].replace(name, json.dumps(config.repository)),
        card,
        flags=re.MULTILINE,
    )
    if index := _model_index(results, folder.name, card):
        head, end, rest = card.partition("\n---\n")
        card = (
            f"{head}\n{yaml.safe_dump(index, sort_keys=False, allow_unicode=True)}{end[1:]}{rest}"
        )
    (folder / CARD).write_text(card, encoding="utf-8")


def _model_index(results: Results, name: str, card: str) -> dict[str, Any]:
    """Return the measures of a run as the hub lists them; {} where there are none."""
    task = yaml.safe_load(card.split("\n---\n")[0]).get("pipeline_tag", "other")
    data = results.presets.get("data", "data")
    units = {metric.name: f"{metric.name} ({metric.unit})" for metric in results.metrics}
    splits = [
        {
            "task": {"type": task},
            "dataset": {"name": data, "type": data, "split": split},
            "metrics": [
                {"type": measure, "name": units.get(measure, measure), "value": float(value)}
                for measure, value in without_details(measures).items()
                if f"{split}/{measure}" in results.by_name
            ],
        }
        for split, measures in results.measures.items()
    ]
    measured = [split for split in splits if split["metrics"]]
    return {"model-index": [{"name": name, "results": measured}]} if measured else {}


# --- what is said ------------------------------------------------------------------------------


def _dry_run_page(config: PushConfig, folder: Path) -> Page:
    """Return what would go, where to, and who would see it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    rows = [[path.relative_to(folder).as_posix(), f"{path.stat().st_size:,}"] for path in files]
    card = folder / CARD
    head = card.read_text(encoding="utf-8").split("\n---\n")[0] if card.exists() else "no card"
    kind = "private" if config.private else "public"
    return Page(
        _entry("would go to", f"{config.repository}, {kind}; nothing was sent"),
        TextTable([Column("file"), Column("bytes", right=True)], rows),
        *(Line(f"  {line}") for line in head.splitlines()),
    )


def _entry(name: str, text: str) -> Entry:
    return Entry([Piece(f"  {name}", "name")], [text], 14)
