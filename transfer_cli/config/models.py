"""Published models by short names, as `conf/models.yaml` lists them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from os.path import lexists

from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.plain_yaml import read_mapping
from transfer_cli.errors import ConfigError


@dataclass(frozen=True)
class ListedModel:
    """A published model that has a short name.

    Args:
        hub: Its name on the hub, `owner/name`.
        revision: The commit there.
        size: How many parameters it has, rounded.
        sha256: The digest of its `model.safetensors`; None where nobody has computed it.
        quick_seconds: CPU time of `experiment=quick`; None where it was not measured.
    """

    name: str
    hub: str
    revision: str
    kind: str
    size: str
    languages: str
    licence: str
    sha256: str | None = None
    quick_seconds: float | None = None

    @property
    def place(self) -> str:
        """What `init_from` takes in place of the short name."""
        return f"hf:{self.hub}@{self.revision}"


@cache
def listed_models() -> Mapping[str, ListedModel]:
    """Return all models of the list by their short names."""
    rows = read_mapping(conf_dir() / "models.yaml")
    return {name: ListedModel(name, **row) for name, row in rows.items()}


def expand_short_name(given: str) -> str:
    """Return what names a model, the place on the hub for a short name.

    A file or folder of that name comes first.
    """
    model = listed_models().get(given)
    return given if model is None or lexists(given) else model.place


def check_init_from(init_from: str | None, init: str) -> None:
    """Refuse to adapt nothing: a fine-tuning begins with a model."""
    if init_from is None and init != "scratch":
        raise ConfigError(
            "init_from: needs a model to begin with: a run (init_from=runs/pretrain/...), the "
            "folder of a published model, hf:owner/name, or a short name of `transfer presets "
            "models`; to train a fresh one, give init=scratch, model= and tokenizer="
        )
