"""`transfer chat`: talk to a model with a chat template, or to a dialog model, line by line."""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from transfer_cli.assembly.finished_run import TrainedModel, open_trained
from transfer_cli.commands.conversation import open_chat_prompter
from transfer_cli.commands.generate import Continuation, sampling_of, terminal_text
from transfer_cli.config.literal import text_of, texts_of
from transfer_cli.config.schema import ChatConfig, GenerateConfig
from transfer_cli.data.chat_template import Message
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.generation.decoding import TokenSampler, draw_tokens
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.objectives.replies import Continued
from transfer_cli.tasks.dialog.task import DialogExample, DialogTask, NextUtterance
from transfer_cli.terminal import write_out


def chat(config: ChatConfig) -> None:
    """Print a reply to each line of standard input."""
    if config.max_tokens is not None:
        at_least("max_tokens:", config.max_tokens, 1, ConfigError)
    sampling_of(config)
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    task, objective = trained.start.task, trained.objective
    if isinstance(task, DialogTask) and isinstance(objective, NextUtterance):
        if config.system is not None:
            raise ConfigError("system: a dialog model reads none; say who it is by persona=")
        _answer_as_dialog(config, trained, task, objective, precision)
    else:
        if config.persona is not None:
            raise ConfigError("persona: only a dialog model reads one; say the same by system=")
        _answer_by_template(config, trained, precision)


def _answer_by_template(config: ChatConfig, trained: TrainedModel, precision: Precision) -> None:
    """Answer as the chat template has it; `/reset` and `/system TEXT` begin anew."""
    shape = trained.start.description.shape
    most = config.max_tokens or (min(512, shape.positions // 2 or 1) if shape.is_bounded else 512)
    with open_chat_prompter(trained) as prompter:
        system = None if config.system is None else text_of(config.system, "system")
        messages = _opening_messages(system)
        for line in _typed_lines():
            command, _, rest = line.partition(" ")
            if command in ("/reset", "/system"):
                system = rest.strip() if command == "/system" else system
                messages = _opening_messages(system)
                continue
            messages.append({"role": "user", "content": line})
            request = GenerateConfig(
                max_tokens=most, temperature=config.temperature, top_k=config.top_k,
                top_p=config.top_p, seed=config.seed + len(messages),
            )  # fmt: skip
            prompt = prompter.prompt_within(messages, most)
            reply = Continuation(trained, precision, prompt, request)
            reply.run(lambda text: write_out(terminal_text(text)))
            write_out("\n")
            messages.append({"role": "assistant", "content": reply.texts[0].text.strip()})


def _opening_messages(system: str | None) -> list[Message]:
    return [{"role": "system", "content": system}] if system else []


def _answer_as_dialog(
    config: ChatConfig, trained: TrainedModel, task: DialogTask, objective: NextUtterance,
    precision: Precision,
) -> None:  # fmt: skip
    most, persona, history = config.max_tokens or 20, texts_of(config.persona, "persona"), []
    sampling, sampler = sampling_of(config), TokenSampler(config.seed, 1)
    tokenizer = trained.start.tokenizer
    allowed_V = PromptLayout(tokenizer, answer_end=tokenizer.cls).allowed_tokens()
    room = trained.length - most
    if room < 1:
        raise ConfigError(
            f"max_tokens: {most} leaves no room for what was said, since the run reads "
            f"{trained.length} tokens; take fewer"
        )

    def pick(logits_RV: Tensor) -> Tensor:
        return draw_tokens(logits_RV, sampling, sampler, allowed_V).to(logits_RV.device)

    for line in _typed_lines():
        history.append(line)
        example = DialogExample(persona, history, ())
        context = task.context(example, tokenizer, room)
        begin_R, tokens_RT, segment_RT = (
            torch.tensor(values, device=precision.device)
            for values in ([len(context.tokens)], [context.tokens], [context.speakers])
        )
        with torch.inference_mode(), precision.context():
            text = Continued(trained.model, tokens_RT, segment_RT, begin_R, max_tokens=most)
            [reply] = text.pick_tokens(pick)
        history.append(objective.text_of(reply.tolist()))
        write_out(f"{terminal_text(history[-1])}\n")


def _typed_lines() -> Iterator[str]:
    """Yield what is typed, line by line, without empty lines; on a terminal, ask for each."""
    if sys.stdin is None:
        raise DataError("standard input is closed; chat answers what is typed there")
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    write_out("> " if asks else "")
    try:
        for line in iter(sys.stdin.readline, ""):
            if line.strip():
                yield line.strip()
            write_out("> " if asks else "")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8 ({error.reason})") from error
    write_out("\n" if asks else "")
