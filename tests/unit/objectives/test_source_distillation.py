"""Legend: B batch, T positions, V vocabulary."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.with_teachers import SourceDistillation
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing import objectives as contract

BOTH = pytest.mark.parametrize("inner", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])


def names_of(model):
    return {name for name, _ in model.named_parameters()}


def at_work(inner=None, *, temperature=2.0, **changes):
    """Return the objective, started, its model, and a batch of questions it has prepared."""
    inner = inner or CausalLM()
    objective = SourceDistillation(inner, temperature)
    model = tiny.model(objective, direction=inner.direction, **changes)
    tiny.lively(model)
    objective.on_train_start(model, names_of(model))
    data = tiny.Questions(causal=inner.direction == "causal", examples=6)
    return objective, model, objective.prepare(tiny.all_of(data), ExampleNoise(0, "train", 0))


def loss(objective, model, batch):
    return objective.loss_sums(model, batch, Encoding(model, batch))["loss"]


@BOTH
def test_it_keeps_the_contract_of_objectives(inner):
    data = tiny.Questions(causal=inner.direction == "causal")
    objective = SourceDistillation(inner)
    case = contract.make_case(
        objective, TaskInfo(tiny.VOCABULARY, tiny.LABELS), data.batch(np.arange(6))
    )
    objective.on_train_start(case.model, names_of(case.model))
    # Where it started its gradient is 0, and would show nothing.
    tiny.lively(case.model, seed=1)

    contract.preparing_repeats(case)
    contract.counts_match_what_contributes(case)
    contract.sums_add_up_over_halves(case)
    contract.padding_never_contributes(case)
    contract.declared_modules_learn(case)


@BOTH
def test_where_it_started_the_loss_is_0_and_so_is_its_gradient(inner):
    objective, model, batch = at_work(inner, dropout=0.5)
    model.eval()

    value = loss(objective, model, batch)
    value.backward()

    assert float(value.detach()) == 0
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    assert largest < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_it_is_the_divergence_at_every_real_token_times_the_square_of_the_temperature(temperature):
    objective, model, batch = at_work(temperature=temperature)

    def probabilities():
        with torch.no_grad():
            top = model.backbone(batch["tokens"], batch["mask"])[-1]
            head, table = model.heads["lm"], model.backbone.token_embedding.weight
            return ((top @ table.T + head.bias) / temperature).double().softmax(-1)

    before = probabilities()
    tiny.lively(model, seed=1)
    after = probabilities()
    divergence_BT = (before * (before.log() - after.log())).sum(-1)
    expected = temperature**2 * divergence_BT[batch["mask"]].sum()

    assert float(loss(objective, model, batch).detach()) == pytest.approx(float(expected), rel=1e-4)
    assert objective.counts(batch) == {"loss": int(batch["mask"].sum())}


def test_its_gradient_is_that_of_the_papers_cross_entropy():
    objective, model, batch = at_work()
    with torch.no_grad():
        before = model.heads["lm"](
            Encoding(model, batch).top[batch["mask"]], model.backbone.token_embedding.weight
        )
    tiny.lively(model, seed=1)

    loss(objective, model, batch).backward()
    found = model.backbone.token_embedding.weight.grad.clone()
    model.zero_grad()
    now = model.heads["lm"](
        Encoding(model, batch).top[batch["mask"]], model.backbone.token_embedding.weight
    )
    (4 * F.cross_entropy(now / 2, (before / 2).softmax(-1), reduction="sum")).backward()

    wanted = model.backbone.token_embedding.weight.grad
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_masked_model_is_compared_where_tokens_are_hidden():
    objective, _, batch = at_work(MaskedLM(0.4))
    inner = tiny.bound(MaskedLM(0.4))
    raw = tiny.all_of(tiny.Questions(causal=False, examples=6))

    view = inner.prepare(raw, ExampleNoise(0, "train", 0))

    assert torch.equal(batch["tokens"], view["tokens"])
    assert torch.equal(batch["compared"], inner.predicts(view))
    assert objective.counts(batch) == inner.counts(view)


@BOTH
def test_it_looks_and_corrupts_as_its_language_model_does(inner):
    objective = SourceDistillation(inner)

    assert objective.direction == inner.direction
    assert objective.keeps_tokens == inner.keeps_tokens


def test_a_loss_that_keeps_its_tokens_can_share_a_pass_with_the_main_loss():
    raw = tiny.all_of(tiny.Questions(examples=3))

    prepared = tiny.bound(SourceDistillation(CausalLM())).prepare(raw, ExampleNoise(0))

    assert prepared["tokens"] is raw["tokens"]


def test_the_source_never_moves_is_never_trained_and_drops_nothing():
    objective, model, batch = at_work(dropout=0.5)
    model.train()
    tiny.lively(model, seed=1)
    before = len(model.state_dict())

    torch.manual_seed(0)
    encoded = Encoding(model, batch)
    encoded.top  # noqa: B018 - the student draws its dropout here
    state = torch.get_rng_state()
    objective.loss_sums(model, batch, encoded)["loss"].backward()

    assert torch.equal(torch.get_rng_state(), state)
    assert len(model.state_dict()) == before
    source = objective._source
    assert not source.training
    assert all(p.grad is None and not p.requires_grad for p in source.parameters())
    fresh = tiny.model(CausalLM())
    tiny.lively(fresh)
    assert tiny.same(tiny.weights_of(source), tiny.weights_of(fresh))


def test_logits_are_computed_only_where_they_are_compared():
    objective, model, batch = at_work(MaskedLM(0.4))
    rows = []
    for head in (model.heads["lm"], objective._source.heads["lm"]):
        head.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))

    loss(objective, model, batch)

    assert rows == [objective.counts(batch)["loss"]] * 2


def test_measures_are_the_mean():
    found = SourceDistillation(CausalLM()).compute_metrics(
        {"loss": torch.tensor(3.0)}, {"loss": 12}, TextStats()
    )

    assert found == {"loss": 0.25}


@pytest.mark.parametrize(
    ("dropped", "named"),
    [
        ("heads.lm.", r"heads\.lm\.bias"),
        ("backbone.token_embedding.", r"backbone\.token_embedding\.weight"),
        ("backbone.blocks.2.", r"backbone\.blocks\.2\..* and \d+ more"),
    ],
)
@pytest.mark.parametrize(("name", "key"), [("main", "objective"), ("source", r"losses\.source")])
def test_a_source_that_is_not_pretrained_is_refused(dropped, named, name, key):
    objective = SourceDistillation(CausalLM())
    model = tiny.model(objective)
    objective.setup(TaskInfo(tiny.VOCABULARY, name=name))
    inherited = {n for n in names_of(model) if not n.startswith(dropped)}

    with pytest.raises(ConfigError, match=rf"^{key}: .*{named}.*init_from=RUN of a language model"):
        objective.on_train_start(model, inherited)


def test_heads_of_other_losses_may_be_new():
    objective = SourceDistillation(CausalLM())
    model = tiny.model(objective, Classification())
    inherited = {n for n in names_of(model) if not n.startswith("heads.class")}

    objective.on_train_start(model, inherited)

    assert set(objective._source.heads) == {"lm"}


def test_parts_that_change_nothing_at_the_start_may_be_new():
    objective = SourceDistillation(CausalLM())
    model = tiny.model(objective)
    inherited = names_of(model)
    model.backbone.blocks[0].sites["after_attention"] = tiny.AddedLinear(16, 16)

    objective.on_train_start(model, inherited)

    assert objective._source is not None


def test_without_a_start_it_says_that_it_cannot_be_computed():
    _, model, batch = at_work()
    finished = SourceDistillation(CausalLM())
    finished.setup(TaskInfo(tiny.VOCABULARY, name="source"))

    with pytest.raises(RunError, match=r"^losses\.source: .* a finished run does not hold"):
        finished.metric_sums(model, batch, Encoding(model, batch))


@pytest.mark.parametrize("temperature", [0, -1.0, float("inf"), float("nan")])
def test_a_temperature_that_cannot_work_is_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be above 0"):
        SourceDistillation(CausalLM(), temperature)
