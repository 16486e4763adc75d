"""Legend: B batch, A heads of relations, T queries, S keys, W width of a head."""

import math
import re

import pytest
import torch

from tests import tiny
from tests.tiny import sums
from transfer_cli.batch import with_facts, with_packed_rows
from transfer_cli.errors import ConfigError, RunError
from transfer_cli.model.probes import set_probe
from transfer_cli.model.transfer_model import TransferModel
from transfer_cli.objectives.base import Encoding, TaskInfo
from transfer_cli.objectives.relation_distillation import RelationDistillation
from transfer_cli.seeds import ExampleNoise
from transfer_cli.testing import objectives as contract

DIRECTIONS = pytest.mark.parametrize("direction", ["causal", "bidirectional"])
KINDS = pytest.mark.parametrize("heads", [None, 4])


def model_of(seed=0, **changes):
    model = TransferModel(tiny.backbone(**changes), {})
    tiny.lively(model, seed)
    return model


def at_work(*, direction="bidirectional", own=None, theirs=None, **options):
    """Return the objective with its teacher, a student, and a padded batch."""
    objective = tiny.bound(RelationDistillation(("A",), **options))
    student = model_of(direction=direction, **(own or {}))
    teacher = model_of(1, direction=direction, **(theirs or {})).eval().requires_grad_(False)
    objective.check_teachers([teacher.backbone.shape], "objective")
    assert objective.modules(student.backbone) == {}
    objective.set_teachers([teacher])
    data = tiny.Questions(causal=direction == "causal", examples=6)
    return objective, student, with_facts(tiny.all_of(data))


def total(objective, model, batch):
    return torch.stack([*sums(objective, model, batch).values()]).sum()


@KINDS
@DIRECTIONS
def test_it_keeps_the_contract_of_objectives(direction, heads):
    objective, _, _ = at_work(direction=direction, heads=heads)
    raw = tiny.all_of(tiny.Questions(causal=direction == "causal", examples=6))
    case = contract.make_case(objective, TaskInfo(tiny.VOCABULARY, tiny.LABELS), raw)

    contract.preparing_repeats(case)
    contract.sums_add_up_over_halves(case)
    contract.padding_never_contributes(case)
    contract.declared_metrics_are_measured(case)


@KINDS
@DIRECTIONS
def test_a_student_that_is_its_teacher_has_nothing_to_learn(direction, heads):
    objective, student, batch = at_work(direction=direction, heads=heads)
    student.load_state_dict(objective.teacher_models[0].state_dict())

    loss = total(objective, student, batch)
    loss.backward()

    assert float(loss.detach()) == pytest.approx(0, abs=1e-5)
    largest = max(float(p.grad.abs().max()) for p in student.parameters() if p.grad is not None)
    assert largest < 1e-4


@DIRECTIONS
def test_attention_is_compared_as_it_is_computed(direction):
    objective, student, batch = at_work(direction=direction, own={"depth": 2, "width": 8})

    def attention(model):
        shares = {}
        with set_probe(model.backbone, probabilities=shares.__setitem__), torch.no_grad():
            Encoding(model, batch).states  # noqa: B018 - computes them
        return shares[model.backbone.shape.depth - 1]

    p, q = attention(objective.teacher_models[0]), attention(student)
    each_BAT = torch.where(p > 0, p * (p.log() - q.log()), 0).sum(-1)
    expected = each_BAT.mean(1)[batch["mask"]].sum()

    loss = float(sums(objective, student, batch)["attention"].detach())
    assert loss == pytest.approx(float(expected), rel=1e-4)


def test_relations_of_parts_are_those_of_the_concatenated_width():
    objective, student, batch = at_work(heads=4, own={"depth": 2, "width": 8, "heads": 1})
    mask_BT = batch["mask"]

    def values(model):
        projections = {}
        with set_probe(model.backbone, projections=projections.__setitem__), torch.no_grad():
            Encoding(model, batch).states  # noqa: B018 - computes them
        return projections[model.backbone.shape.depth - 1].value.transpose(1, 2).flatten(2)

    expected = 0.0
    for p_BTD, q_BTD in [(values(objective.teacher_models[0]), values(student))]:
        for row in range(len(mask_BT)):
            relations = []
            for states_TD in (p_BTD[row][mask_BT[row]], q_BTD[row][mask_BT[row]]):
                parts = states_TD.chunk(4, dim=-1)
                relations.append([x @ x.T / math.sqrt(x.shape[-1]) for x in parts])
            for p, q in zip(*relations, strict=True):
                log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
                expected += float((log_p.exp() * (log_p - log_q)).sum()) / 4

    loss = float(sums(objective, student, batch)["values"].detach())
    assert loss == pytest.approx(expected, rel=1e-4)


