import dataclasses
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from tests import several, tiny
from transfer_cli.adaptation.penalties import L2SP, Start
from transfer_cli.batch import batch_size, with_packed_rows
from transfer_cli.data.loader import StepDataLoader, Stream
from transfer_cli.data.sampler import LaneSampler, StepSampler
from transfer_cli.data.split import Split, TextContext
from transfer_cli.engine import distributed, evaluation
from transfer_cli.engine.carried_memory import CarriedMemory
from transfer_cli.engine.evaluation import EachExample, evaluate
from transfer_cli.engine.precision import Precision
from transfer_cli.errors import DivergedError
from transfer_cli.objectives.base import Loss
from transfer_cli.objectives.beside_main_head import SliceHeads
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.objectives.replaced_tokens import ReplacedTokens
from transfer_cli.optim.muon import MuonWithAdamW
from transfer_cli.runs.slices import Slice
from transfer_cli.tasks.similarity.contrastive import Contrastive

CPU = torch.device("cpu")
CASES = {
    "clm": (CausalLM, lambda: tiny.blocks(tokens=1100), {}),  # 69 blocks, the last one short
    "mlm": (MaskedLM, lambda: tiny.blocks(tokens=1100), {"direction": "bidirectional"}),
    "replaced": (
        lambda: ReplacedTokens(width=0.5),
        lambda: tiny.blocks(tokens=1100),
        {"direction": "bidirectional"},
    ),
    "classification": (Classification, lambda: tiny.Questions(examples=70), {}),
    "pairs": (lambda: Contrastive(matryoshka=(4,)), lambda: tiny.pairs(examples=70), {}),
}
SIZES = {"whole": [32], "uneven": [5, 11, 1, 15]}


def in_sizes(indices, sizes):
    """Cut indices into portions of these sizes; a short batch takes fewer of them."""
    cut = np.split(indices, np.cumsum(sizes)[:-1])
    return [portion for portion in cut if len(portion)]


@cache
def after_five_steps(case, sizes, *, double):
    """Return the weights after five steps, each in portions of these sizes, and the reports."""
    objective, data, changes = CASES[case]
    objective, data = objective(), data()
    model = tiny.model(objective, depth=2, **changes)
    optimizer = torch.optim.AdamW
    if double:
        model.double()
    else:
        # Adam divides by a gradient's size, also where that is nothing but rounding (key biases).
        optimizer = torch.optim.SGD
    recipe = tiny.Recipe(rate=1e-2 if double else 0.5, clip=0.05, optimizer=optimizer, total=5)
    step, order = tiny.train_step(model, objective, recipe), StepSampler(len(data), 32, seed=0)
    # Dropout of the classifier would differ: it is drawn by the micro-batch.
    tiny.without_dropout(model)
    reports = []
    for number in range(5):
        portions = in_sizes(order.indices(number), SIZES[sizes])
        reports.append(step([{"main": data.batch(portion)} for portion in portions], number))
    return tiny.weights_of(model), reports


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("double", [False, True], ids=["sgd", "adamw"])
def test_a_batch_gives_the_same_weights_however_it_is_cut(case, double):
    whole, reports = after_five_steps(case, "whole", double=double)

    cut, cut_reports = after_five_steps(case, "uneven", double=double)

    for name, weight in whole.items():
        assert_close(cut[name], weight, rtol=0, atol=1e-5, msg=name)
    for one, other in zip(reports, cut_reports, strict=True):
        assert float(one.gradient_norm) > 0.05  # the clip was active
        assert float(one.total) == pytest.approx(float(other.total), rel=1e-5)
        assert (one.tokens, one.examples) == (other.tokens, other.examples)


def test_the_last_batch_of_an_epoch_is_short_and_still_taken():
    _, reports = after_five_steps("classification", "uneven", double=False)

    assert [report.examples for report in reports] == [32, 32, 6, 32, 32]


