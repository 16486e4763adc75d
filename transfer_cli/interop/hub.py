"""Published models by name, fetched by Hugging Face's client into its own cache."""

from functools import partial
from pathlib import Path

from transfer_cli.data.hub_client import MODEL, client
from transfer_cli.interop.files import holds_weights
from transfer_cli.runs.directory import HUB

_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json",
    "merges.txt", "added_tokens.json", "special_tokens_map.json", "adapter_config.json",
    "model.safetensors", "model.safetensors.index.json", "model-*.safetensors",
)  # fmt: skip
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin")


def fetch(name: str, key: str) -> Path:
    """Return the folder of `hf:owner/name` or `hf:owner/name@revision`, fetched at need."""
    repository, _, revision = name.removeprefix(HUB).partition("@")
    with client(MODEL, repository, key, f"has no revision {revision!r}") as library:
        get = partial(library.snapshot_download, repository, revision=revision or None)
        folder = Path(str(get(allow_patterns=[*_FILES])))
        if not holds_weights(folder):
            folder = Path(str(get(allow_patterns=[*_FILES, *_PICKLES])))
    return folder
