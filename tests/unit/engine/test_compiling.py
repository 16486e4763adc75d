"""Compiled passes against eager ones. To compile takes a C++ compiler and some seconds."""

import functools
import shutil

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.engine.compiling import compile_passes
from transfer_cli.errors import ConfigError
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replaced_tokens import ReplacedTokens

CPU = torch.device("cpu")

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler"
)


def losses_and_weights(objective, data, sizes, *, compiled, **changes):
    """Return what steps say, each on so many examples, and what weights they leave."""
    model = tiny.model(objective, depth=2, **changes)
    # Adam would divide rounding by rounding where a gradient is 0 in theory (key biases).
    step = tiny.train_step(model, objective, tiny.Recipe(optimizer=torch.optim.SGD, rate=0.5))
    if compiled:
        compile_passes(model, CPU, lengths_vary=isinstance(objective, Classification))
    losses = []
    for number, size in enumerate(sizes):
        losses.append(float(step([{"main": data.batch(np.arange(size))}], number).total))
    return losses, tiny.weights_of(model)


CASES = {
    "clm": (CausalLM, lambda: tiny.blocks(tokens=300), {**tiny.MODERN, "residual": "tutorial"}),
    "mlm": (MaskedLM, lambda: tiny.blocks(tokens=300), {"direction": "bidirectional"}),
    "replaced": (
        lambda: ReplacedTokens(width=0.5),
        lambda: tiny.blocks(tokens=300),
        {"direction": "bidirectional"},
    ),
    "padded": (Classification, lambda: tiny.Questions(examples=16), {}),
}


@pytest.mark.slow
@needs_compiler
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("case", "sizes", "backend"),
    [
        ("clm", [8], "eager"),  # captured as one graph, of which no kernels are made
        *(pytest.param(case, [8, 5, 8], None, marks=pytest.mark.slow) for case in CASES),
    ],
)
def test_compiled_passes_compute_the_same(case, sizes, backend, monkeypatch):
    objective, data, changes = CASES[case]
    if backend is not None:
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    eager, weights = losses_and_weights(objective(), data(), sizes, compiled=False, **changes)

    found, own = losses_and_weights(objective(), data(), sizes, compiled=True, **changes)

    assert found == pytest.approx(eager, rel=1e-6)
    for name, weight in weights.items():
        assert_close(own[name], weight, rtol=1e-5, atol=1e-6, msg=name)


@needs_compiler
def test_full_batches_have_one_graph_a_stage_and_all_others_none(monkeypatch):
    served = []

    def recording(graph, example_inputs):
        served.append([])

        def run(*inputs, noted=served[-1]):
            states = graph(*inputs)
            noted.append(sum(state.requires_grad for state in states))
            return states

        return run

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=recording))
    data, objective = tiny.blocks(tokens=8 * 16 + 10), CausalLM()  # the ninth block is short
    model = tiny.model(objective)
    plan = tiny.Given((("*",), "4 steps"), (("block.2", "head.*"), "4 steps"))
    step = tiny.train_step(model, objective, tiny.Recipe(plan=plan, total=8))
    compile_passes(model, CPU, lengths_vary=False)
    model.heads["lm"].compiled = False

    for number, rows in enumerate([range(8), range(5), range(1, 9), range(8)] * 2):
        step([{"main": data.batch(np.array(rows))}], number)
        tiny.measures(model, objective, data)

    # Of a state that nobody reads, a compiled backward pass computes a gradient as well.
    assert served == [[1, 1], [1, 1]]


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(ConfigError, match=r"loop\.compile: .*g\+\+.*leave loop\.compile out"):
        compile_passes(tiny.model(CausalLM()), CPU, lengths_vary=False)
