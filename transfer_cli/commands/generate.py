"""`transfer generate`: let a causal language model go on with a text."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from omegaconf import DictConfig

from transfer_cli.assembly.finished_run import Trained, open_trained
from transfer_cli.commands.json_lines import STANDARD_OUTPUT, check_output, write_json_lines
from transfer_cli.config.literal import text_of, texts_of
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import CheckpointError, ConfigError, DataError, at_least
from transfer_cli.generation.decoding import NextToken, go_on
from transfer_cli.generation.layout import Layout
from transfer_cli.generation.sampling import Draws, Sampling
from transfer_cli.generation.writing import Writer
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.safe_files import escaped
from transfer_cli.terminal import paint

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"

MAX_PROMPT_BYTES = 2**20
"""Of standard input. No model here has positions for as many tokens as that holds."""


def generate(config: DictConfig) -> None:
    """Print the text as it comes; of several continuations, one after the other."""
    sampling, stops = _sampling(config), _stops(config)
    prompt = _prompt(text_of(config.prompt, "prompt"))
    precision = device_and_precision(config.device, config.precision)
    trained = open_trained(config.run, precision, config.base)
    _check_objective(trained, config.run)
    layout = Layout(trained.start.tokenizer, has_lines=trained.start.published is None)
    tokens = layout.prompt(prompt)
    most = _room(len(tokens), config.max_tokens, trained.start.description.shape.positions)
    page = Page(prompt, [Writer(layout, prompt, stops) for _ in range(config.samples)],
                shows=config.output != STANDARD_OUTPUT)  # fmt: skip
    with page, torch.inference_mode(), precision.context():
        go_on(
            NextToken(
                trained.model, rows=config.samples, room=len(tokens) + most, cached=config.cache
            ),
            tokens,
            most=most,
            sampling=sampling,
            draws=Draws(config.seed, config.samples),
            allowed_V=layout.allowed(),
            take=page.take,
        )
        page.finish()
    if most < config.max_tokens and not all(writer.ended for writer in page.writers):
        log.info(
            "the text ends here: the model's %d positions are used up",
            trained.start.description.shape.positions,
        )
    if config.output is not None:
        whole = "max_tokens" if most == config.max_tokens else "positions"
        rows = [
            {
                "prompt": prompt,
                "text": each.text,
                "tokens": each.tokens,
                "ended": each.ended or whole,
            }
            for each in page.writers
        ]
        write_json_lines(config.output, rows)


@dataclass
class Page:
    """What is shown of texts while they are made: a single one as it comes, several at the end."""

    prompt: str
    writers: Sequence[Writer]
    shows: bool
    _streams: bool = field(init=False)

    def __post_init__(self) -> None:
        self._streams = self.shows and len(self.writers) == 1

    def __enter__(self) -> None:
        if self._streams:
            _write(self._lead())

    def __exit__(self, *_: object) -> None:
        if self._streams:
            _write("\n")

    def take(self, tokens_B: list[int]) -> bool:
        """Take a token for each text; return whether any goes on."""
        for writer, token in zip(self.writers, tokens_B, strict=True):
            shown = writer.add(token)
            if self._streams:
                _write(_fit(shown))
        return not all(writer.ended for writer in self.writers)

    def finish(self) -> None:
        """Show what has been waiting."""
        for number, writer in enumerate(self.writers):
            rest = writer.rest()
            if self._streams:
                _write(_fit(rest))
            elif self.shows:
                between = "\n" if number else ""
                _write(f"{between}{self._lead()}{_fit(writer.text)}\n")

    def _lead(self) -> str:
        return paint(_fit(self.prompt), "note", sys.stdout)


def _fit(text: str) -> str:
    """Return a text without what would steer a terminal, if it goes to one."""
    return escaped(text) if sys.stdout.isatty() else text


def _write(text: str) -> None:
    if text:
        sys.stdout.write(text)
        sys.stdout.flush()


def _sampling(config: DictConfig) -> Sampling:
    check_output(config.output)
    for name in ("max_tokens", "samples"):
        at_least(f"{name}:", config[name], 1, ConfigError)
    try:
        return Sampling(config.temperature, config.top_k, config.top_p)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _stops(config: DictConfig) -> list[str]:
    stops = texts_of(config.stop, "stop")
    if "" in stops:
        raise ConfigError("stop: holds an empty text, with which everything ends; leave it out")
    return stops


def _prompt(typed: str) -> str:
    """Return the text to go on with, from standard input where that is asked for."""
    text = typed
    if typed == STANDARD_INPUT:
        raw = sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
        if len(raw) > MAX_PROMPT_BYTES:
            raise DataError(f"prompt: standard input holds more than {MAX_PROMPT_BYTES:,} bytes")
        try:
            text = raw.decode("utf-8").replace("\r\n", "\n").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise DataError(
                f"prompt: standard input is not UTF-8 (byte 0x{raw[error.start]:02x} at offset "
                f"{error.start})"
            ) from error
    if not text.strip():
        where = " (standard input)" if typed == STANDARD_INPUT else ""
        raise ConfigError(
            f"prompt: is empty{where}; give the text to go on with, such as prompt='Once upon'"
        )
    return text


def _check_objective(trained: Trained, run: str) -> None:
    if isinstance(trained.objective, CausalLM):
        return
    if isinstance(trained.objective, MaskedLM):
        raise CheckpointError(
            f"run: {run} is a masked language model, which fills gaps and does not go on with a "
            f"text; use transfer fill run={run} 'A text with a [MASK] .'"
        )
    raise CheckpointError(
        f"run: {run} is no language model ({type(trained.objective).__name__}); generate needs a "
        "run of objective=clm, such as the one that this was adapted from"
    )


def _room(prompt: int, most: int, positions: int) -> int:
    """Return how many tokens can follow a prompt of so many."""
    if prompt == 0:
        raise ConfigError("prompt: this run's tokenizer finds no token in it; give other words")
    if prompt > positions - 1:
        raise ConfigError(
            f"prompt: is {prompt} tokens long, and with the model's {positions} positions at most "
            f"{positions - 1} leave room for another; shorten it"
        )
    return min(most, positions - prompt)
