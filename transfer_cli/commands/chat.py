"""`transfer chat`: talk to a model with a chat template, or to a dialog model, line by line."""

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial

from transfer_cli.assembly.finished_run import TrainedModel, open_trained
from transfer_cli.commands.conversation import dialog_prompts, open_chat_prompter
from transfer_cli.commands.generate import Continuation, sampling_of, terminal_text
from transfer_cli.config.literal import text_of, texts_of
from transfer_cli.config.schema import ChatConfig, GenerateConfig
from transfer_cli.data.chat_template import Message
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.generation.prompt_layout import Prompt
from transfer_cli.tasks.dialog.task import DialogTask, NextUtterance
from transfer_cli.terminal import write_out

log = logging.getLogger(__name__)


def chat(config: ChatConfig) -> None:
    """Print a reply to each line of standard input."""
    if config.max_tokens is not None:
        at_least("max_tokens:", config.max_tokens, 1, ConfigError)
    sampling_of(config)
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    task, shape = trained.start.task, trained.start.description.shape
    if isinstance(task, DialogTask) and isinstance(trained.objective, NextUtterance):
        if config.system is not None:
            raise ConfigError("system: a dialog model reads none; say who it is by persona=")
        most, persona = config.max_tokens or 20, texts_of(config.persona, "persona")
        _answer(config, trained, precision, persona, most, dialog_prompts(trained, task, most))
        return
    if config.persona is not None:
        raise ConfigError("persona: only a dialog model reads one; say the same by system=")
    most = config.max_tokens or (min(512, shape.positions // 2 or 1) if shape.is_bounded else 512)
    system = [] if config.system is None else [text_of(config.system, "system")]
    with open_chat_prompter(trained) as prompter:
        prompt = partial(prompter.prompt_within, most=most)
        _answer(config, trained, precision, system, most, prompt)


def _answer(
    config: ChatConfig, trained: TrainedModel, precision: Precision, opening: list[str], most: int,
    prompt: Callable[[list[Message]], Prompt],
) -> None:  # fmt: skip
    """Answer each line; `/reset` and `/system TEXT` begin anew."""
    said: list[Message] = [{"role": "system", "content": text} for text in opening if text]
    for line in _typed_lines():
        command, _, rest = line.partition(" ")
        if command in ("/reset", "/system"):
            opening = [rest.strip()] if command == "/system" else opening
            said = [{"role": "system", "content": text} for text in opening if text]
            continue
        asked = [*said, {"role": "user", "content": line}]
        request = GenerateConfig(
            max_tokens=most, temperature=config.temperature, top_k=config.top_k,
            top_p=config.top_p, seed=config.seed + len(asked),
        )  # fmt: skip
        try:
            reply = Continuation(trained, precision, prompt(asked), request)
        except ConfigError as error:  # it is too long, which the next one may not be
            log.warning("not answered: %s", error)
            continue
        reply.run(lambda text: write_out(terminal_text(text)))
        write_out("\n")
        said = [*asked, {"role": "assistant", "content": reply.texts[0].text.strip()}]


def _typed_lines() -> Iterator[str]:
    """Yield what is typed, line by line, without empty lines; on a terminal, ask for each."""
    if sys.stdin is None:
        raise DataError("standard input is closed; chat answers what is typed there")
    ask = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    write_out(ask)
    try:
        for line in iter(sys.stdin.readline, ""):
            if line.strip():
                yield line.strip()
            write_out(ask)
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8 ({error.reason})") from error
    write_out("\n" if ask else "")
