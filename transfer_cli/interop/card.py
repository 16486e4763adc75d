"""The model card of an exported model: a README.md about it and its training."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jinja2 import Environment, PackageLoader, StrictUndefined

from transfer_cli.safe_files import escaped


@dataclass(frozen=True)
class Card:
    """What a card says about a model.

    Args:
        title: Its name.
        task: What the hub calls its task, such as `text-classification`.
        what: Facts about the model, by name.
        how: Facts about its training, by name.
        measures: By split and name.
        labels: Names of the classes.
        command: Lines that were typed to train it.
        architecture: What `transformers` calls it.
        left_out: Tensors that were not written.
    """

    title: str
    task: str
    what: Mapping[str, str]
    how: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    command: Sequence[str] = ()
    architecture: str = ""
    left_out: Sequence[str] = ()


def card_text(card: Card) -> str:
    """Return the card as Markdown, with the front matter that model hubs read."""
    environment = Environment(  # noqa: S701 - Markdown, in which every value becomes `_plain`
        loader=PackageLoader("transfer_cli", "interop"),
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "json": json.dumps,
        "cell": lambda text: text.replace("|", "\\|"),
        "number": lambda value: "" if value is None else f"{value:.4g}",
    }
    names = dict.fromkeys(name for split in card.measures.values() for name in split)
    return environment.get_template("card.md").render(card=card, names=names)


def _plain(text: str) -> str:
    """Return text from a run, which may be a stranger's, as one line that ends no code block."""
    return escaped(text).replace("\n", " ").replace("```", "'''")
