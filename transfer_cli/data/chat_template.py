"""A chat template: how a conversation becomes one text, and which parts of that the model says.

Templates are programs in Jinja that come with tokenizers. They run apart, see `chat_sandbox`.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from transfer_cli.data.tokenizer import Tokenizer
from transfer_cli.errors import DataError
from transfer_cli.safe_files import in_one_line

Message = Mapping[str, Any]
"""A turn: its `role`, its `content`, and what else templates know, such as `tool_calls`."""

ASSISTANT = "assistant"
"""The role of the model."""

CHATML = "chatml"
"""The name of the template that any model can learn."""

CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")

_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

MAX_TEMPLATE_BYTES = 2**18
"""Of a file. The longest in use have 20 KB."""

MAX_SECONDS = 5
"""Of a processor, for one conversation."""

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Stand around what the model says; they are no characters, and no text holds them."""

_HOLDS_MARK = re.compile(f"[{_BEGIN}{_END}]").search

_SANDBOX = "transfer_cli.data.chat_sandbox"

Span = tuple[int, int]
"""The first character and the one behind the last."""


@dataclass(frozen=True)
class Rendered:
    """A conversation as one text, and the spans that a template marks as said by the model."""

    text: str
    marked: tuple[Span, ...] = ()


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and what it is given beside a conversation.

    Args:
        source: In Jinja.
        tokens: The names of special tokens by what templates call them, such as `eos_token`.
        end: The name of the token that ends what the model says, see `with_end_token`.
        where: What to call it in messages.
    """

    source: str
    tokens: Mapping[str, str | None] = field(default_factory=dict)
    end: str = ""
    where: str = "the chat template"

    @contextmanager
    def open_renderer(self) -> Iterator["Renderer"]:
        """Start its process, which ends with the context."""
        command = [sys.executable, "-m", _SANDBOX]
        places = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"}
        with subprocess.Popen(  # noqa: S603 - our own command
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, **places},
        ) as process:  # fmt: skip
            try:
                yield Renderer(self, process)
            finally:
                process.kill()


class Renderer:
    """Renders conversations by the process of a template; what that refuses is a `DataError`."""

    def __init__(self, template: ChatTemplate, process: "subprocess.Popen[bytes]") -> None:
        self._where, self._process = template.where, process
        first = {"source": template.source, "tokens": dict(template.tokens)}
        self._write({**first, "marks": _BEGIN + _END, "seconds": MAX_SECONDS})

    def __call__(
        self,
        messages: Sequence[Message],
        tools: Sequence[Any] | None = None,
        *,
        add_generation_prompt: bool = False,
    ) -> Rendered:
        """Return a conversation as one text.

        Args:
            tools: What a model can call, as JSON describes it; None: nothing.
            add_generation_prompt: Whether the text ends with what opens the model's next turn.
        """
        if _HOLDS_MARK(json.dumps(messages, ensure_ascii=False)):
            raise DataError("a message holds U+FDD0 or U+FDD1, which are no characters")
        answer = self._request(
            {"messages": [*messages], "tools": tools, "documents": None,
             "add_generation_prompt": add_generation_prompt}
        )  # fmt: skip
        if "error" in answer:
            raise DataError(f"{self._where}: {in_one_line(answer['error'])[:300]}")
        parts, marked, begun = list[str](), list[Span](), 0
        size = 0
        for part in re.split(f"([{_BEGIN}{_END}])", answer["text"]):
            if part == _BEGIN:
                begun = size
            elif part == _END:
                marked.append((begun, size))
            else:
                parts.append(part)
                size += len(part)
        return Rendered("".join(parts), tuple(marked))

    def _request(self, conversation: Mapping[str, Any]) -> dict[str, str]:
        answer, output = b"", self._process.stdout
        with suppress(BrokenPipeError):
            self._write(conversation)
            answer = output.readline() if output is not None else b""
        if not answer:
            code = self._process.wait()
            if code not in (-signal.SIGXCPU, -signal.SIGKILL):
                raise DataError(f"{self._where} cannot be run: its process ended with {code}")
            raise DataError(f"{self._where} takes more than {MAX_SECONDS} seconds")
        reply: dict[str, str] = json.loads(answer)
        return reply

    def _write(self, values: Mapping[str, Any]) -> None:
        if self._process.stdin is not None:
            line = f"{json.dumps(values, ensure_ascii=False)}\n"
            self._process.stdin.write(line.encode("utf-8", "replace"))
            self._process.stdin.flush()


def chatml() -> ChatTemplate:
    """Return the template of ChatML: each turn between `CHATML_TOKENS`, its role before it."""
    return ChatTemplate(_CHATML, {"eos_token": CHATML_TOKENS[1]}, where=CHATML)


def render_with_spans(
    render: Renderer, messages: Sequence[Message], tools: Sequence[Any] | None
) -> tuple[str, list[Span]]:
    """Return a conversation as one text, and the spans of what the model says in it.

    They are as the template marks them. Where it does not, they lie between the conversation up to
    a turn of the model, with what asks for that turn, and the one with it.
    """
    whole = render(messages, tools)
    if whole.marked:
        return whole.text, [*whole.marked]
    spans = []
    for at, message in enumerate(messages):
        if message["role"] != ASSISTANT:
            continue
        before = render(messages[:at], tools, add_generation_prompt=True).text
        begin = _common_prefix_length(before, whole.text)
        # It may ask by more than it writes later, such as a tag of thoughts.
        least = len(before) if begin == len(before) else len(render(messages[:at], tools).text)
        after = render(messages[: at + 1], tools).text
        end = _common_prefix_length(after, whole.text)
        # Behind the last turn it may write something more.
        answer = str(message["content"]).strip() if end < len(after) else ""
        if begin < least or end < begin or answer not in whole.text[begin:end]:
            raise DataError(
                f"turn {at + 1} is written otherwise where other turns follow, so that what the "
                "model says cannot be found; mark it by {% generation %} in a template of your own "
                "(tokenizer.chat_template=FILE)"
            )
        spans.append((begin, end))
    return whole.text, spans


def _common_prefix_length(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    if other.startswith(one):
        return len(one)
    return next(at for at, letter in enumerate(one) if other[at : at + 1] != letter)


def with_end_token(template: ChatTemplate, tokenizer: Tokenizer) -> ChatTemplate:
    """Return a template that knows which token ends what the model says, and those of texts.

    The former is the first special one behind an answer; where the template writes none, it is the
    latter.
    """
    answer = "an answer"
    turns = [{"role": "user", "content": "a"}, {"role": ASSISTANT, "content": answer}]
    first, last = tokenizer.pieces([tokenizer.document_start, tokenizer.sep])
    named = {"bos_token": first, "eos_token": last, **template.tokens}
    template = replace(template, tokens=named)
    with template.open_renderer() as render:
        text, spans = render_with_spans(render, turns, None)
    [(tokens, starts)] = tokenizer.encode_marked([text])
    end = text.find(answer, spans[-1][0]) + len(answer)
    behind = (token for token, start in zip(tokens, starts, strict=True) if start >= end)
    special = (token for token in behind if _is_special(token, tokenizer))
    [name] = tokenizer.pieces([next(special, tokenizer.sep)])
    return replace(template, end=name)


def _is_special(token: int, tokenizer: Tokenizer) -> bool:
    """Return whether a text is read as a token only where it comes from a template."""
    [piece] = tokenizer.pieces([token])
    return tokenizer.encode(piece) != [token] and tokenizer.encode_marked([piece])[0][0] == [token]