def test_examples_are_compared_beside_a_stream_of_more_micro_batches():
    pairs, text, totals = tiny.pairs(examples=8), tiny.blocks(tokens=1100), []
    for of_main, of_text in (([8], [12]), ([3, 5], [4, 4, 4])):
        losses = [Loss("main", Contrastive()), Loss("lm", CausalLM(), stream="text")]
        model = tiny.model(*[loss.objective for loss in losses])
        step = tiny.train_step(model, losses, tiny.Recipe(rate=0.5, optimizer=torch.optim.SGD))
        micros = [{"text": text.batch(part)} for part in in_sizes(range(12), of_text)]
        for micro, part in zip(micros, in_sizes(range(8), of_main), strict=False):
            micro["main"] = pairs.batch(part)
        totals.append([float(step(micros, number).total) for number in range(2)])

    assert totals[1] == pytest.approx(totals[0], rel=1e-5)


def test_the_gradient_is_that_of_the_mean_over_all_targets():
    objective, data = CausalLM(), tiny.blocks(tokens=100)
    model = tiny.model(objective)
    recipe = tiny.Recipe(optimizer=torch.optim.SGD, rate=1.0)
    batch, before = tiny.all_of(data), tiny.weights_of(model)
    logits = model.heads["lm"](
        model.backbone(batch["tokens"], batch["mask"])[-1], model.backbone.token_embedding.weight
    )
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["next_tokens"].flatten())
    gradients = dict(zip(before, torch.autograd.grad(mean, list(model.parameters())), strict=True))

    report = tiny.train_step(model, objective, recipe)([{"main": batch}], 0)

    assert float(report.total) == pytest.approx(float(mean.detach()), rel=1e-6)
    for name, parameter in model.named_parameters():
        assert_close(parameter.detach(), before[name] - gradients[name], rtol=1e-4, atol=1e-6)


