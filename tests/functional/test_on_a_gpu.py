"""What only a GPU can show: `make test-gpu`.

TRANSFER_TEST_DEVICE=cpu tries the tests themselves on a machine without one.
"""

import contextlib
import gc
import json
import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from tests import on_stand_in, several, tiny
from tests.on_stand_in import CASES, LOOP, TINY
from transfer_cli.adaptation.edits import LoRA
from transfer_cli.engine import distributed, pass_graphs
from transfer_cli.engine.compiling import compile_passes
from transfer_cli.engine.distributed import full_tensor
from transfer_cli.engine.distributed.replicated import Parallel, Replicated
from transfer_cli.engine.distributed.sharded import shard_model
from transfer_cli.engine.pass_graphs import PassGraphs
from transfer_cli.engine.precision import Precision
from transfer_cli.engine.step import TrainStep
from transfer_cli.generation import decoding, token_graph
from transfer_cli.generation.decoding import Sampling, TokenSampler, generate
from transfer_cli.model import vocabulary_loss
from transfer_cli.model.sparse_attention import OwnBlock, SparseView, Stride, Summary, Window
from transfer_cli.model.vocabulary_loss import summed_cross_entropy
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification

NAME = os.environ.get("TRANSFER_TEST_DEVICE", "cuda")
DEVICE = torch.device(NAME, 0) if NAME == "cuda" else torch.device(NAME)
IS_GPU = DEVICE.type == "cuda"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    # Those of torch's compiler for another device, and of another version of torch.
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(
        NAME == "cuda" and not torch.cuda.is_available(), reason="needs a CUDA device"
    ),
]
on_a_gpu_alone = pytest.mark.skipif(not IS_GPU, reason="only a GPU does this")

PLANTED = [name for name, case in CASES.items() if case.fault]
COMMANDS = [name for name in CASES if name.startswith("commands: ")]
WORKING = [name for name in CASES if name not in (*PLANTED, *COMMANDS)]

TOLERANCE = {
    "fp32": {"rtol": 1e-4, "atol": 1e-4},
    "bf16": {"rtol": 3e-2, "atol": 3e-2},
    "fp16": {"rtol": 1e-2, "atol": 1e-2},
}
"""Of losses, over those of float32 on the host. bfloat16 has 8 bits of precision, float16 11."""


@contextlib.contextmanager
def no_waits(allowed: frozenset[str]) -> Iterator[None]:
    """Let no training step wait for the device, except where a case lists its update."""
    whole, update = TrainStep.__call__, TrainStep._update

    def strictly(step, *args):
        with _waiting_is("error"):
            return whole(step, *args)

    def freely(step, *args):
        with _waiting_is("default"):
            return update(step, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainStep, "__call__", strictly)
        if "engine.step.TrainStep._update" in allowed:
            patch.setattr(TrainStep, "_update", freely)
        yield


@contextlib.contextmanager
def _waiting_is(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode() if IS_GPU else 0
    try:
        if IS_GPU:
            torch.cuda.set_sync_debug_mode(mode)
        yield
    finally:
        if IS_GPU:
            torch.cuda.set_sync_debug_mode(before)


def plain(outcome):
    """Return an outcome as tensors of the host."""
    return [tensor.cpu() for tensor in on_stand_in.flat(outcome)]


@pytest.mark.parametrize("name", WORKING)
def test_the_device_computes_what_the_host_does_and_no_step_waits(name):
    case = CASES[name]
    with no_waits(case.waits):
        outcome = case.compute(DEVICE)
    if case.on_host:
        assert_close(
            plain(outcome), plain(case.compute(torch.device("cpu"))), **on_stand_in.TOLERANCE
        )


@on_a_gpu_alone
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name):
    with pytest.raises(RuntimeError), no_waits(CASES[name].waits):
        CASES[name].compute(DEVICE)


