from contextlib import nullcontext

import pytest
import torch
from torch.testing import assert_close

from tests import tiny
from transfer_cli.assembly.checks import check_residual, takes_graphs
from transfer_cli.config.schema import LoopConfig
from transfer_cli.engine import bf16_products
from transfer_cli.engine.bf16_products import command_precision
from transfer_cli.engine.precision import Precision, choose_device, device_of_process
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.model.shape import FORMS
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "kind"), [("auto", "fp32"), ("fp32", "fp32"), ("bf16", "bf16")])
def test_a_cpu_computes_in_float32_unless_asked_otherwise(name, kind):
    assert Precision.choose(name, CPU).kind == kind


@pytest.mark.parametrize(("command", "fast"), [("pretrain", "bf16"), ("chat", "fp32")])
@pytest.mark.parametrize(
    ("rates", "pays"),
    [
        ({"float32": 100.0, "bfloat16": 390.0}, True),
        ({"float32": 100.0, "bfloat16": 150.0}, False),
        ({"float32": 90.0, "bfloat16": 8.0}, False),
    ],
)
def test_some_commands_take_bf16_where_products_in_it_were_fast(
    monkeypatch, tmp_path, rates, pays, command, fast
):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path))
    monkeypatch.setattr(bf16_products, "measure_rates", lambda: rates)

    kinds = [command_precision(command, "cpu", word).kind for word in ("auto", "fp32", "bf16")]
    monkeypatch.setattr(bf16_products, "measure_rates", dict)  # it is kept
    again = command_precision(command, "cpu", "auto").kind

    assert kinds == [fast if pays else "fp32", "fp32", "bf16"]
    assert again == kinds[0]


def test_what_is_kept_of_a_machine_is_measured_again_where_it_is_damaged(monkeypatch, tmp_path):
    bf16_products.is_fast(tmp_path)
    (record,) = tmp_path.rglob("*.json")
    record.write_text('{"float32": "fast"}')
    monkeypatch.setattr(bf16_products, "measure_rates", lambda: {"float32": 1.0, "bfloat16": 3.0})

    assert bf16_products.is_fast(tmp_path)
    assert '"bfloat16": 3.0' in record.read_text()


@pytest.mark.parametrize("name", ["fp61", "fp16"])
def test_an_unknown_precision_and_fp16_on_a_cpu_are_refused(name):
    with pytest.raises(ConfigError, match=r"^precision: "):
        Precision.choose(name, CPU)


def test_fp16_alone_scales_its_gradients():
    assert Precision("fp16", CPU).scaler().is_enabled()
    assert not Precision("bf16", CPU).scaler().is_enabled()