def test_clipping_bounds_the_whole_gradient_and_reports_it_before():
    objective, batch = CausalLM(), tiny.all_of(tiny.blocks(tokens=100))
    recipe = tiny.Recipe(optimizer=torch.optim.SGD, rate=1.0, clip=0.01)
    model = tiny.model(objective)
    before = tiny.weights_of(model)

    report = tiny.train_step(model, objective, recipe)([{"main": batch}], 0)

    moved = torch.cat([(v - before[n]).flatten() for n, v in tiny.weights_of(model).items()])
    assert float(moved.norm()) == pytest.approx(0.01, rel=1e-3)
    assert float(report.gradient_norm) > 0.1


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_within_the_clip_stays_as_it_is(fused):
    objective, batch = CausalLM(), tiny.all_of(tiny.blocks(tokens=100))
    weights = []
    for clip in (None, 1e3):
        torch.manual_seed(0)
        model = tiny.model(objective)
        recipe = tiny.Recipe(optimizer=partial(torch.optim.SGD, fused=fused), rate=1.0, clip=clip)
        tiny.train_step(model, objective, recipe)([{"main": batch}], 0)
        weights.append(tiny.weights_of(model))

    assert_close(weights[0], weights[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("objective", "changes"),
    [(CausalLM(), {"dropout": 0.5}), (MaskedLM(), {"direction": "bidirectional"})],
    ids=["dropout", "what is hidden"],
)
def test_what_is_random_follows_from_the_seed_and_the_step_and_nothing_else(objective, changes):
    batch = tiny.all_of(tiny.blocks(tokens=100))

    def totals(seed, disturb=0):
        torch.manual_seed(disturb)
        still = tiny.Recipe(optimizer=torch.optim.SGD, rate=1e-30, seed=seed)
        step = tiny.train_step(tiny.model(objective, **changes), objective, still)
        return [float(step([{"main": batch}], number).total) for number in (0, 1, 0)]

    first, second, again = totals(0)
    assert first == again
    assert len({first, second, *totals(1)}) == 4
    assert totals(0, disturb=9) == [first, second, again]


# Several losses.


def two_losses(weight):
    classes, words = Classification(), CausalLM()
    model = tiny.model(classes, words)
    return model, [Loss("main", classes), Loss("words", words, weight=weight)]


def test_losses_on_the_same_tokens_share_one_pass_and_add_up_by_weight():
    model, losses = two_losses(weight=0.5)
    passes = []
    model.backbone.register_forward_hook(lambda *_: passes.append(1))
    batch = tiny.all_of(tiny.Questions(examples=8))

    report = tiny.train_step(model, losses, tiny.Recipe())([{"main": batch}], 0)

    assert len(passes) == 1
    expected = report.losses["main/loss"] + 0.5 * report.losses["words/loss"]
    assert_close(report.total, expected)


def test_a_loss_without_weight_moves_nothing_of_its_own():
    model, losses = two_losses(weight=0.0)
    bias = model.heads["lm"].bias.detach().clone()
    recipe = tiny.Recipe(optimizer=torch.optim.SGD)

    tiny.train_step(model, losses, recipe)([{"main": tiny.all_of(tiny.Questions())}], 0)

    assert torch.equal(model.heads["lm"].bias, bias)


# What pulls back.


def pulled_step(portions, strength=0.3):
    """Take a step under a penalty, away from where it started.

    Returns:
        The weights before and after, the gradient of the loss alone, the weights that the penalty
        pulls towards, and the report.
    """
    objective, data = Classification(), tiny.Questions(examples=16)
    model = tiny.model(objective)
    names = {name for name, _ in model.named_parameters()}
    penalty = L2SP(strength, strength)
    penalty.start(Start(model, frozenset(names), lambda *_: {}))
    anchors = tiny.weights_of(model)
    tiny.lively(model)
    tiny.without_dropout(model)
    before = tiny.weights_of(model)
    recipe = tiny.Recipe(optimizer=torch.optim.SGD, rate=1.0)
    micros = [{"main": data.batch(portion)} for portion in portions]
    tiny.train_step(model, objective, recipe)(micros, 0)
    gradients = {name: before[name] - weight for name, weight in tiny.weights_of(model).items()}
    model.load_state_dict(before)

    step = tiny.train_step(model, objective, dataclasses.replace(recipe, penalty=penalty))
    report = step(micros, 0)

    return before, tiny.weights_of(model), gradients, anchors, report


@pytest.mark.parametrize("count", [1, 3], ids=["whole", "cut in three"])
def test_a_penalty_adds_its_own_gradient_once_a_step(count):
    portions = np.array_split(np.arange(16), count)

    before, after, gradients, anchors, _ = pulled_step(portions)

    for name, weight in before.items():
        moved = gradients[name] + 0.3 * (weight - anchors[name])
        assert_close(after[name], weight - moved, rtol=1e-4, atol=1e-5, msg=name)


def test_a_report_counts_the_penalty_once_and_names_it():
    before, _, _, anchors, report = pulled_step([np.arange(16)])

    value = 0.15 * sum(float((w - anchors[n]).square().sum()) for n, w in before.items())
    assert float(report.losses["penalty/l2_sp"]) == pytest.approx(value, rel=1e-4)
    assert float(report.total) == pytest.approx(float(report.losses["main/loss"]) + value, rel=1e-5)


# Nothing to learn from, and too much.


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_a_step_without_any_target_changes_no_weight_and_reports_a_loss_of_zero(kind):
    objective, recipe = MaskedLM(), tiny.Recipe(clip=1.0, precision=Precision(kind, CPU))
    model = tiny.model(objective, direction="bidirectional")
    before = tiny.weights_of(model)
    empty = tiny.rows_to_batch([[2, 1, 3], [2, 3]])

    step = tiny.train_step(model, objective, recipe)
    step.load_state_dict({**step.state_dict(), "scaler": {}})  # of a run in another precision
    report = step([{"main": empty}], 0)

    assert tiny.same(model.state_dict(), before)
    assert float(report.total) == 0
    assert not report.skipped


def test_a_micro_batch_without_any_target_does_not_disturb_the_others():
    objective, full = MaskedLM(), tiny.rows_to_batch([[2, *range(5, 20), 3]])
    empty = {**tiny.rows_to_batch([[2, 1, 3]]), "index": torch.tensor([1])}
    models = [tiny.model(objective, direction="bidirectional") for _ in range(2)]

    for model, micros in zip(models, ([full], [full, empty]), strict=True):
        tiny.train_step(model, objective, tiny.Recipe())([{"main": m} for m in micros], 0)

    assert tiny.same(models[0].state_dict(), models[1].state_dict())


class Hungry(MaskedLM):
    """Has memory for so many sequences."""

    most = 3

    def loss_sums(self, model, batch, encoded):
        if batch_size(batch) > self.most:
            raise torch.OutOfMemoryError
        return super().loss_sums(model, batch, encoded)


def test_a_step_for_which_there_is_no_memory_is_taken_again_in_smaller_passes():
    data, results = tiny.blocks(tokens=1100), {}
    for objective in (MaskedLM(), Hungry()):
        model = tiny.model(objective, direction="bidirectional")
        step = tiny.train_step(model, objective, tiny.Recipe(rate=0.5, optimizer=torch.optim.SGD))
        totals = [
            float(step([{"main": data.batch(range(first, first + 8))}], number).total)
            for number, first in enumerate((0, 8))
        ]
        results[type(objective)] = totals, step.max_rows

    assert results[Hungry][0] == pytest.approx(results[MaskedLM][0], rel=1e-6)
    assert results[Hungry][1] == 2
    assert results[MaskedLM][1] is None


def test_a_sequence_for_which_there_is_no_memory_ends_a_run():
    objective = Hungry()
    model = tiny.model(objective, direction="bidirectional")
    step = tiny.train_step(model, objective, tiny.Recipe())
    objective.most = 0

    with pytest.raises(torch.OutOfMemoryError):
        step([{"main": tiny.blocks(tokens=1100).batch(range(4))}], 0)


def test_a_head_without_targets_in_a_step_moves_on_by_momentum_as_if_others_had_it():
    main, parts = Classification(dropout=0), SliceHeads({"some": Slice(length=(0, 6))})
    model = tiny.model(main, parts)
    step = tiny.train_step(
        model,
        [Loss("main", main), Loss("further", parts)],
        tiny.Recipe(rate=0.1, optimizer=partial(torch.optim.SGD, momentum=0.5)),
    )
    batch, head = tiny.all_of(tiny.Questions(examples=8)), model.heads["class_further_some"]
    weights = []
    for number, member in enumerate((True, False)):
        weights.append(head.linear.weight.detach().clone())
        step([{"main": {**batch, "slices_further": torch.full((8, 1), member)}}], number)

    first, second = weights[1] - weights[0], head.linear.weight - weights[1]
    assert first.any()
    assert_close(second, first / 2)


def poisoned(layer, *, steps, total=20, max_bad_steps=3, clip=1.0, optimizer=torch.optim.AdamW):
    """Return a run whose gradient of one parameter is not a number in some of its steps."""
    recipe = tiny.Recipe(total=total, max_bad_steps=max_bad_steps, clip=clip, optimizer=optimizer)
    run = tiny.run(Classification(), tiny.Questions(), recipe)
    parameter = dict(run.step.model.named_parameters())[layer]
    parameter.register_hook(
        lambda gradient: gradient * float("nan") if run.progress.step in steps else gradient
    )
    return run


WEIGHT = "backbone.blocks.1.feed_forward.inner.weight"


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_run_that_diverges_ends_naming_the_step_and_the_groups(clip):
    run = poisoned(WEIGHT, steps=range(4, 99), max_bad_steps=3, clip=clip)

    with pytest.raises(DivergedError) as diverged:
        run.go()

    text = str(diverged.value)
    assert diverged.value.exit_code == 4
    assert "step 7: loss or gradient is not finite, 3 step(s) in a row, in block.1, on" in text
    seen = run.sampler.indices(6).tolist()
    assert "examples " + ", ".join(f"main {number}" for number in seen) + "; try" in text
    assert run.progress.step == 6


def test_skipped_steps_are_counted_and_change_no_weight():
    run = poisoned(WEIGHT, steps=(2, 3, 7), max_bad_steps=3)
    from ignite.engine import Events

    history = [tiny.weights_of(run.step.model)]
    run.trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda: history.append(tiny.weights_of(run.step.model))
    )

    run.go()

    unchanged = [step for step in range(20) if tiny.same(history[step], history[step + 1])]
    assert unchanged == [2, 3, 7]
    assert run.progress.skipped == 3
    assert [report.skipped for report in run.reports].count(True) == 3
    assert run.step.state_dict()["bad_steps"] == 0
    assert all(weight.isfinite().all() for weight in history[-1].values())


