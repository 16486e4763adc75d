"""A model to start from: what `init_from` names."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from transfer_cli.commands.choices import typed_overrides
from transfer_cli.config.build import build
from transfer_cli.data.tokenizer import FromFile, Tokenizer, TokenizerRecipe
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.model.weights import ModelDescription, read_description
from transfer_cli.runs.directory import TOKENIZER, find_model


@dataclass(frozen=True)
class Pretrained:
    """What `init_from` names: a model to start from.

    Args:
        weights: The folder with its weights.
        description: What must be known to build it.
        tokenizer: The one that it was trained with.
    """

    weights: Path
    description: ModelDescription
    tokenizer: Tokenizer


def open_pretrained(path: str, key: str = "init_from") -> Pretrained:
    """Return the model at `path`, without its weights; `key` is the config key that named it.

    Raises:
        CheckpointError: There is none, it is unfinished, or its parts do not belong together.
    """
    weights, folder = find_model(Path(path).expanduser(), key)
    description = read_description(folder)
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    if tokenizer.hash != description.tokenizer_hash or tokenizer.size != description.vocabulary:
        raise CheckpointError(
            f"{key}: {folder / TOKENIZER} is not the tokenizer that this model was trained with; "
            "put the original back"
        )
    return Pretrained(weights, description, tokenizer)


def start_of(config: DictConfig) -> Pretrained | None:
    """Return the model that `init_from` names; None when it names none.

    Raises:
        ConfigError: Another model or tokenizer was typed beside it.
        CheckpointError: There is no such model.
    """
    if config.init_from is None:
        return None
    for typed in typed_overrides():
        key = typed.lstrip("+~").partition("=")[0]
        part = key.partition(".")[0]
        # A tokenizer from a file is compared with the model's own.
        from_file = typed == "tokenizer=file" or key == "tokenizer.path"
        takes_none = typed.startswith("~") or typed.endswith("=null")
        if part in ("model", "tokenizer") and not from_file and not takes_none:
            raise ConfigError(f"{typed}: init_from brings its own {part}; leave {key}= out")
    return open_pretrained(config.init_from)


def own_tokenizer(config: DictConfig, start: Pretrained) -> Tokenizer:
    """Return the pretrained model's tokenizer.

    Raises:
        CheckpointError: The config asks for the tokenizer of a file, and it is another one.
    """
    if config.tokenizer is not None:
        recipe = build(config.tokenizer, "tokenizer", TokenizerRecipe)
        if (
            isinstance(recipe, FromFile)
            and recipe.make(lambda: iter(())).hash != start.tokenizer.hash
        ):
            raise CheckpointError(
                "init_from: that model was trained with another tokenizer than tokenizer.path; "
                "leave tokenizer= out to use the model's own"
            )
    return start.tokenizer
