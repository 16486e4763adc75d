"""`transfer chat`: talk to a dialog model, line by line."""

import sys
from collections.abc import Iterator

import torch
from torch import Tensor

from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.commands.generate import fit, sampling_of
from transfer_cli.config.literal import texts_of
from transfer_cli.config.schema import ChatConfig
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, NotFiniteError, at_least
from transfer_cli.generation.decoding import TokenSampler
from transfer_cli.objectives.replies import replies
from transfer_cli.tasks.dialog.task import DialogExample, DialogTask, NextUtterance
from transfer_cli.terminal import flush_out


def chat(config: ChatConfig) -> None:
    """Print a reply to each line of standard input."""
    at_least("max_tokens:", config.max_tokens, 1, ConfigError)
    sampling, sampler = sampling_of(config), TokenSampler(config.seed, 1)
    persona, history = texts_of(config.persona, "persona"), list[str]()
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    task, objective = trained.start.task, trained.objective
    room = trained.length - config.max_tokens
    if not isinstance(task, DialogTask) or not isinstance(objective, NextUtterance):
        what = "a language model" if task is None else f"a model of {task.name}"
        raise CheckpointError(
            f"run: {config.run} is {what}; chat needs a run of objective=next_utterance"
        )
    if room < 1:
        raise ConfigError(
            f"max_tokens: {config.max_tokens} leaves no room for what was said, since the run "
            f"reads {trained.length} tokens; take fewer"
        )

    def pick(logits_RV: Tensor) -> Tensor:
        if not logits_RV.amax(1).isfinite().all():
            raise NotFiniteError("run: its prediction")
        drawn = sampler(sampling.probabilities(objective.allowed(logits_RV)))
        return drawn.to(logits_RV.device)

    for line in _lines():
        history.append(line)
        context, _ = task.context(
            DialogExample(persona, history, ()), trained.start.tokenizer, room
        )
        begin_R, tokens_RT, segment_RT = (
            torch.tensor(values, device=precision.device)
            for values in ([len(context.tokens)], [context.tokens], [context.speakers])
        )
        with torch.inference_mode(), precision.context():
            reply, *_ = replies(
                trained.model, tokens_RT, segment_RT, begin_R, most=config.max_tokens, pick=pick
            )
        history.append(objective.text_of(reply.tolist()))
        flush_out(f"{fit(history[-1])}\n")


def _lines() -> Iterator[str]:
    """Yield what is typed, line by line, without empty lines; on a terminal, ask for each."""
    if sys.stdin is None:
        raise DataError("standard input is closed; chat answers what is typed there")
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    flush_out("> " if asks else "")
    try:
        for line in iter(sys.stdin.readline, ""):
            if line.strip():
                yield line.strip()
            flush_out("> " if asks else "")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input is not UTF-8 ({error.reason})") from error
    flush_out("\n" if asks else "")
