"""`transfer generate`: continue a text with a causal language model."""

import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack

import torch
from omegaconf import DictConfig

from transfer_cli.assembly.finished_run import open_language_model
from transfer_cli.assembly.init_from import Pretrained
from transfer_cli.commands.json_lines import STANDARD_OUTPUT, check_output, write_json_lines
from transfer_cli.config.literal import text_of, texts_of
from transfer_cli.engine.precision import device_and_precision
from transfer_cli.errors import ConfigError, DataError, at_least
from transfer_cli.generation import decoding
from transfer_cli.generation.prompt_layout import PromptLayout
from transfer_cli.generation.sampling import Sampling, TokenSampler
from transfer_cli.generation.streaming import GeneratedText
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.safe_files import escaped
from transfer_cli.terminal import flush_out, paint

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"

MAX_PROMPT_BYTES = 2**20
"""Of standard input. No model here has positions for as many tokens as that holds."""


def generate(config: DictConfig) -> None:
    """Print the text while it is generated; print several continuations one after the other."""
    check_output(config.output)
    for name in ("max_tokens", "samples"):
        at_least(f"{name}:", config[name], 1, ConfigError)
    try:
        sampling = Sampling(config.temperature, config.top_k, config.top_p)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    stops = texts_of(config.stop, "stop")
    if "" in stops:
        raise ConfigError("stop: holds an empty text, with which everything ends; leave it out")
    prompt = _prompt(text_of(config.prompt, "prompt"))
    precision = device_and_precision(config.device, config.precision)
    trained = open_language_model(config.run, precision, config.base, CausalLM)
    layout = _layout(trained.start)
    tokens, positions = layout.encode(prompt), trained.start.description.shape.positions
    most = _room(len(tokens), config.max_tokens, positions)
    texts = [GeneratedText(layout, prompt, stops) for _ in range(config.samples)]
    shows = config.output != STANDARD_OUTPUT
    streams = shows and len(texts) == 1
    lead = paint(_fit(prompt), "note", sys.stdout)
    # Several texts, or those of a file, are not shown while they grow.
    show: Callable[[str], None] = flush_out if streams else (lambda _: None)

    with ExitStack() as line, torch.inference_mode(), precision.context():
        show(lead)
        line.callback(show, "\n")  # even where generating fails
        drawn = decoding.generate(
            trained.model,
            tokens,
            rows=config.samples,
            max_new_tokens=most,
            use_cache=config.cache,
            sampling=sampling,
            sampler=TokenSampler(config.seed, config.samples),
            allowed_V=layout.allowed_tokens(),
        )
        for tokens_B in drawn:
            grown = [text.add(token) for text, token in zip(texts, tokens_B, strict=True)]
            show(_fit("".join(grown)))
            if all(text.finish_reason for text in texts):
                break
        for text in texts:
            show(_fit(text.flush()))
    if shows and not streams:
        flush_out("\n".join(f"{lead}{_fit(text.text)}\n" for text in texts))
    if most < config.max_tokens and not all(text.finish_reason for text in texts):
        log.info("the text ends here: the model's %d positions are used up", positions)
    if config.output is not None:
        whole = "max_tokens" if most == config.max_tokens else "positions"
        rows = [
            {
                "prompt": prompt,
                "text": each.text,
                "tokens": each.tokens,
                "ended": each.finish_reason or whole,
            }
            for each in texts
        ]
        write_json_lines(config.output, rows)


def _layout(start: Pretrained) -> PromptLayout:
    published = start.published
    if published is None or published.reads_lines:
        return PromptLayout(start.tokenizer)
    return PromptLayout(start.tokenizer, has_lines=False, before_text=published.before_text)


def _fit(text: str) -> str:
    """Return a text without what would steer a terminal, if it goes to one."""
    return escaped(text) if sys.stdout.isatty() else text


def _prompt(typed: str) -> str:
    """Return the text to continue, read from standard input for `-`."""
    text = typed
    if typed == STANDARD_INPUT:
        if sys.stdin is None:
            raise DataError("prompt: standard input is closed; type the prompt itself")
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