@on_a_gpu_alone
@pytest.mark.parametrize("parts", [(Window(64), Stride(64)), (OwnBlock(64), Summary(64, 4))])
@pytest.mark.parametrize("starts", [None, [0, 30]])
def test_sparse_attention_and_its_gradients_are_those_of_the_host(parts, starts):
    outcomes = []
    for device in (torch.device("cpu"), DEVICE):
        torch.manual_seed(0)
        states = [torch.randn(2, 4, 300, 32).to(device).requires_grad_() for _ in range(3)]
        view = SparseView(parts, None if starts is None else torch.tensor(starts, device=device))
        mixed = view.attend(*states)[:, :, 30:]
        mixed.pow(2).sum().backward()
        outcomes.append([mixed, *(state.grad for state in states)])

    assert_close(plain(outcomes[1]), plain(outcomes[0]), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", COMMANDS)
def test_whole_commands_run(name, monkeypatch):
    monkeypatch.delenv("TRANSFER_PRECISION")  # as a GPU takes it
    with no_waits(CASES[name].waits):
        CASES[name].compute(DEVICE)


# --- how it trains --------------------------------------------------------------------------------

OBJECTIVES = {
    "text": (CausalLM, lambda: tiny.blocks(tokens=1100)),
    "questions": (partial(Classification, dropout=0), lambda: tiny.Questions(examples=40)),
}
MODELS = {"gpt": {}, "llama": {**tiny.MODERN}}


def losses(device, data, *, kind="fp32", compiled=False, recomputed=False, **shape):
    """Return the losses of eight steps."""
    objective, made = OBJECTIVES[data]
    run = on_stand_in.begun(objective(), device, made(), kind=kind, shape=shape, total=8)
    run.step.model.backbone.set_activation_checkpointing(recomputed)
    if compiled:
        compile_passes(run.step.model, device, lengths_vary=data == "questions")
    return run.go().losses


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("data", OBJECTIVES)
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", TOLERANCE)
def test_losses_are_those_of_the_host(kind, compiled, recomputed, data, model):
    if kind == "fp16" and not IS_GPU:
        pytest.skip("a CPU has no fp16")
    if compiled and not IS_GPU:
        pytest.skip("tests/unit/engine/test_compiling.py does this on a CPU")
    shape = MODELS[model]
    expected = losses(torch.device("cpu"), data, **shape)
    measured = losses(DEVICE, data, kind=kind, compiled=compiled, recomputed=recomputed, **shape)
    assert_close(measured, expected, **TOLERANCE[kind])


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=on_a_gpu_alone)])
@pytest.mark.parametrize("vocabulary", [1000, 1024])
def test_a_loss_in_half_precision_is_as_near_to_float64_as_one_of_rounded_products(
    monkeypatch, vocabulary, compiled
):
    monkeypatch.setitem(vocabulary_loss.CHUNK_ELEMENTS, NAME, 128 * vocabulary)
    generator = torch.Generator().manual_seed(0)
    shapes = ((500, 64), (vocabulary, 64), (vocabulary,))
    exact = [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]
    target = torch.randint(vocabulary, (500,), generator=generator)

    def of(inputs, kind, **options):
        tensors = [tensor.requires_grad_() for tensor in inputs]
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=kind == "bf16"):
            loss = summed_cross_entropy(*tensors, target.to(tensors[0].device), **options)
        return torch.autograd.grad(loss / 500, tensors)

    wanted = of(exact, "fp64")
    errors = []
    for adds_wide in (vocabulary_loss._adds_wide, lambda device: False):
        monkeypatch.setattr(vocabulary_loss, "_adds_wide", adds_wide)
        gradients = of(
            [t.detach().to(DEVICE, torch.float32) for t in exact], "bf16", compiled=compiled
        )
        pairs = zip(plain(gradients), wanted, strict=True)
        errors.append([float((grad - right).norm() / right.norm()) for grad, right in pairs])
    assert max(errors[0]) < 0.01
    assert errors[0][1] <= errors[1][1]


@on_a_gpu_alone
def test_dropout_drops_its_share_and_a_recomputed_block_the_same():
    states = torch.ones(512, 1024, device=DEVICE)
    from transfer_cli.model.dropout import Dropout

    dropped = Dropout(0.25)(states)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.005)
    shape = {"dropout": 0.2, "attention_dropout": 0.2}
    torch.manual_seed(0)
    stored = losses(DEVICE, "text", **shape)
    assert_close(losses(DEVICE, "text", recomputed=True, **shape), stored, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not IS_GPU, reason="graphs are counted where they are made fast")
def test_batches_of_all_lengths_need_few_graphs(record_property):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    objective = Classification(dropout=0)
    run = on_stand_in.begun(objective, DEVICE, tiny.Questions(examples=200), total=50)
    compile_passes(run.step.model, DEVICE, lengths_vary=True)
    run.go()
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    record_property("graphs", graphs)
    assert graphs <= 4, graphs  # padded or not, packed or not


# --- processes ------------------------------------------------------------------------------------


def trained(parallel: str | None = None) -> dict[str, object]:
    """Return losses and weights after some steps, alone or as one of several processes."""
    objective, data = Classification(dropout=0), tiny.Questions(examples=65)
    model = tiny.model(objective).to(DEVICE)
    if parallel == "fsdp":
        shard_model(model, DEVICE)
    recipe = tiny.Recipe(
        rate=0.1, total=6, clip=0.5, optimizer=torch.optim.SGD, precision=Precision("fp32", DEVICE)
    )
    step = tiny.train_step(model, objective, recipe)
    if parallel == "ddp" and distributed.world_size() == 1:
        assert type(step._forward) is Parallel
        step._forward = Replicated(model, some_unused=False)
        step._forward.enter_stage(0)
    run = tiny.Run(step, data, recipe, 32, 8).go()
    weights = {n: full_tensor(t.detach()).cpu() for n, t in model.named_parameters()}
    return {"losses": run.losses, "weights": weights}


