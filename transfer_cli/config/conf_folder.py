"""Where the configs are that come with the package."""

from pathlib import Path

import transfer_cli
from transfer_cli.errors import ConfigError


def conf_dir() -> Path:
    """Return the absolute path of the folder with the configs that come with the package."""
    package = Path(transfer_cli.__file__).resolve().parent
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "pretrain.yaml").is_file():
            return folder
    raise ConfigError(
        f"the configs are neither in {package / 'conf'} nor in {package.parent / 'conf'}; "
        "install the package again"
    )
