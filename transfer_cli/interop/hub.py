"""Published models by name, fetched by Hugging Face's client into its own cache."""

from functools import partial
from pathlib import Path

from transfer_cli.errors import CheckpointError, ConfigError, pip_install
from transfer_cli.interop.files import holds_weights
from transfer_cli.runs.directory import HUB

_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
    "merges.txt", "added_tokens.json", "model.safetensors", "model.safetensors.index.json",
    "model-*.safetensors",
)  # fmt: skip
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")


def fetch(name: str, key: str) -> Path:
    """Return the folder of `hf:owner/name` or `hf:owner/name@revision`, fetched at need.

    Raises:
        ConfigError: The client is not installed.
        CheckpointError: There is no such model, or no network to ask.
    """
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            GatedRepoError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
            RevisionNotFoundError,
        )
    except ImportError as error:
        raise ConfigError(
            f"{key}: {name} needs the package huggingface_hub; install it with "
            f"{pip_install('hf')}, or give a folder"
        ) from error
    repository, _, revision = name.removeprefix(HUB).partition("@")
    get = partial(snapshot_download, repository, revision=revision or None)
    try:
        folder = Path(str(get(allow_patterns=[*_FILES])))
        if not holds_weights(folder):
            folder = Path(str(get(allow_patterns=[*_FILES, *_PICKLES])))
    except Exception as error:
        problems = {
            HFValidationError: f"{name!r} is no name of a model; expected hf:owner/name",
            RevisionNotFoundError: f"{repository} has no revision {revision!r}",
            GatedRepoError: f"{repository} is for those who have agreed to its terms; agree on its "
            "page and log in with `hf auth login`",
            RepositoryNotFoundError: f"there is no model {repository!r}, or it is private "
            "(`hf auth login`)",
            LocalEntryNotFoundError: f"{repository} is not in the cache, and its server cannot be "
            "reached; check the network, or fetch the folder elsewhere and give its path",
            # The libraries below the client raise errors of many kinds.
            Exception: f"{repository} cannot be fetched: {error}",
        }
        problem = next(said for kind, said in problems.items() if isinstance(error, kind))
        raise CheckpointError(f"{key}: {problem}") from error
    return folder