replicated, sharded = partial(trained, "ddp"), partial(trained, "fsdp")
for _name, _function in (("replicated", replicated), ("sharded", sharded)):
    _function.__module__, _function.__name__ = __name__, _name  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("count", "function", "over"),
    [(1, replicated, NAME), (1, sharded, NAME), (2, trained, "cpu")],
    ids=["copies over NCCL", "shards over NCCL", "two processes over gloo"],
)
def test_processes_give_what_one_gives(count, function, over, tmp_path):
    alone = trained()
    for outcome in several.on_processes(count, function, tmp_path, over):
        assert_close(outcome["losses"], alone["losses"], rtol=1e-4, atol=1e-5)
        assert_close(outcome["weights"], alone["weights"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_command_under_torchrun(parallel, tmp_path):
    run = tmp_path / "run"
    words = ("pretrain", *TINY, *LOOP, f"device={NAME}", f"parallel={parallel}", f"run.dir={run}")
    ended = several.torchrun(1, "-m", "transfer_cli", *words, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((run / "results.json").read_text())["measures"]["validation"]["loss"] > 0


# --- whole commands -------------------------------------------------------------------------------

ALIKE = ("model.output_bias=false", "checkpoint.keep=0", "precision=fp32", f"device={NAME}")


def weights(run: Path) -> dict[str, torch.Tensor]:
    """Return the weights that a run has left."""
    return load_file(run / "model" / "weights.safetensors")


@pytest.fixture
def begin(transfer, tmp_path):
    """Return how to pretrain on the device, and the run directory."""

    def call(name="run", *words):
        ended = transfer("pretrain", *TINY, *LOOP, *ALIKE, f"run.dir={tmp_path / name}", *words)
        return tmp_path / name, ended

    return call


COMPILED = ("loop.compile=true", "loop.cuda_graphs=false", "loop.steps=12")
GRAPHED = ("loop.compile=true", "loop.cuda_graphs=true", "loop.steps=12")


@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(COMPILED, marks=on_a_gpu_alone),
        pytest.param(GRAPHED, marks=on_a_gpu_alone),
        pytest.param((*GRAPHED, "precision=bf16"), marks=on_a_gpu_alone),
    ],
    ids=["eager", "compiled", "graphs", "graphs, bf16"],
)
def test_a_stopped_run_goes_on_as_if_it_had_not(words, begin, transfer, at_record, record_property):
    whole, _ = begin("whole", *words)
    at_record("after", "validation", 2, lambda: signal.raise_signal(signal.SIGTERM))
    stopped, ended = begin("stopped", *words)
    assert "go on with transfer pretrain resume=" in ended.err
    transfer("pretrain", f"resume={stopped}")
    resumed, expected = weights(stopped), weights(whole)
    is_bitwise = all(tensor.equal(expected[name]) for name, tensor in resumed.items())
    record_property("bitwise", is_bitwise)
    assert_close(resumed, expected, rtol=1e-5, atol=1e-6)
    assert is_bitwise or IS_GPU


@on_a_gpu_alone
def test_cuda_graphs_train_the_same_weights(begin, record_property):
    from torch._inductor import cudagraph_trees  # takes seconds

    compiled, graphed = weights(begin("one", *COMPILED)[0]), weights(begin("two", *GRAPHED)[0])

    roots = cudagraph_trees.get_container(0).tree_manager.roots
    assert sum(map(len, roots.values())) > 0
    is_bitwise = all(tensor.equal(compiled[name]) for name, tensor in graphed.items())
    record_property("bitwise", is_bitwise)
    assert_close(graphed, compiled, rtol=1e-4, atol=1e-5)


@on_a_gpu_alone
@pytest.mark.parametrize("kind", ["fp32", "bf16"])
@pytest.mark.parametrize("edit", [None, LoRA(rank=2)], ids=["plain", "lora"])
def test_captured_passes_over_texts_are_the_same_to_the_bit(kind, edit, monkeypatch):
    def train(most):
        monkeypatch.setattr(pass_graphs, "MAX_GRAPHS", most)
        objective = Classification()
        model = tiny.model(objective, depth=2, residual="post", dropout=0.1, attention_dropout=0.1)
        if edit is not None:
            edit(model, {})
        recipe = tiny.Recipe(total=24, clip=1.0, precision=Precision(kind, DEVICE))
        model.to(DEVICE)
        step = tiny.train_step(model, objective, recipe)
        step._graphs = PassGraphs(model, DEVICE)
        run = tiny.Run(step, tiny.Questions(examples=60), recipe, batch=16, micro_batch=16).go()
        return run.losses, tiny.weights_of(model), len(step._graphs._captured)

    losses, expected, none = train(0)
    captured_losses, captured, several = train(64)
    assert (none, several) == (0, 2)
    assert captured_losses == losses
    assert all(tensor.equal(expected[name]) for name, tensor in captured.items())


@on_a_gpu_alone
def test_where_memory_runs_out_a_step_is_several_passes_without_graphs(transfer, tmp_path):
    words = (
        "model=tiny", "model.width=256", "model.depth=4", "model.positions=128", "data=sample_text",
        "data.length=128", "tokenizer.size=600", "loop.batch=64", "loop.steps=6",
        "loop.evaluate_every=3 steps", *ALIKE, "loop.compile=true",
    )  # fmt: skip

    def run(name):
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return transfer("pretrain", *words, f"run.dir={tmp_path / name}")

    assert run("whole").code == 0
    most, outcomes = torch.cuda.max_memory_reserved() / torch.cuda.mem_get_info()[1], []
    for share in (0.7, 0.5, 0.4, 0.3):
        torch.cuda.set_per_process_memory_fraction(share * most)
        try:
            ended = run(str(share))
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        outcomes.append((ended.code, "loop.micro_batch=32" in ended.err))
    assert (0, True) in outcomes


@on_a_gpu_alone
@pytest.mark.parametrize("shape", [{}, {**tiny.MODERN, "attention": "full"}], ids=["gpt", "llama"])
def test_a_graph_reads_tokens_as_single_passes_do(shape, monkeypatch):
    model = tiny.model(CausalLM(), positions=128, **shape).eval()
    tiny.lively(model, std=0.25)
    captured = []

    def write(device, fewest):
        monkeypatch.setattr(token_graph, "FEWEST_TOKENS", fewest)
        rule = {"sampling": Sampling(1.5), "sampler": TokenSampler(0, 3), "use_cache": True}
        with torch.inference_mode():
            return list(generate(
                model.to(device), [3, 9, 17], rows=3, max_new_tokens=60,
                allowed_V=torch.arange(tiny.VOCABULARY.size) > 4, **rule,
            ))  # fmt: skip

    class Counted(token_graph.TokenGraph):
        def __init__(self, *args):
            captured.append(args)
            super().__init__(*args)

    monkeypatch.setattr(decoding, "TokenGraph", Counted)
    expected = write("cpu", 999)
    assert write(DEVICE, 999) == expected
    assert not captured
    assert write(DEVICE, 60) == expected
    assert captured


def test_what_was_trained_scores_the_same_on_the_host(begin, transfer, tmp_path, read_json):
    run, _ = begin()
    measures = []
    for name in (NAME, "cpu"):
        transfer(
            "evaluate",
            f"run={run}",
            f"device={name}",
            "precision=fp32",
            "split=validation",
            f"output={name}.json",
        )
        measures.append(read_json(tmp_path / f"{name}.json")["measures"]["validation"])
    assert measures[0] == pytest.approx(measures[1], rel=1e-4)


def test_an_exported_folder_goes_on_with_the_same_text(begin, transfer, tmp_path):
    run, _ = begin()
    transfer("export", f"run={run}", f"to={tmp_path / 'out'}").ok()
    greedy = ("temperature=0", "max_tokens=12", "precision=fp32", f"device={NAME}")
    texts = [
        transfer("generate", f"run={folder}", "prompt=The city", *greedy).out
        for folder in (run, tmp_path / "out")
    ]
    assert texts[0]
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    "shape",
    [
        ("model=xl-tiny", "model.recurrence=16"),
        ("model=tiny", "model.attention=strided", "model.window=8"),
        ("model=tiny", "model.attention=fixed", "model.window=8"),
    ],
    ids=["memory", "strided", "fixed"],
)
def test_what_a_device_has_trained_goes_on_with_the_same_text_on_the_host(
    shape, transfer, tmp_path
):
    small = [word for word in TINY if not word.startswith("model=")]
    run = tmp_path / "run"
    transfer("pretrain", *shape, *small, *LOOP, *ALIKE, f"run.dir={run}").ok()
    greedy = ("temperature=0", "max_tokens=70", "precision=fp32", "prompt=The city")
    texts = [
        transfer("generate", f"run={run}", *greedy, f"device={name}").out for name in (NAME, "cpu")
    ]
    assert texts[0]
    assert texts[0] == texts[1]