def test_a_loss_that_is_not_a_number_ends_the_run():
    run = tiny.run(Classification(), tiny.Questions(), tiny.Recipe(max_bad_steps=2))
    before = tiny.weights_of(run.step.model)
    run.step.model.heads["class"].linear.bias.data[0] = float("nan")

    with pytest.raises(DivergedError, match=r"step 2: .* in embeddings, block\.0, .*head\.class"):
        run.go()

    after = run.step.model.state_dict()
    assert torch.equal(after["heads.class.linear.weight"], before["heads.class.linear.weight"])


# What is counted, and randomness.


def test_a_report_counts_real_tokens_and_examples():
    data, objective = tiny.Questions(examples=10), Classification()
    step = tiny.train_step(tiny.model(objective), objective, tiny.Recipe())

    report = step([{"main": data.batch(np.arange(6))}, {"main": data.batch(np.arange(6, 10))}], 0)

    assert report.tokens == sum(map(len, data.rows))
    assert report.examples == 10 == batch_size(tiny.all_of(data))


class Endless(Classification):
    """A loss that is infinite now and then, with a gradient that is not."""

    at = 1

    def loss_sums(self, model, batch, encoded):
        sums = super().loss_sums(model, batch, encoded)
        if int(batch["index"][0]) % 2 == self.at:
            # The gradient of what is added is 0.
            sums["loss"] = sums["loss"] + torch.tensor(float("inf"))
        return sums


