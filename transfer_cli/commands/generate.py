"""`transfer generate`: continue a text with a causal language model."""

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transfer_cli.assembly.finished_run import TrainedModel
from transfer_cli.assembly.language_models import open_language_model
from transfer_cli.assembly.model import direction_of
from transfer_cli.commands.conversation import open_chat_prompter, read_conversations
from transfer_cli.commands.paths import STANDARD_OUTPUT, check_output, write_json_lines
from transfer_cli.config.check_beams import check_beams, typed_beams
from transfer_cli.config.literal import text_of, texts_of
from transfer_cli.config.schema import GenerateConfig, SamplingConfig
from transfer_cli.data.encoded_task import warn_of_cuts
from transfer_cli.engine.precision import Precision, device_and_precision
from transfer_cli.errors import ConfigError, DataError, at_least, raised_as
from transfer_cli.generation import decoding
from transfer_cli.generation.decoding import Sampling, TokenSampler
from transfer_cli.generation.prompt_layout import Prompt, PromptLayout
from transfer_cli.generation.streaming import GeneratedText
from transfer_cli.model.attention import SourceText
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.beam_search import BeamSearch
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.replies import Continued, WrittenTargets
from transfer_cli.safe_files import escaped
from transfer_cli.tasks.text_to_text.task import TextToTextExample, TextToTextTask
from transfer_cli.terminal import paint, write_out

log = logging.getLogger(__name__)

STANDARD_INPUT = "-"

MAX_PROMPT_BYTES = 2**20
"""Of standard input. No model here has positions for as many tokens as that holds."""


def generate(config: GenerateConfig) -> None:
    """Print the text while it is generated; print several continuations one after the other."""
    check_output(config.output)
    _check_config(config)
    asks = config.messages is not None
    if asks == (config.prompt is not None):
        raise ConfigError(
            "prompt: expected either a text to go on with, prompt=VALUE, or messages=FILE"
        )
    prompt = "" if asks else _read_prompt(text_of(config.prompt, "prompt"))
    precision = device_and_precision(config.device, config.precision)
    trained = open_language_model(config.run, precision, config.base, CausalLM)
    if not asks:
        asked = [(Continuation(trained, precision, prompt, config), prompt)]
    else:
        asked, path = [], Path(config.messages or "").expanduser()
        with open_chat_prompter(trained) as prompter:
            for number, example in enumerate(read_conversations(path, prompter.task), 1):
                with raised_as(ConfigError, f"messages: {path}, number {number}: ", ConfigError):
                    continued = Continuation(trained, precision, prompter.prompt(example), config)
                asked.append((continued, str(example.messages[-1]["content"])))
    rows = [row for continued, said in asked for row in _run_and_show(continued, said, config)]
    if config.output is not None:
        write_json_lines(config.output, rows)


def _run_and_show(
    continuation: "Continuation", prompt: str, config: GenerateConfig
) -> list[dict[str, Any]]:
    """Show what a text goes on with, and return it as rows of the output."""
    shows = config.output != STANDARD_OUTPUT
    # What is looked for is known when it is whole.
    streams = shows and config.samples == 1 and (config.beams or 1) == 1
    # Several texts, or those of a file, are not shown while they grow.
    lead = "" if continuation.is_source else paint(terminal_text(prompt), "note", sys.stdout)
    with ExitStack() as line:
        if streams:
            write_out(lead)
            line.callback(write_out, "\n")  # even where generating fails
        continuation.run(lambda text: write_out(terminal_text(text)) if streams else None)
    if shows and not streams:
        write_out("\n".join(f"{lead}{terminal_text(text.text)}\n" for text in continuation.texts))
    return [
        {
            "prompt": prompt, "text": text.text, "tokens": text.tokens,
            "ended": text.finish_reason or continuation.limit,
        }
        for text in continuation.texts
    ]  # fmt: skip


def _check_config(config: GenerateConfig) -> None:
    check_beams(vars(config), "")
    at_least("max_tokens:", config.max_tokens, 1, ConfigError)
    at_least("samples:", config.samples, 1, ConfigError)
    sampling_of(config)
    if "" in texts_of(config.stop, "stop"):
        raise ConfigError("stop: holds an empty text, with which everything ends; leave it out")


