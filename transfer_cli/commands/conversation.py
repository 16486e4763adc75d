"""What a model that is talked to says next: a continuation of its chat template's text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transfer_cli.assembly.finished_run import TrainedModel, bound_objective
from transfer_cli.config.build import TARGET, class_of
from transfer_cli.data.chat_template import ChatTemplate, Message, Renderer, with_end_token
from transfer_cli.data.json_tables import json_file_rows
from transfer_cli.errors import CheckpointError, ConfigError, DataError
from transfer_cli.generation.prompt_layout import Prompt, PromptLayout
from transfer_cli.tasks.chat.conversations import ChatExample, parse_messages
from transfer_cli.tasks.chat.task import ChatTask, Conversations, SupervisedChat
from transfer_cli.tasks.dialog.task import DialogExample, DialogTask


@dataclass(frozen=True)
class ChatPrompter:
    """A model and its chat template, which makes prompts of conversations."""

    trained: TrainedModel
    task: ChatTask
    render: Renderer

    def prompt(self, example: ChatExample) -> Prompt:
        """Return all that stands before what the model says next."""
        tokenizer = self.trained.start.tokenizer
        spoken = example.with_system(self.task.system)
        text = self.render(spoken.messages, spoken.tools, add_generation_prompt=True).text
        [(tokens, _)] = tokenizer.encode_marked([text])
        return Prompt(PromptLayout(tokenizer, answer_end=self.task.end_in(tokenizer)), tokens)

    def prompt_within(self, messages: list[Message], most: int) -> Prompt:
        """Take the oldest turns away until `most` tokens have room, or half of the positions."""
        shape = self.trained.start.description.shape
        room = shape.positions - min(most, shape.positions // 2)
        while True:
            prompt = self.prompt(ChatExample(messages))
            questions = [at for at, turn in enumerate(messages) if turn["role"] == "user"]
            has_room = len(prompt.tokens) <= room or not shape.is_bounded
            if has_room or len(questions) < 2:
                return prompt
            del messages[questions[0] : questions[1]]


@contextmanager
def open_chat_prompter(trained: TrainedModel) -> Iterator[ChatPrompter]:
    """Open the chat template of a model."""
    trained_task = trained.start.task
    task = trained_task if isinstance(trained_task, ChatTask) else ChatTask()
    template = _chat_template(trained)
    if template.end != task.end:
        task = task.written_by(lambda: template)
    with template.open_renderer() as render:
        yield ChatPrompter(trained, task, render)


def dialog_prompts(
    trained: TrainedModel, task: DialogTask, most: int
) -> Callable[[list[Message]], Prompt]:
    """Return what makes prompts for a dialog model, whose persona are the system's texts."""
    tokenizer, room = trained.start.tokenizer, trained.length - most
    layout = PromptLayout(tokenizer, answer_end=tokenizer.cls)
    if room < 1:
        raise ConfigError(
            f"max_tokens: {most} leaves no room for what was said, since the run reads "
            f"{trained.length} tokens; take fewer"
        )

    def prompt(messages: list[Message]) -> Prompt:
        texts = [str(turn["content"]) for turn in messages]
        persona = sum(turn["role"] == "system" for turn in messages)
        example = DialogExample(texts[:persona], texts[persona:], ())
        context = task.context(example, tokenizer, room)
        return Prompt(layout, context.tokens, segments=context.speakers)

    return prompt


def as_chat_model(trained: TrainedModel, data: Mapping[str, Any]) -> TrainedModel:
    """Return a language model as one that answers in conversations, if the data are such.

    Args:
        data: The config node of what it is scored on.
    """
    if trained.start.task is not None or not issubclass(class_of(data, "data"), Conversations):
        return trained
    task = ChatTask(system=data["system"], answer_tokens=data["answer_tokens"])
    described = replace(
        trained.start.description,
        task=task.written_by(lambda: _chat_template(trained)).as_node(),
        objective={TARGET: f"{SupervisedChat.__module__}.{SupervisedChat.__qualname__}"},
    )
    start = replace(trained.start, description=described)
    return replace(trained, start=start, objective=bound_objective(start))


def _chat_template(trained: TrainedModel) -> ChatTemplate:
    template = trained.start.chat_template
    if template is None:
        raise CheckpointError(
            f"run: {trained.path} has no chat template, by which it can be talked to; runs of "
            "objective=sft have one (of objective=next_utterance none is needed)"
        )
    return template if template.end else with_end_token(template, trained.start.tokenizer)


def read_conversations(path: Path, task: ChatTask) -> Sequence[ChatExample]:
    """Return the conversations of a file, one a row, or the one whose turns are its rows."""
    records = list(json_file_rows(path))
    if not records:
        raise DataError(f"messages: {path} has no conversation.")
    first = records[0].fields
    if {"role", "content"} <= first.keys():
        turns = [record.fields for record in records]
        conversation = ChatExample(parse_messages(turns, str(path))).unanswered()
        if not conversation.messages:
            raise DataError(f"messages: {path}: nothing is asked.")
        return [conversation]
    column = task.text_column([*first], str(path))
    if column is None:
        raise ConfigError(
            f"messages: {path} has no conversations; expected rows such as "
            '{"messages": [{"role": "user", "content": "Who are you?"}]}'
        )
    return [task.read(record, column, None, str(path)) for record in records]