@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_a_step_whose_loss_is_infinite_is_skipped_though_its_gradient_is_not(kind):
    objective, data = Endless(), tiny.Questions()
    model = tiny.model(objective)
    step = tiny.train_step(model, objective, tiny.Recipe(precision=Precision(kind, CPU)))
    step._scaler = torch.amp.GradScaler("cpu", init_scale=1.0, enabled=kind == "fp16")
    before = tiny.weights_of(model)

    bad = step([{"main": data.batch(np.array([1, 2]))}], 0)
    assert bad.skipped
    assert torch.isfinite(bad.gradient_norm)
    assert tiny.same(model.state_dict(), before)

    good = step([{"main": data.batch(np.array([2, 1]))}], 1)
    assert not good.skipped
    assert not tiny.same(model.state_dict(), before)


@pytest.mark.parametrize("residual", ["pre", "post", "tutorial"])
def test_activations_that_are_computed_again_change_nothing(residual):
    weights = []
    for again in (False, True):
        objective, data = CausalLM(), tiny.blocks(tokens=300)
        model = tiny.model(objective, residual=residual, dropout=0.3)
        model.backbone.set_activation_checkpointing(again)
        step = tiny.train_step(model, objective, tiny.Recipe())
        for number in range(3):
            step([{"main": data.batch(range(4))}, {"main": data.batch(range(4, 8))}], number)
        weights.append(tiny.weights_of(model))

    assert tiny.same(*weights)


def test_activation_checkpointing_keeps_less_for_the_backward_pass():
    kept = []
    for again in (False, True):
        model = tiny.model(CausalLM(), depth=3)
        model.backbone.set_activation_checkpointing(again)
        batch, sizes = tiny.all_of(tiny.blocks(tokens=300)), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor, sizes=sizes: sizes.append(tensor.numel()) or tensor,
            lambda tensor: tensor,
        ):
            model.backbone(batch["tokens"], batch["mask"])
        kept.append(sum(sizes))

    assert kept[1] < kept[0] / 4