class Continuation:
    """What a model goes on with after a text; a text or a key that cannot be is refused at once.

    Attributes:
        texts: The texts so far, as many as `samples` says.
        limit: What ends those that nothing else does.
    """

    def __init__(
        self,
        trained: TrainedModel,
        precision: Precision,
        prompt: str | Prompt,
        config: GenerateConfig,
    ) -> None:
        _check_config(config)
        self._trained, self._precision, self._config = trained, precision, config
        text, shape = prompt if isinstance(prompt, str) else "", trained.start.description.shape
        self._prompt = _encode_prompt(trained, prompt) if isinstance(prompt, str) else prompt
        self._memory = _memory_length(self._prompt, shape, is_cached=config.cache)
        self._search = BeamSearch(**typed_beams(vars(config)))
        self._search.check(trained.start.tokenizer)
        if self._search.beams > 1 and (self._memory or not config.cache):
            whose = "this model (model.recurrence)" if config.cache else "cache=false"
            raise ConfigError(
                f"beams: a search needs what was computed of all earlier tokens, and {whose} does "
                "not keep it; leave one of the two out"
            )
        positions = shape.positions if shape.is_bounded else None
        self._has_encoder = shape.has_encoder
        read = self._prompt.tokens[self._prompt.prefix if shape.has_encoder else 0 :]
        self._most = _most_new_tokens(len(read), config.max_tokens, positions)
        layout, stops = self._prompt.layout, texts_of(config.stop, "stop")
        self.texts = [GeneratedText(layout, text, stops) for _ in range(config.samples)]
        self.limit = "max_tokens" if self._most == config.max_tokens else "positions"

    @property
    def is_source(self) -> bool:
        """Whether the text is one to be answered, and not one to go on with."""
        return self._prompt.is_source

    def run(self, show: Callable[[str], object]) -> None:
        """Generate the texts; `show` gets what is added to them."""
        with torch.inference_mode(), self._precision.context():
            steps = self._searched_tokens() if self._search.beams > 1 else self._draw_tokens()
            for tokens_B in steps:
                grown = [text.add(token) for text, token in zip(self.texts, tokens_B, strict=True)]
                show("".join(grown))
                if all(text.finish_reason for text in self.texts):
                    break
            for text in self.texts:
                show(text.flush())
        if self.limit == "positions" and not all(text.finish_reason for text in self.texts):
            positions = self._trained.start.description.shape.positions
            log.info("the text ends here: the model's %d positions are used up", positions)

    def _draw_tokens(self) -> Iterator[list[int]]:
        """Yield the next token of each text."""
        prompt, config = self._prompt, self._config
        sampling, sampler = sampling_of(config), TokenSampler(config.seed, config.samples)
        allowed_V = prompt.layout.allowed_tokens()
        if self._has_encoder:
            yield from decoding.continue_texts(
                self._unread_text(), rows=config.samples, max_new_tokens=self._most,
                sampling=sampling, sampler=sampler, allowed_V=allowed_V,
            )  # fmt: skip
            return
        yield from decoding.generate(
            self._trained.model, prompt.tokens, rows=config.samples, max_new_tokens=self._most,
            use_cache=config.cache, sampling=sampling, sampler=sampler, allowed_V=allowed_V,
            prefix=prompt.prefix, segment=prompt.segment, segments=prompt.segments,
            memory=self._memory,
        )  # fmt: skip

    def _searched_tokens(self) -> Iterator[list[int]]:
        """Yield the tokens of the likeliest text that is found."""
        prompt, layout, texts = self._prompt, self._prompt.layout, self._unread_text()
        ends = [] if layout.text_end is None else [layout.text_end]
        contexts = None if prompt.is_source else [prompt.tokens]
        (tokens,) = texts.beam_search_texts(
            self._search, self._trained.start.tokenizer, end_tokens=ends,
            allowed_V=layout.allowed_tokens(), contexts=contexts,
        )  # fmt: skip
        return ([token] for token in tokens)

    def _unread_text(self) -> Continued:
        """Return the text, with no token read yet."""
        prompt, model = self._prompt, self._trained.model
        tokens_1T = torch.tensor([prompt.tokens], device=self._precision.device)
        if self._has_encoder:
            source_1S, start = tokens_1T[:, : prompt.prefix], prompt.tokens[prompt.prefix :]
            mask_1S = torch.ones_like(source_1S, dtype=torch.bool)
            source = SourceText(source_1S, mask_1S, padded=False)
            return WrittenTargets(model, source, start, max_tokens=self._most)
        length_1 = tokens_1T.new_tensor([len(prompt.tokens)])
        return Continued(
            model, tokens_1T, torch.zeros_like(tokens_1T), length_1, max_tokens=self._most,
            segment=prompt.segment,
            prefix_R=None if prompt.prefix is None else tokens_1T.new_tensor([prompt.prefix]),
        )  # fmt: skip


def sampling_of(config: SamplingConfig) -> Sampling:
    """Return how tokens are drawn."""
    with raised_as(ConfigError, ""):
        return Sampling(config.temperature, config.top_k, config.top_p)


def _encode_prompt(trained: TrainedModel, prompt: str) -> Prompt:
    """Return a prompt as a run reads it: as text in pretraining, or as a source."""
    tokenizer, task = trained.start.tokenizer, trained.start.task
    direction = direction_of(trained.start.description.shape)
    if task is None and direction == "encoder_decoder":
        task = TextToTextTask()
    if not isinstance(task, TextToTextTask):
        layout = trained.start.prompt_layout
        return Prompt(layout, layout.encode(prompt))
    data = task.encode([TextToTextExample(prompt)], tokenizer, trained.length, direction)
    warn_of_cuts(data.num_cut, 1, *task.kept(trained.length))
    batch = data.batch(np.zeros(1, dtype=np.int64))
    prefix = int(batch["prefix"]) if "prefix" in batch else None
    layout = PromptLayout(tokenizer, answer_end=data.end)
    return Prompt(layout, batch["tokens"][0].tolist(), prefix, segment=1)


def _memory_length(asked: Prompt, shape: BackboneShape, *, is_cached: bool) -> int | None:
    """Return how many tokens before the last one a model of running text sees; None: all."""
    if asked.is_source or not shape.recurrence:
        return None
    if not is_cached:
        raise ConfigError(
            f"cache: false reads all of the text again, and this model sees the {shape.recurrence} "
            "tokens before each, which are in the cache; leave it out"
        )
    return shape.recurrence


def terminal_text(text: str) -> str:
    """Return a text without what would steer a terminal, if it goes to one."""
    return escaped(text) if sys.stdout.isatty() else text


def _read_prompt(typed: str) -> str:
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


def _most_new_tokens(prompt: int, most: int, positions: int | None) -> int:
    """Return how many tokens can follow a prompt of so many; None: there is no longest text."""
    if prompt == 0:
        raise ConfigError("prompt: this run's tokenizer finds no token in it; give other words")
    if positions is None:
        return most
    if prompt > positions - 1:
        raise ConfigError(
            f"prompt: is {prompt} tokens long, and with the model's {positions} positions at most "
            f"{positions - 1} leave room for another; shorten it"
        )
    return min(most, positions - prompt)
