"""Conversations as data have them: roles and contents, ShareGPT's turns, or Alpaca's columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from transfer_cli.data.chat_template import ASSISTANT, Message
from transfer_cli.data.records import Record, json_kind, text_of, value_of
from transfer_cli.errors import DataError, did_you_mean, list_names

_ROLES = {
    **{role: role for role in ("system", "developer", "user", ASSISTANT, "tool", "function")},
    "human": "user", "gpt": ASSISTANT, "observation": "tool", "function_response": "tool",
    "function_call": ASSISTANT,
}  # fmt: skip
"""What data call a speaker -> what templates do."""


@dataclass(frozen=True, slots=True)  # there may be millions
class ChatExample:
    """A conversation, with what the model can call in it."""

    messages: Sequence[Message]
    tools: Sequence[Any] | None = None
    line: int | None = None
    file: str | None = None

    def answered(self) -> "ChatExample":
        """Return it up to the last answer of the model; without one, without turns."""
        turns = [*self.messages]
        while turns and turns[-1]["role"] != ASSISTANT:
            turns.pop()
        return replace(self, messages=turns)

    def unanswered(self) -> "ChatExample":
        """Return it without the answers at its end."""
        turns = [*self.messages]
        while turns and turns[-1]["role"] == ASSISTANT:
            turns.pop()
        return replace(self, messages=turns)

    def with_system(self, system: str | None) -> "ChatExample":
        """Return it with a system text before it, unless it has one."""
        if system is None or (self.messages and self.messages[0]["role"] == "system"):
            return self
        return replace(self, messages=[{"role": "system", "content": system}, *self.messages])

    @property
    def place(self) -> str:
        """The file, where that is one of several, and the line, for messages."""
        file = "" if self.file is None else f"{self.file}, "
        return "" if self.line is None else f"{file}line {self.line}: "


def parse_messages(turns: object, where: str) -> list[Message]:
    """Return the turns of a conversation as templates take them.

    Args:
        turns: Objects with `role` and `content`, or `from` and `value`; what else there is stays.
    """
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise DataError(f"{where} is {json_kind(turns)}, expected a list of turns.")
    return [_message(turn, f"{where}, turn {at}") for at, turn in enumerate(turns, 1)]


def _message(turn: object, where: str) -> Message:
    if not isinstance(turn, Mapping):
        raise DataError(f"{where} is {json_kind(turn)}, expected an object with role and content.")
    role, content = ("from", "value") if "from" in turn else ("role", "content")
    speaker = turn.get(role)
    if speaker not in _ROLES:
        raise DataError(
            f"{where}: {role!r} is {speaker!r:.40}, expected one of "
            f"{list_names(_ROLES, len(_ROLES))}.{did_you_mean(str(speaker), _ROLES)}",
            "unknown role",
        )
    text = turn.get(content)
    if isinstance(text, Sequence) and not isinstance(text, str):
        text = "".join(_part(part, where) for part in text)
    has_calls = bool(turn.get("tool_calls"))
    if text is not None or not has_calls:
        text = text_of(Record(0, {content: text}), content, where).removeprefix("\ufeff")
        if not text.strip() and not has_calls:
            raise DataError(f"{where}: {content!r} is empty.", "empty turn")
    rest = {name: value for name, value in turn.items() if name not in (role, content)}
    return {"role": _ROLES[speaker], "content": text, **rest}


def _part(part: object, where: str) -> str:
    """Return a part of a content; only texts can be read."""
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise DataError(f"{where}: a part of its content is no text.")
    return text


def parse_conversation(record: Record, text: str, label: str, name: str) -> ChatExample:
    """Return the conversation in a row.

    Args:
        text: The column of its turns, or of a question.
        label: The column of the answer; where it is the same, there is none of its own.
    """
    where, fields = f"{name}, line {record.line}", record.fields
    turns = value_of(record, text, name)
    if not isinstance(turns, str) and text == label:
        tools = fields.get("tools")
        messages = parse_messages(turns, f"{where}: {text!r}")
        return ChatExample(messages, tools if isinstance(tools, list) else None, record.line)
    parts = [text_of(record, text, name)]
    if text == "instruction" and fields.get("input"):
        parts.append(text_of(record, "input", name))
    written: list[dict[str, Any]] = [{"role": "user", "content": "\n\n".join(parts)}]
    if isinstance(fields.get("system"), str) and fields["system"]:
        written.insert(0, {"role": "system", "content": fields["system"]})
    if text != label:
        written.append({"role": ASSISTANT, "content": text_of(record, label, name)})
    return ChatExample(parse_messages(written, where), None, record.line)