# What a device is asked.

FUSED = partial(torch.optim.AdamW, fused=True)


@pytest.mark.parametrize(
    ("optimizer", "late"),
    [(FUSED, False), (FUSED, True), (partial(torch.optim.SGD, momentum=0.9, fused=True), False)],
    ids=["at once", "a step later", "sgd"],
)
def test_a_device_that_decides_for_itself_skips_the_same_steps(optimizer, late):
    told, decides = (
        poisoned(WEIGHT, steps=(0, 3, 7), max_bad_steps=3, clip=None, optimizer=optimizer)
        for _ in range(2)
    )
    told.step._skips_on_device = False
    decides.step._skipped.late = late

    told.go()
    decides.go()

    assert told.progress.skipped == decides.progress.skipped + decides.step.read() == 3
    assert tiny.same(told.step.model.state_dict(), decides.step.model.state_dict())


@pytest.mark.parametrize("optimizer", [FUSED, MuonWithAdamW], ids=["adamw", "muon"])
def test_an_optimizer_that_clips_moves_weights_as_after_torchs_clipping(optimizer):
    told, decides = (
        poisoned(WEIGHT, steps=(), total=5, clip=0.05, optimizer=optimizer) for _ in range(2)
    )
    told.step._skips_on_device = False

    told.go()
    decides.go()

    assert min(float(report.gradient_norm) for report in decides.reports) > 0.05
    ours, expected = (tiny.weights_of(run.step.model) for run in (decides, told))
    assert_close(ours, expected, rtol=1e-6, atol=1e-6)


def test_a_run_that_is_read_late_ends_a_step_later_with_the_same_words():
    run = poisoned(WEIGHT, steps=(4, 5, 6, 7), max_bad_steps=3, optimizer=FUSED)
    run.step._skipped.late = True

    with pytest.raises(DivergedError, match=r"step 7: .*, 3 step\(s\) in a row, in block\.1, on"):
        run.go()

    assert run.progress.step == 7


def test_texts_in_rows_take_the_same_steps():
    results = []
    for lay_out in (None, with_packed_rows):
        # AdamW would make steps of the rounding of gradients that are 0.
        recipe = tiny.Recipe(total=5, rate=0.1, optimizer=torch.optim.SGD)
        run = tiny.run(Classification(), tiny.Questions(), recipe, depth=2)
        if lay_out:
            run.step._add_facts = lay_out
        losses = run.go().losses
        results.append((losses, tiny.weights_of(run.step.model)))

    assert results[0][0][0] > results[0][0][-1]
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


# --- a memory that is carried --------------------------------------------------------------------


XL = {"position_kind": "relative", "residual": "post", "recurrence": 20}
BATCH, LENGTH = 5, 8


def trained(steps, *, micro_batch=5, first=0, state=None):
    """Return a step after these steps of lanes of a made text, and what it then remembers."""
    data = tiny.blocks(230, LENGTH)
    model = tiny.model(CausalLM(), **XL)
    recipe = tiny.Recipe(rate=0.1, total=40, optimizer=torch.optim.SGD)
    step = tiny.train_step(model, tiny.bound(CausalLM()), recipe)
    sampler = LaneSampler(len(data), BATCH, 0)
    device = torch.device("cpu")
    shape, epoch = model.backbone.shape, sampler.steps_per_epoch
    step._memories = CarriedMemory(shape, BATCH, micro_batch, epoch, device)
    if state is not None:
        model.load_state_dict(state["model"])
        step.load_state_dict(state["step"])
    loader = StepDataLoader(
        {"main": Stream(data, sampler)}, micro_batch, lambda: first,
        rank=distributed.rank(), world_size=distributed.world_size(),
    )  # fmt: skip
    for number in range(first, steps):
        step(loader.load(number), number)
    return {"model": tiny.weights_of(model), "step": step.state_dict()}