@KINDS
def test_a_student_of_half_the_width_learns_the_relations(heads):
    objective, student, _ = at_work(heads=heads, own={"width": 8, "depth": 1})
    raw = tiny.all_of(tiny.Questions(causal=False, examples=6))
    step = tiny.train_step(student, objective, tiny.Recipe(rate=3e-2, total=60))

    reports = [float(step([{"main": raw}], number).total) for number in range(60)]

    assert reports[-1] < 0.3 * reports[0]


def test_what_follows_the_projections_of_the_last_block_does_not_train():
    objective, student, batch = at_work()
    total(objective, student, batch).backward()

    still = {name for name, p in student.named_parameters() if p.grad is None}

    last = student.backbone.blocks[-1]
    parts = (last.attention.output, last.feed_forward, last.feed_forward_norm)
    after = {id(p) for part in (*parts, student.backbone.final_norm) for p in part.parameters()}
    assert still == {name for name, p in student.named_parameters() if id(p) in after}
    assert not objective.reaches_all


@KINDS
def test_texts_that_share_a_row_relate_as_in_rows_of_their_own(heads):
    objective, student, batch = at_work(heads=heads)
    raw = tiny.all_of(tiny.Questions(causal=False, examples=6))

    apart, together = (sums(objective, student, view) for view in (batch, with_packed_rows(raw)))

    for name, value in apart.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-5)


def test_recomputed_blocks_have_the_same_gradients():
    objective, student, batch = at_work()
    total(objective, student, batch).backward()
    plain = {n: p.grad.clone() for n, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    student.backbone.set_activation_checkpointing(True)

    total(objective, student, batch).backward()

    for name, gradient in plain.items():
        recomputed = dict(student.named_parameters())[name].grad
        torch.testing.assert_close(recomputed, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        *({"position_kind": kind} for kind in ("rotary", "relative_bias", "sinusoidal")),
        {"heads": 4, "key_value_heads": 2},
    ],
    ids=lambda changes: "-".join(map(str, changes.values())),
)
@KINDS
def test_any_kind_of_positions_and_heads_that_share_keys_are_compared(changes, heads):
    objective, student, batch = at_work(heads=heads, own=changes, theirs=changes)
    before = sums(objective, student, batch)

    student.load_state_dict(objective.teacher_models[0].state_dict())

    assert all(float(value.detach()) > 1e-3 for value in before.values())
    assert sum(float(v.detach()) for v in sums(objective, student, batch).values()) < 1e-4


def test_an_earlier_block_of_the_teacher_may_be_learnt():
    objective, student, batch = at_work(teacher_layer=0)
    student.load_state_dict(objective.teacher_models[0].state_dict())
    last = sums(objective, student, batch)["attention"]
    objective.teacher_layer = None

    assert float(sums(objective, student, batch)["attention"].detach()) < 1e-4
    assert float(last.detach()) > 1e-2


def begin(student, teacher, **options):
    objective = tiny.bound(RelationDistillation(("A",), **options))
    trunk = tiny.backbone(**student)
    objective.check_teachers([tiny.shape(**teacher)], "objective")
    objective.modules(trunk)


WINDOW = {"attention": "window", "window": 3}
REFUSED = {
    "objective.heads: the student has 4 heads and its teacher 2; give model.heads=2": (
        {"heads": 4}, {}, {},
    ),
    "2 heads of keys and its teacher 1; give model.key_value_heads=1": (
        {}, {"key_value_heads": 1}, {},
    ),
    "A has projections of 16 numbers, which cannot be split into 5": ({}, {}, {"heads": 5}),
    "the student has projections of 24 numbers, which cannot be split into 16": (
        {"width": 24}, {}, {"heads": 16},
    ),
    "A has a window of attention in its block 2": ({}, WINDOW, {}),
    "the student has a window of attention in its block 2": (WINDOW, {}, {}),
    "A has the blocks 0 to 2, so there is no teacher_layer=3": ({}, {}, {"teacher_layer": 3}),
    "A has blocks that share their weights; leave teacher_layer out": (
        {}, {"share": "all"}, {"teacher_layer": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", REFUSED)
def test_relations_that_cannot_be_compared_are_refused_with_a_cure(said):
    student, teacher, options = REFUSED[said]

    with pytest.raises(ConfigError, match=re.escape(said)):
        begin(student, teacher, **options)


def test_without_a_teacher_it_says_that_it_cannot_be_computed():
    objective, student, batch = at_work()
    prepared = objective.prepare(batch, ExampleNoise(0))
    objective.set_teachers([])

    with pytest.raises(RunError, match=r"^objective: .* a finished run does not hold"):
        sums(objective, student, prepared)
