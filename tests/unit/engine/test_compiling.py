"""Compiled passes against eager ones. To compile takes a C++ compiler and some seconds."""

import importlib.util
import math
import shutil
import sysconfig
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.batch import with_facts
from transfer_cli.engine.compiling import FullBatches, compile_passes, missing_compiler, why_eager
from transfer_cli.errors import ConfigError
from transfer_cli.model.backbone import Backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.tasks.text_to_text.seq2seq import Seq2Seq

CPU, GPU = torch.device("cpu"), torch.device("cuda")

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="there is no C++ compiler"
)


def losses_and_weights(objective, data, sizes, *, compiled, **changes):
    """Return what steps say, each on so many examples, and what weights they leave."""
    model = tiny.model(objective, depth=2, **changes)
    # Adam would divide rounding by rounding where a gradient is 0 in theory (key biases).
    step = tiny.train_step(model, objective, tiny.Recipe(optimizer=torch.optim.SGD, rate=0.5))
    if compiled:
        compile_passes(model, CPU, lengths_vary=isinstance(objective, Classification | Seq2Seq))
    losses = []
    for number, size in enumerate(sizes):
        losses.append(float(step([{"main": data.batch(np.arange(size))}], number).total))
    return losses, tiny.weights_of(model)


CASES = {
    "clm": (CausalLM, lambda: tiny.blocks(tokens=300), {**tiny.MODERN, "residual": "tutorial"}),
    "mlm": (MaskedLM, lambda: tiny.blocks(tokens=300), {"direction": "bidirectional"}),
    "replaced": (partial(ReplacedTokens, width=0.5), lambda: tiny.blocks(tokens=300),
                 {"direction": "bidirectional"}),
    "padded": (Classification, lambda: tiny.Questions(examples=16), {}),
    "seq2seq": (partial(Seq2Seq, noise="mass"), lambda: tiny.blocks(tokens=300),
                {"direction": "encoder_decoder"}),
}  # fmt: skip


@pytest.mark.slow
@needs_compiler
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("case", "sizes", "backend"),
    [
        # Captured as one graph, of which no kernels are made.
        *((case, [8], "eager") for case in ("clm", "seq2seq")),
        *((case, [8, 5, 8], None) for case in CASES if case != "seq2seq"),  # which takes minutes
    ],
)
def test_compiled_passes_compute_the_same(case, sizes, backend, monkeypatch):
    objective, data, changes = CASES[case]
    if backend is not None:
        monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    eager, weights = losses_and_weights(objective(), data(), sizes, compiled=False, **changes)

    compiled, compiled_weights = losses_and_weights(
        objective(), data(), sizes, compiled=True, **changes
    )

    assert compiled == pytest.approx(eager, rel=1e-6)
    for name, weight in weights.items():
        assert_close(compiled_weights[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_where_memory_ran_out_smaller_batches_are_full():
    shrunk, graphs = [], []
    full = FullBatches(lambda: shrunk.append(len(graphs)))

    for sequences in (8, 5, 8, 4, 4, 4):
        made = SimpleNamespace(lengths=[9] * sequences, positions=9, sequences=sequences)
        context = full(made)
        with context:
            graphs.append(isinstance(context, nullcontext))

    assert graphs == [True, False, True, False, True, True]
    assert shrunk == [4]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"device": CPU}, "no GPU"),
        ({"missing": "triton"}, "triton"),
        ({"lengths_vary": True}, "length"),
        ({"sharded": True}, "sharded"),
        ({"steps": 499}, "499"),
        ({"minutes": 4.0}, ""),
        ({"minutes": 0.38}, "0.38 minutes"),
    ],
)
def test_auto_compiles_where_kernels_of_its_own_pay(changes, why):
    usual = {
        "device": GPU, "missing": "", "lengths_vary": False, "sharded": False, "steps": 500,
        "minutes": math.inf,
    }  # fmt: skip

    reason = why_eager(**{**usual, **changes})

    assert why in reason
    assert bool(reason) == bool(why)


@pytest.mark.parametrize(
    ("package", "capability", "tools", "missing"),
    [
        (None, (9, 0), True, "triton"),
        ("triton", (6, 1), True, "7.0"),
        ("triton", (9, 0), False, "gcc"),
        ("triton", (9, 0), True, ""),
    ],
)
def test_what_a_gpu_lacks_is_named(package, capability, tools, missing, tmp_path, monkeypatch):
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: package)
    monkeypatch.setattr(shutil, "which", lambda name: name if tools else None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    requirement = missing_compiler(GPU)

    assert missing in requirement
    assert bool(requirement) is bool(missing)


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

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=recording))
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


@needs_compiler
@pytest.mark.parametrize(
    "name",
    [
        "modern",
        *(
            pytest.param(n, marks=pytest.mark.slow)
            for n in ("base", "bert-base", "tutorial-fast", "xl-tiny")
        ),
    ],
)
def test_a_preset_is_one_graph_without_a_break(name, monkeypatch):
    graphs = []

    def recording(graph, example_inputs):
        graphs.append(graph)
        return graph

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=recording))
    direction = "bidirectional" if name == "bert-base" else "causal"
    backbone = Backbone(tiny.preset(name, direction=direction, depth=2), tiny.VOCABULARY.size)
    model = TransferModel(backbone, {})
    compile_passes(model, CPU, lengths_vary=False)

    model.around_pass = None  # so that padding, which is packed, has a graph as well
    for data in (tiny.blocks(tokens=129), tiny.Questions(examples=8)):
        assert Encoding(model, with_facts(tiny.all_of(data))).top.requires_grad

    assert len(graphs) == 2


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)

    with pytest.raises(ConfigError, match=r"loop\.compile: .*g\+\+.*leave loop\.compile out"):
        compile_passes(tiny.model(CausalLM()), CPU, lengths_vary=False)
