"""What a server takes and gives, as the page and other programs are told."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import transfer_cli
from transfer_cli.tasks.base import WARNING, Task

_STRING = {"type": "string"}
_STRINGS = {"type": "array", "items": _STRING}


class Input(NamedTuple):
    """A text that people give; several where `is_list`."""

    name: str
    title: str
    is_list: bool = False
    is_needed: bool = True


INPUTS = {
    "choice": (
        Input("context", "Context"),
        Input("question", "Question", is_needed=False),
        Input("choices", "Choices", is_list=True),
    ),
    "dialog": (
        Input("personality", "Personality", is_list=True, is_needed=False),
        Input("history", "What was said", is_list=True),
        Input("candidates", "Replies to choose from", is_list=True),
    ),
    "span": (Input("question", "Question"), Input("context", "Text")),
    "tagging": (Input("text", "Text"),),
    "text to text": (Input("text", "Text"),),
    "generate": (Input("prompt", "Text to go on with"),),
}
"""By kind of task, where these are not a text and perhaps a second one."""

_TEXTS = (Input("text", "Text"), Input("pair", "Second text", is_needed=False))

OF_GENERATE: Mapping[str, Mapping[str, Any]] = {
    "max_tokens": {"type": "integer"},
    "temperature": {"type": "number"},
    "top_k": {"type": "integer"},
    "top_p": {"type": "number"},
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_STRING, _STRINGS]},
}
"""The keys of `transfer generate` that a request may have."""

_ERRORS = {
    "400": "no JSON", "401": "no token, or another one", "403": "a page of another site",
    "404": "no such model, or one that cannot do this", "413": "too many bytes",
    "422": "a text or a key that cannot be", "429": "too many texts wait", "500": "a fault",
    "503": "it is being stopped", "504": "no answer in time",
}  # fmt: skip


def inputs_of(task: Task | None, abilities: Collection[str] = ()) -> tuple[Input, ...]:
    """Return what people give a model."""
    is_writer = task is None and "generate" in abilities
    return INPUTS.get("generate" if is_writer else "" if task is None else task.name, _TEXTS)


def openapi(tasks: Mapping[str, Task | None]) -> dict[str, Any]:
    """Return the interface of models, given their tasks by their names, as OpenAPI 3.1 has it."""
    kinds = {task.name: task for task in tasks.values() if task is not None}
    model = _STRING | {"enum": [*tasks], "default": next(iter(tasks))}
    columns = [
        _object(
            name,
            {given.name: _schema(given) for given in inputs_of(task)},
            [given.name for given in inputs_of(task) if given.is_needed],
        )
        for name, task in kinds.items()
    ]
    text = {
        "description": "A text, a pair of texts, or an object with what the task reads.",
        "anyOf": [_STRING, _STRINGS | {"minItems": 1, "maxItems": 2}, *columns, {"type": "object"}],
    }
    texts = _object("texts", {"texts": _array(text), "model": model}, ["texts"])
    answers = [
        _object(name, {field: {} for field in (*task.fields, WARNING)}, task.fields)
        for name, task in kinds.items()
    ]
    asked = {"prompt": _STRING, "model": model, "stream": {"type": "boolean"}, **OF_GENERATE}
    made = {"text": _STRING, "tokens": {"type": "integer"}, "ended": _STRING}
    vectors = _array(_array({"type": "number"}))
    of_model = {"parameters": [{"name": "model", "in": "query", "schema": model}]}
    posts = {
        "/predict": (texts, {"predictions": _array({"anyOf": answers or [{"type": "object"}]})}),
        "/embed": (texts, {"vectors": vectors}),
        "/generate": (_object("prompt", asked, ["prompt"]), made),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "transfer", "version": transfer_cli.__version__},
        "paths": {
            **{path: {"post": {"requestBody": {"required": True, **_content(body)},
                               **_answers(path, answer)}}
               for path, (body, answer) in posts.items()},
            "/labels": {"get": {**of_model, **_answers("what a model answers", {})}},
            "/health": {"get": _answers("whether it answers", {"status": _STRING})},
        },
    }  # fmt: skip


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _schema(given: Input) -> dict[str, Any]:
    return {"title": given.title, **(_STRINGS if given.is_list else _STRING)}


def _object(title: str, properties: Mapping[str, Any], needed: Iterable[str]) -> dict[str, Any]:
    return {"title": title, "type": "object", "properties": properties, "required": [*needed]}


def _content(schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema}}}


def _answers(summary: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    errors = {
        code: {"description": why, **_content(_object("error", {"error": _STRING}, ["error"]))}
        for code, why in _ERRORS.items()
    }
    answer = _content(_object(summary, properties, properties))
    return {
        "summary": summary,
        "responses": {"200": {"description": "its answer", **answer}} | errors,
    }
