"""The model card that goes along with a written model: a README.md of what is known of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from transfer_cli.safe_files import escaped


@dataclass(frozen=True)
class Card:
    """What is known of a model.

    Args:
        title: What it is called.
        task: `text-classification`, `text-generation`, `fill-mask` or `feature-extraction`.
        what: TaskInfo about the model, by name.
        how: TaskInfo about its training, by name.
        measures: By split and name.
        labels: Names of the classes.
        command: What was typed to train it, word by word.
        usage: Lines of Python that use it.
        left_out: Tensors that did not come along.
    """

    title: str
    task: str
    what: Mapping[str, str]
    how: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    labels: Sequence[str] = ()
    command: Sequence[str] = ()
    usage: Sequence[str] = ()
    left_out: Sequence[str] = ()


def card_text(card: Card) -> str:
    """Return the card as Markdown, with the front matter that model hubs read."""
    parts = [_front(card), f"# {_plain(card.title)}\n", _table(card.what)]
    if card.labels:
        labels = ", ".join(f"`{_plain(label)}`" for label in card.labels)
        parts.append(f"Labels: {labels}\n")
    parts += ["## Use\n", _code("python", card.usage)]
    if card.how:
        parts += ["## Training\n", _table(card.how)]
    if card.command:
        parts.append(_code("console", card.command))
    if card.measures:
        parts += ["## Measures\n", _measures(card.measures)]
    if card.left_out:
        names = "\n".join(f"- `{_plain(name)}`" for name in card.left_out)
        parts += [
            "## Left out\n",
            f"Tensors that this kind of model has no place for:\n\n{names}\n",
        ]
    parts.append(
        "## License, limits\n\nTo be filled in by whoever publishes this model: the license (also "
        "above), the license of the data, what the model is for and what it is not for, whom its "
        "mistakes could harm.\n"
    )
    return "\n".join(parts)


def _front(card: Card) -> str:
    # JSON texts are YAML texts.
    lines = [
        "---",
        "license: other   # fill in",
        "license_name: unknown   # fill in",
        "language: []   # fill in",
        f"pipeline_tag: {card.task}",
        "library_name: transformers",
        "tags:",
        *(f"- {json.dumps(tag)}" for tag in ("transfer-cli", card.task)),
        "---",
        "",
    ]
    return "\n".join(lines)


def _table(facts: Mapping[str, str]) -> str:
    rows = "\n".join(f"| {_cell(name)} | {_cell(value)} |" for name, value in facts.items())
    return f"| | |\n|---|---|\n{rows}\n"


def _measures(found: Mapping[str, Mapping[str, float]]) -> str:
    names = list(dict.fromkeys(name for split in found.values() for name in split))
    head = " | ".join(_cell(split) for split in found)
    rows = "\n".join(
        f"| {_cell(name)} | "
        + " | ".join(_number(split.get(name)) for split in found.values())
        + " |"
        for name in names
    )
    return f"| measure | {head} |\n|---|{'---|' * len(found)}\n{rows}\n"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _code(language: str, lines: Sequence[str]) -> str:
    return f"```{language}\n" + "\n".join(_plain(line) for line in lines) + "\n```\n"


def _cell(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    """Return text from a run, which may be a stranger's, as one line that ends no code block."""
    return escaped(" ".join(text.split(" "))).replace("\n", " ").replace("```", "'''")