def test_what_is_remembered_does_not_depend_on_micro_batches():
    whole, parts = trained(4), trained(4, micro_batch=2)

    assert whole["step"]["lanes"]["states"].shape == (BATCH, 3, 20, 16)
    assert_close(parts["model"], whole["model"], rtol=0, atol=1e-5)
    assert_close(parts["step"]["lanes"], whole["step"]["lanes"], rtol=0, atol=1e-5)


def test_what_is_remembered_matters():
    state = trained(4)
    remembering = trained(5, first=4, state=state)

    state["step"]["lanes"] = {}

    assert not tiny.same(trained(5, first=4, state=state)["model"], remembering["model"])


@pytest.mark.parametrize("stop", [4, 6])
def test_a_resumed_step_remembers_what_it_did(stop):
    steps = 8  # an epoch has 6
    whole = trained(steps)

    resumed = trained(steps, first=stop, state=trained(stop))

    assert tiny.same(resumed["model"], whole["model"])
    assert torch.equal(resumed["step"]["lanes"]["states"], whole["step"]["lanes"]["states"])


def test_nothing_is_remembered_where_an_epoch_begins():
    assert trained(6)["step"]["lanes"] == {}


def test_the_memory_of_other_lanes_is_refused():
    state = trained(3)
    lanes = state["step"]["lanes"]
    lanes["states"] = lanes["states"][:3]

    with pytest.raises(ValueError, match=r"the memory is \(3, 3, 20, 16\), expected \(5, 3, 20"):
        trained(4, first=3, state=state)


@pytest.fixture
def short_lanes(monkeypatch):
    monkeypatch.setattr(evaluation, "MIN_LANE_BLOCKS", 8)


def scored(by, tokens, stride, batch=4, **changes):
    """Return the loss of a text, and the sum of those of its blocks."""
    objective = CausalLM()
    model = tiny.lively(tiny.model(objective, **XL, **changes), std=0.5)
    data = tiny.blocks(600, stride)
    data = data if by == "memory" else replace(data, history=tokens)
    split, results = Split("test", data, context=TextContext(by, tokens, stride)), EachExample()
    loss = evaluate(
        model, objective, split, batch=batch, precision=tiny.FP32, each=results
    ).measures["loss"]
    outcomes = results.gathered()
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(data)))
    assert sum(outcome.targets for outcome in outcomes) == 600
    assert sum(outcome.loss for outcome in outcomes) / 600 == pytest.approx(loss, rel=1e-5)
    return loss


def test_one_block_scores_by_memory_as_by_a_window(short_lanes):
    by_memory, by_windows = (scored(by, 20, 12, depth=1) for by in ("memory", "windows"))

    assert by_memory == pytest.approx(by_windows, rel=1e-6)


def test_several_blocks_see_farther_by_memory(short_lanes):
    assert scored("memory", 20, 12) != pytest.approx(scored("windows", 20, 12), rel=1e-5)


@pytest.mark.parametrize("batch", [3, 64])
def test_a_score_by_memory_does_not_depend_on_the_batch(short_lanes, batch):
    assert scored("memory", 20, 12, batch) == pytest.approx(scored("memory", 20, 12), rel=1e-6)


def of_processes():
    """Return what two processes have after some steps, and what they score."""
    evaluation.MIN_LANE_BLOCKS = 8
    return {**trained(4, micro_batch=2), "loss": scored("memory", 20, 12)}


@pytest.mark.slow
@pytest.mark.multiprocess
def test_two_processes_do_what_one_does(tmp_path, short_lanes):
    alone = of_processes()

    for results in several.on_processes(2, of_processes, tmp_path):
        assert_close(results["model"], alone["model"], rtol=0, atol=1e-5)
        assert_close(results["step"]["lanes"], alone["step"]["lanes"], rtol=0, atol=1e-5)
        assert results["loss"] == pytest.approx(alone["loss"], rel=1e-5)
