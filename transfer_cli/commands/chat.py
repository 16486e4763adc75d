"""`transfer chat`: talk to a dialog model, line by line."""

import sys
from collections.abc import Iterator, Sequence

import torch
from omegaconf import DictConfig
from torch import Tensor

from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.config.literal import texts_of
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, NotFiniteError, at_least
from transfer_cli.generation.decoding import Sampling, TokenSampler
from transfer_cli.objectives.replies import Pick, replies
from transfer_cli.safe_files import escaped
from transfer_cli.tasks.dialog.objective import NextUtterance
from transfer_cli.tasks.dialog.readers import DialogExample
from transfer_cli.tasks.dialog.task import DialogTask
from transfer_cli.terminal import flush_out

MARK = "> "
"""Asks for the next line, on a terminal."""


def chat(config: DictConfig) -> None:
    """Print a reply to each line of standard input."""
    at_least("max_tokens:", config.max_tokens, 1, ConfigError)
    try:
        sampling = Sampling(config.temperature, config.top_k, config.top_p)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    persona = texts_of(config.persona, "persona")
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    task, objective = trained.start.task, trained.objective
    if not isinstance(task, DialogTask) or not isinstance(objective, NextUtterance):
        what = "a language model" if task is None else f"a model of {task.name}"
        raise CheckpointError(
            f"run: {config.run} is {what}; chat needs a run of objective=next_utterance"
        )
    room = trained.length - config.max_tokens
    if room < 1:
        raise ConfigError(
            f"max_tokens: {config.max_tokens} leaves no room for what was said, since the run "
            f"reads {trained.length} tokens; take fewer"
        )
    sampler = TokenSampler(config.seed, 1)

    def pick(logits_RV: Tensor) -> Tensor:
        if not logits_RV.amax(1).isfinite().all():
            raise NotFiniteError("run: its prediction")
        drawn = sampler(sampling.probabilities(objective.allowed(logits_RV)))
        return drawn.to(logits_RV.device)

    history: list[str] = []
    for line in _lines():
        history.append(line)
        with torch.inference_mode(), precision.context():
            history.append(_reply(trained, task, objective, persona, history, room, pick))
        said = history[-1]
        flush_out(f"{escaped(said) if sys.stdout.isatty() else said}\n")


def _reply(
    trained: Trained,
    task: DialogTask,
    objective: NextUtterance,
    persona: Sequence[str],
    history: Sequence[str],
    room: int,
    pick: Pick,
) -> str:
    example = DialogExample(persona, history, ())
    context, _ = task.context(example, trained.start.tokenizer, room)
    device = trained.model.backbone.token_embedding.weight.device
    tokens_RT, segment_RT = (
        torch.tensor([each], device=device) for each in (context.tokens, context.speakers)
    )
    begin_R = torch.tensor([len(context.tokens)], device=device)
    most = trained.length - room
    said = replies(trained.model, tokens_RT, segment_RT, begin_R, most=most, pick=pick)
    return objective.text_of(said[0].tolist())


def _lines() -> Iterator[str]:
    """Yield what is typed, line by line, without empty lines; on a terminal, ask for each."""
    if sys.stdin is None:
        raise DataError("standard input is closed; chat answers what is typed there")
    asks = sys.stdin.isatty() and sys.stdout.isatty()
    while True:
        flush_out(MARK if asks else "")
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError as error:
            raise DataError(f"standard input is not UTF-8 ({error.reason})") from error
        if not line:
            flush_out("\n" if asks else "")
            return
        if line.strip():
            yield line.strip()