@pytest.mark.parametrize(("kind", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_products_are_computed_in_the_kind(kind, dtype):
    with Precision(kind, CPU).context():
        product = torch.ones(2, 2) @ torch.ones(2, 2)

    assert product.dtype == dtype


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cpu:", "cuda:x", "cuda:", "cuda:²", "tpu", ""])
def test_an_unknown_device_is_refused(name):
    with pytest.raises(ConfigError, match=rf"device: '{name}' is not .* cuda \(a GPU\) or cuda:N"):
        choose_device(name)


def test_a_cpu_can_be_chosen_and_no_gpu_that_is_not_there():
    assert choose_device("cpu") == CPU
    with pytest.raises(RunError, match=r"device: cuda:99 asked for, but .*use device=auto"):
        choose_device("cuda:99")


def test_training_in_bfloat16_stays_close_and_keeps_weights_in_float32():
    recipe, data = tiny.Recipe(total=10), tiny.blocks()
    exact = tiny.run(CausalLM(), data, recipe).go()
    rough = tiny.run(CausalLM(), data, tiny.Recipe(total=10, precision=Precision("bf16", CPU))).go()

    assert rough.losses == pytest.approx(exact.losses, rel=0.02)
    assert rough.losses != exact.losses
    assert all(p.dtype == torch.float32 for p in rough.step.model.parameters())


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("form", FORMS)
def test_a_residual_stream_in_bfloat16_stays_so_and_close(form, norm):
    backbone, tokens_BT = tiny.backbone(residual=form, norm=norm), 5 + torch.arange(24).view(2, 12)
    with Precision("bf16", CPU).context():
        wide = backbone(tokens_BT, tokens_BT > 0)
        backbone.set_residual_dtype(torch.bfloat16)
        narrow = backbone(tokens_BT, tokens_BT > 0)

    assert {state.dtype for state in narrow} == {torch.bfloat16}
    for ours, exact in zip(narrow, wide, strict=True):
        assert_close(ours.float(), exact.float(), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_a_residual_stream_in_bfloat16_needs_that_precision(kind):
    loop = LoopConfig(bf16_residual=True)

    check_residual(loop, Precision("bf16", CPU))
    with pytest.raises(ConfigError, match=rf"^loop\.bf16_residual: the precision is {kind}; take"):
        check_residual(loop, Precision(kind, CPU))


FP16 = Precision("fp16", torch.device("cuda"))
COMPILED = {"compile": True}
EAGER_GRAPH = {"compile": False}


@pytest.mark.parametrize(
    ("loop", "changes", "why"),
    [
        (COMPILED, {}, None),
        (COMPILED, {"precision": Precision("bf16", CPU)}, "device is cpu"),
        (COMPILED, {"differs": True}, "differ"),
        (COMPILED, {"losses": ["text", "text"]}, "2 losses"),
        (COMPILED, {"micro_batch": 16}, "16 of 32"),
        (COMPILED, {"is_shared": True}, "processes"),
        (COMPILED | {"activation_checkpointing": True}, {}, None),
        (EAGER_GRAPH, {}, "loop.compile is off"),
        (EAGER_GRAPH, {"losses": ["questions"]}, None),
        (EAGER_GRAPH | {"pack": True}, {"losses": ["questions"]}, "pack"),
        (EAGER_GRAPH | {"activation_checkpointing": True}, {"losses": ["questions"]}, "checkpoint"),
        (EAGER_GRAPH, {"losses": ["annealed"]}, "alike"),
        (EAGER_GRAPH, {"losses": ["questions"], "solves": True}, "optimizer"),
        (EAGER_GRAPH, {"losses": ["questions"], "precision": FP16}, "fp16"),
    ],
)
def test_a_cuda_graph_is_of_a_step_that_is_one_pass(loop, changes, why):
    objectives = {
        "text": CausalLM(), "questions": Classification(),
        "annealed": Classification(annealing="log"),
    }  # fmt: skip
    usual = {
        "precision": Precision("bf16", torch.device("cuda")), "losses": ["text"],
        "micro_batch": 32, "differs": False, "is_shared": False, "solves": False,
    } | changes  # fmt: skip
    losses = [Loss(name, objectives[name]) for name in usual.pop("losses")]

    def takes(asked):
        asked = LoopConfig(**loop, cuda_graphs=asked)
        return takes_graphs(asked, losses=losses, **usual)

    assert takes("auto") == (why is None)
    assert not takes(False)
    with (
        pytest.raises(ConfigError, match=rf"^loop\.cuda_graphs: .*{why}") if why else nullcontext()
    ):
        assert takes(True)


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_each_process_of_a_machine_has_its_own_gpu(two_gpus):
    for name in ("auto", "cuda"):
        devices = [device_of_process(name, number, 2) for number in range(2)]
        assert devices == [torch.device("cuda:0"), torch.device("cuda:1")]
    assert device_of_process("cpu", 5, 8) == torch.device("cpu")


def test_all_processes_are_told_of_too_few_gpus(two_gpus):
    for number in range(3):
        with pytest.raises(RunError, match="3 processes need a GPU each, and this machine has 2"):
            device_of_process("cuda", number, 3)
    with pytest.raises(ConfigError, match="cuda:1 is one GPU"):
        device_of_process("cuda:1", 0, 2)
