"""Absurd numbers for any key: one line and exit code 2, at once and without taking the memory."""

import copy
import math
import re
import resource
import time

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ValidationError

from transfer_cli.config import compose
from transfer_cli.config.check import check_config
from transfer_cli.config.flags import Request
from transfer_cli.config.flat import flat_items
from transfer_cli.errors import ConfigError

OPTIONAL = (
    "loop.epochs", "loop.steps", "loop.micro_batch", "loop.patience", "loop.clip", "data.length",
    "checkpoint.minutes", "forgetting.blocks", "plan.steps", "threads",
)  # fmt: skip
"""Keys of numbers that are not set by default."""

AT_LEAST = {
    "devices": 1_000_000, "tokenizer.size": 1_000_000_000, "model.width": 1_000_000_000,
    "model.depth": 1_000_000, "timeout_minutes": 10**9,
    "model.positions": 1_000_000_000, "loop.batch": 10**12,
    "loop.steps": 10**12, "loop.epochs": 10**12, "checkpoint.keep": 10**12, "threads": 10**6,
    "loop.evaluate_every": "1" + 400 * "0" + " steps", "restarts": 10**12, "seed": 2**63,
}  # fmt: skip
"""The first number, or one beyond it, that is refused for its size."""

SECONDS = 10
MIB = 500


def numbers(config):
    """Return the keys of all numbers that a command takes."""
    settings = flat_items(OmegaConf.to_container(config, resolve=True))
    keys = [key for key, value in settings if type(value) in (int, float)]
    return sorted({*keys, *OPTIONAL})


def check_with(config, key, value, command):
    OmegaConf.update(config, key, value)
    check_config(config, command)


@pytest.fixture
def refused(transfer, corpus, tiny, loop, tmp_path):
    """Return how to run what is refused in one line, soon, cheaply and without a trace."""

    def call(command, word):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        # What is typed last counts.
        ended = transfer(command, "data=text", f"data.train={corpus}", *tiny, *loop, word)
        spent, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
        lines = [line for line in ended.err.splitlines() if line.startswith("transfer ")]

        assert ended.code == 2, ended.err
        assert "Traceback" not in ended.err
        assert len(lines) == 1
        assert word.partition("=")[0].rpartition(".")[2] in lines[0]
        assert spent < SECONDS
        assert (after.ru_maxrss - before) / 1024 < MIB
        assert list(tmp_path.iterdir()) == []

    return call


@pytest.mark.parametrize("command", ["pretrain", pytest.param("finetune", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (10**30, -(10**30), math.inf, -math.inf)
        ),
    ],
)
def test_numbers_that_no_arithmetic_has_are_refused_for_every_key(command, value):
    composed = compose.load_config(command, Request())

    for key in numbers(composed):
        with pytest.raises((ConfigError, ValidationError), match=re.escape(key.split(".")[-1])):
            check_with(copy.deepcopy(composed), key, value, command)


@pytest.mark.parametrize(("key", "value"), AT_LEAST.items())
def test_a_number_too_large_for_its_key_is_refused(refused, key, value):
    refused("pretrain", f"{key}={value}")
