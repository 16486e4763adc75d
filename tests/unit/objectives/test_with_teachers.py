"""Language models that learn from others: from teachers, from their own start."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests import tiny
from tests.tiny import sums
from tests.unit.tasks.test_seq2seq import PAIRS, TOKENIZER
from transfer_cli.batch import with_facts
from transfer_cli.data.split import TextStats
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.model.encoder_decoder import build_backbone
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.language_model import token_logits
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.with_teachers import DistilLM, SourceDistillation
from transfer_cli.seeds import ExampleNoise
from transfer_cli.tasks.text_to_text.seq2seq import Seq2Seq
from transfer_cli.tasks.text_to_text.task import PrefixLM, TextToTextTask
from transfer_cli.testing import objectives as contract

BOTH = pytest.mark.parametrize("kind", [CausalLM, MaskedLM])


def teacher_of(language_model, seed=1, **changes):
    """Return a lively frozen model with the head that a student of it needs."""
    trunk = tiny.backbone(direction=language_model.direction, **changes)
    model = TransferModel(trunk, language_model.modules(trunk))
    tiny.lively(model, seed)
    return model.eval().requires_grad_(False)


def at_work(kind=MaskedLM, *, teachers=1, options=None, depth=3, **changes):
    """Return the objective with its teachers, a student, and a batch that is prepared."""
    objective = DistilLM(tuple("ABC"[:teachers]), kind(), **(options or {}))
    direction = objective.direction
    student = tiny.model(objective, direction=direction, depth=depth, **changes)
    tiny.lively(student)
    objective.set_teachers(
        [teacher_of(objective.language_model, seed) for seed in range(1, 1 + teachers)]
    )
    data = tiny.Questions(causal=direction == "causal", examples=6)
    noise = ExampleNoise(0, "train", 0)
    return objective, student, with_facts(objective.prepare(tiny.all_of(data), noise))


def log_shares(model, batch, at_BT, temperature=1.0):
    """Return what a language model says at some places."""
    top = Encoding(model, batch).top[at_BT]
    return (token_logits(model, top) / temperature).log_softmax(-1)


def kl(log_p, log_q):
    return float((log_p.exp() * (log_p - log_q)).sum())


@BOTH
def test_it_keeps_the_contract_of_objectives(kind):
    objective = DistilLM(("A",), kind())
    raw = tiny.all_of(tiny.Questions(causal=objective.direction == "causal", examples=6))
    case = contract.make_case(objective, TaskInfo(tiny.VOCABULARY, tiny.LABELS), raw)
    objective.set_teachers([teacher_of(objective.language_model)])

    contract.preparing_repeats(case)
    contract.sums_add_up_over_halves(case)
    contract.padding_never_contributes(case)
    contract.declared_modules_learn(case)
    contract.outcomes_add_up(case)
    contract.declared_metrics_are_measured(case)


@BOTH
def test_each_term_is_the_formula_over_its_own_positions(kind):
    objective, student, batch = at_work(kind)
    (teacher,) = objective.teacher_models
    real_BT = batch["mask"]

    with torch.no_grad():
        ours, theirs = (Encoding(model, batch).top[real_BT] for model in (student, teacher))
        log_p, log_q = (log_shares(model, batch, real_BT, 2.0) for model in (teacher, student))
        totals = sums(objective, student, batch)
        plain = objective.language_model.loss_sums(student, batch, Encoding(student, batch))
    distance = (1 - F.cosine_similarity(ours, theirs, dim=-1)).sum()

    assert float(totals["divergence"]) == pytest.approx(4 * kl(log_p, log_q), rel=1e-4)
    assert float(totals["distance"]) == pytest.approx(float(distance), rel=1e-4)
    assert torch.equal(totals["loss"], plain["loss"])
    targets, positions = int((batch["target"] >= 0).sum()), int(real_BT.sum())
    counts = {"loss": targets, "divergence": positions, "distance": positions}
    assert objective.counts(batch) == counts


def test_the_terms_weigh_as_in_the_released_code():
    assert DistilLM(("A",), MaskedLM()).weights == {"loss": 2, "divergence": 5, "distance": 1}


def test_predictions_may_be_compared_at_hidden_tokens_alone():
    objective, student, batch = at_work(options={"only_masked": True})

    divergence = sums(objective, student, batch)["divergence"]
    hidden = {**batch, "compared": batch["target"] >= 0}
    del hidden["compared_rows"]
    objective.only_masked = False

    assert torch.equal(divergence, sums(objective, student, hidden)["divergence"])
    objective.only_masked = True
    assert objective.counts(batch)["divergence"] == int((batch["target"] >= 0).sum())


def test_an_ensemble_is_the_mean_of_its_probabilities():
    objective, student, batch = at_work(teachers=2, options={"temperature": 1.0})

    with torch.no_grad():
        shares = [log_shares(t, batch, batch["mask"]).exp() for t in objective.teacher_models]
        expected = kl(torch.stack(shares).mean(0).log(), log_shares(student, batch, batch["mask"]))

    divergence = float(sums(objective, student, batch)["divergence"].detach())
    assert divergence == pytest.approx(expected, rel=1e-4)


def test_teachers_never_move_drop_nothing_and_are_no_part_of_the_student():
    objective, student, _ = at_work(dropout=0.5)
    (teacher,) = objective.teacher_models
    before, names = tiny.weights_of(teacher), set(student.state_dict())
    run = tiny.train_step(student, objective, tiny.Recipe())

    run([{"main": tiny.all_of(tiny.Questions(causal=False, examples=6))}], 0)

    assert tiny.same(tiny.weights_of(teacher), before)
    assert all(p.grad is None and not p.requires_grad for p in teacher.parameters())
    assert set(student.state_dict()) == names
    trained = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    assert trained == {id(p) for p in student.parameters()}


def test_a_teacher_computes_states_of_its_own_where_those_of_the_student_are_kept():
    objective, student, batch = at_work(CausalLM)
    expected = sums(objective, student, batch)
    states = torch.stack(list(Encoding(student, batch).states), dim=-2)

    totals = sums(objective, student, {**batch, "states": states})

    for term, value in expected.items():
        torch.testing.assert_close(totals[term], value, rtol=1e-5, atol=1e-5)


def test_a_finished_student_is_a_language_model():
    inner = {"_target_": "transfer_cli.objectives.masked_lm.MaskedLM", "rate": 0.3}
    node = {"_target_": "...DistilLM", "teachers": ["A"], "language_model": inner}

    assert DistilLM(("A",), MaskedLM()).described(node) == inner


def test_measures_are_those_of_the_language_model_and_the_terms_beside_it():
    totals = {term: torch.tensor(6.0) for term in ("loss", "divergence", "distance")}
    counts = {"loss": 3, "divergence": 6, "distance": 12}

    measures = DistilLM(("A",), MaskedLM()).compute_metrics(totals, counts, TextStats())

    assert measures == {
        "loss": 2.0, "masked_token_perplexity": pytest.approx(7.389, abs=1e-3),
        "divergence": 1.0, "distance": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize("direction", ["causal", "bidirectional", "encoder_decoder"])
def test_of_texts_made_from_others_predictions_are_compared_at_the_targets(direction):
    info = TaskInfo(TOKENIZER, task=TextToTextTask(target_length=5))
    pair = Seq2Seq() if direction == "encoder_decoder" else PrefixLM()
    objective = DistilLM(("A",), pair, cosine_weight=0.0)
    objective.check_teachers([tiny.shape(direction=direction, width=32)], "objective")
    objective.setup(info)
    student, teacher = (
        TransferModel(backbone, objective.modules(backbone)).eval()
        for backbone in (
            build_backbone(tiny.shape(direction=direction), TOKENIZER.size),
            build_backbone(tiny.shape(direction=direction, depth=3), TOKENIZER.size),
        )
    )
    tiny.lively(student, 0)
    tiny.lively(teacher, 1)
    objective.set_teachers([teacher])
    data = info.task.encode(PAIRS, TOKENIZER, 16, direction)
    batch = with_facts(objective.prepare(data.batch(np.arange(2)), ExampleNoise(0, "train", 0)))

    with torch.no_grad():
        log_p, log_q = (
            log_shares(model, batch, batch["target"] >= 0, 2.0) for model in (teacher, student)
        )
        totals = sums(objective, student, batch)
    assert float(totals["divergence"]) == pytest.approx(4 * kl(log_p, log_q), rel=1e-4)
    assert objective.counts(batch) == {"loss": 5, "divergence": 5}  # red, is blue, and their ends
    assert objective.task == "text to text"
    other = build_backbone(
        tiny.shape(direction="causal" if direction != "causal" else "bidirectional"), 9
    )
    with pytest.raises(ConfigError, match=r"^objective\.teachers: A is "):
        objective.modules(other)


def test_a_teacher_that_looks_the_other_way_is_refused_with_the_cure():
    objective = DistilLM(("A",), MaskedLM())

    with pytest.raises(ConfigError, match=r"^objective\.teachers: A is causal, .*CausalLM$"):
        objective.check_teachers([tiny.shape(direction="causal")], "objective")


def test_states_of_another_width_are_not_compared_unless_their_weight_is_0():
    compares, leaves_out = (
        DistilLM(("A",), CausalLM(), cosine_weight=weight) for weight in (1.0, 0.0)
    )
    for objective in (compares, leaves_out):
        objective.check_teachers([tiny.shape(width=32)], "losses.lm")

    with pytest.raises(ConfigError, match=r"^losses\.lm\.cosine_weight: .* 16 .* 32"):
        compares.modules(tiny.backbone())
    assert set(leaves_out.modules(tiny.backbone())) == {"lm"}
    assert set(leaves_out.weights) == {"loss", "divergence"}


def test_without_teachers_it_says_that_it_cannot_be_computed():
    objective, student, batch = at_work()
    objective.set_teachers([])

    with pytest.raises(RunError, match=r"^objective: .* a finished run does not hold"):
        sums(objective, student, batch)


INNER = pytest.mark.parametrize("inner", [CausalLM(), MaskedLM(0.4)], ids=["clm", "mlm"])


def names_of(model):
    return {name for name, _ in model.named_parameters()}


def from_start(inner=None, *, temperature=2.0, **changes):
    """Return the objective, started, its model, and a batch of questions it has prepared."""
    inner = inner or CausalLM()
    objective = SourceDistillation(inner, temperature)
    model = tiny.model(objective, direction=inner.direction, **changes)
    tiny.lively(model)
    objective.on_train_start(model, names_of(model))
    data = tiny.Questions(causal=inner.direction == "causal", examples=6)
    return objective, model, objective.prepare(tiny.all_of(data), ExampleNoise(0, "train", 0))


@INNER
def test_distillation_to_the_start_keeps_the_contract_of_objectives(inner):
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


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_it_is_the_divergence_at_every_real_token_times_the_square_of_the_temperature(temperature):
    objective, model, batch = from_start(temperature=temperature)

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

    loss = float(sums(objective, model, batch)["loss"].detach())
    assert loss == pytest.approx(float(expected), rel=1e-4)
    assert objective.counts(batch) == {"loss": int(batch["mask"].sum())}


def test_a_masked_model_is_compared_where_tokens_are_hidden():
    objective, _, batch = from_start(MaskedLM(0.4))
    inner = tiny.bound(MaskedLM(0.4))
    raw = tiny.all_of(tiny.Questions(causal=False, examples=6))

    view = inner.prepare(raw, ExampleNoise(0, "train", 0))

    assert torch.equal(batch["tokens"], view["tokens"])
    assert torch.equal(batch["compared"], inner.prediction_mask(view))
    assert objective.counts(batch) == inner.counts(view)


@INNER
def test_it_looks_and_corrupts_as_its_language_model_does_and_may_share_a_pass(inner):
    objective = SourceDistillation(inner)
    raw = tiny.all_of(tiny.Questions(examples=3))

    prepared = tiny.bound(objective).prepare(raw, ExampleNoise(0))

    assert objective.direction == inner.direction
    assert objective.keeps_tokens == inner.keeps_tokens == (prepared["tokens"] is raw["tokens"])


def test_the_source_never_moves_is_never_trained_and_drops_nothing():
    objective, model, batch = from_start(dropout=0.5)
    model.train()
    tiny.lively(model, seed=1)
    before = len(model.state_dict())

    torch.manual_seed(0)
    encoded = Encoding(model, batch)
    _ = encoded.top  # the student draws its dropout here
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
    objective, model, batch = from_start(MaskedLM(0.4))
    rows = []
    for head in (model.heads["lm"], objective._source.heads["lm"]):
        head.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))

    sums(objective, model, batch)

    assert rows == [objective.counts(batch)["loss"]] * 2


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


def test_heads_of_other_losses_and_parts_that_change_nothing_at_the_start_may_be_new():
    objective = SourceDistillation(CausalLM())
    model = tiny.model(objective, Classification())
    inherited = {n for n in names_of(model) if not n.startswith("heads.class")}
    model.backbone.blocks[0].sites["after_attention"] = tiny.AddedLinear(16, 16)

    objective.on_train_start(model, inherited)

    assert set(objective._source.heads) == {"lm"}


def test_without_a_start_it_says_that_it_cannot_be_computed():
    _, model, batch = from_start()
    finished = SourceDistillation(CausalLM())
    finished.setup(TaskInfo(tiny.VOCABULARY, name="source"))

    with pytest.raises(RunError, match=r"^losses\.source: .* a finished run does not hold"):
        finished.metric_sums(model, batch, Encoding(model, batch))
