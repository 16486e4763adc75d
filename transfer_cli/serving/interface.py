"""What a server takes and gives, as the page and other programs are told."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import transfer_cli
from transfer_cli.config.bounded_yaml import PARSER
from transfer_cli.tasks.base import Task


class InputField(NamedTuple):
    """A text that people give; several where `is_list`."""

    name: str
    title: str
    is_list: bool = False
    is_needed: bool = True


_TEXT = InputField("text", "Text")
_INPUTS = {
    "choice": (
        InputField("context", "Context"),
        InputField("question", "Question", is_needed=False),
        InputField("choices", "Choices", is_list=True),
    ),
    "dialog": (
        InputField("personality", "Personality", is_list=True, is_needed=False),
        InputField("history", "What was said", is_list=True),
        InputField("candidates", "Replies to choose from", is_list=True),
    ),
    "span": (InputField("question", "Question"), InputField("context", "Text")),
    "tagging": (_TEXT,),
    "text to text": (_TEXT,),
}
"""By kind of task, where these are not a text and perhaps a second one."""


def input_fields(task: Task | None, abilities: Collection[str]) -> tuple[InputField, ...]:
    """Return what people give a model."""
    if task is None and "generate" in abilities:
        return (InputField("prompt", "Text to go on with"),)
    pair = InputField("pair", "Second text", is_needed=False)
    return _INPUTS.get("" if task is None else task.name, (_TEXT, pair))


def openapi(models: Sequence[str]) -> dict[str, Any]:
    """Return the interface of models as OpenAPI has it; the first is the default."""
    text = Path(__file__).with_name("openapi.yaml").read_text(encoding="utf-8")
    document: dict[str, Any] = PARSER(text).get_single_data()
    document["info"]["version"] = transfer_cli.__version__
    document["components"]["schemas"]["Model"] |= {"enum": [*models], "default": models[0]}
    return document


def request_keys(document: dict[str, Any], path: str) -> Collection[str]:
    """Return the keys that a request may have."""
    content = document["paths"][path]["post"]["requestBody"]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    keys: dict[str, Any] = document["components"]["schemas"][name]["properties"]
    return keys
