"""How long a run is, what of its start it takes over, and which stages it has."""

from pathlib import Path

import pytest
import torch

from tests import configs
from tests.configs import ADAPTERS, FRESH_TOP, LORA, ONLY_LORA, THAW
from transfer_cli.adaptation import edits
from transfer_cli.assembly.advice import advice
from transfer_cli.assembly.drawing import draw_blueprint, sizes_of
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.assembly.origins import Origins
from transfer_cli.config.schema import LoopConfig, MixingConfig

LABELS = ("number", "place")


def sizes(counts, *, seed=0, power=0.5, target_only=None, **loop):
    """Return how long a run of these numbers of examples is, of one epoch in batches of 8."""
    mixing = MixingConfig(power=power, target_only=target_only)
    return sizes_of(counts, LoopConfig(**{"epochs": 1, "batch": 8, **loop}), mixing, seed)


# --- how long ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "loop", "epoch", "total"),
    [
        (1, {}, 1, 1), (7, {}, 1, 1), (8, {}, 1, 1), (9, {}, 2, 2), (17, {}, 3, 3),
        (20, {"epochs": 2}, 3, 6), (20, {"epochs": 0.5}, 3, 2), (20, {"epochs": 1 / 3}, 3, 1),
        (20, {"epochs": 0.01}, 3, 1), (20, {"epochs": 1.1}, 3, 4),
        (20, {"epochs": 9, "steps": 5}, 3, 5),
    ],
)  # fmt: skip
def test_a_run_is_as_long_as_its_steps_or_epochs_in_which_a_part_of_a_step_is_one(
    examples, loop, epoch, total
):
    run_sizes = sizes({"main": examples}, **loop)

    assert (run_sizes.steps_per_epoch, run_sizes.total_steps) == (epoch, total)
    assert run_sizes.mixture is None


def test_an_epoch_of_several_streams_passes_about_once_over_the_main_one():
    counts = {"main": 80, "second": 20}

    run_sizes = sizes(counts, epochs=2)

    # Ten steps of 8; of the draws, 2 of 3 are for the main stream: the root of 80 over that of 20.
    assert run_sizes.steps_per_epoch == 15
    assert run_sizes.total_steps == run_sizes.mixture.total == 30


def test_the_mixture_is_the_one_that_is_asked_for():
    counts = {"main": 8, "second": 800}
    drawn = {}
    for power in (0.0, 1.0):
        mixture = sizes(counts, steps=400, power=power).mixture
        drawn[power] = sum(mixture.draw(step)[0] == "main" for step in range(400))

    assert 150 < drawn[0.0] < 250
    assert drawn[1.0] < 20


@pytest.mark.parametrize(
    ("length", "alone"), [("3 steps", 3), ("1 epoch", 2), ("50%", 10), ("rest", 20)]
)
def test_the_end_of_a_run_may_see_the_main_data_alone(length, alone):
    counts = {"main": 8, "second": 10**9 if length != "1 epoch" else 8}

    mixture = sizes(counts, steps=20, power=1.0, target_only=length).mixture

    assert all(mixture.draw(step)[0] == "main" for step in range(20 - alone, 20))
    if length not in ("rest", "1 epoch"):
        assert mixture.draw(20 - alone - 1)[0] == "second"


# --- from where --------------------------------------------------------------------------------


@pytest.fixture
def laid_out(tmp_path):
    """Return how to lay out a run that fine-tunes what another one left."""

    def lay(run, *, labels=LABELS, device="cpu", **changes):
        config = configs.following(run, tmp_path, **changes)
        for label, other in zip(LABELS, labels, strict=True):
            for path in (config.data.train, config.data.validation, config.data.test):
                told = Path(path).read_text().replace(f",{label}\n", f",{other}\n")
                Path(path).write_text(told)
        return draw_blueprint(config, "finetune", (), Origins(), device=device)

    return lay


def test_what_came_from_the_checkpoint_is_inherited_and_holds_its_values(laid_out, pretrained):
    layout = laid_out(pretrained)

    stored = start_tensors(pretrained)
    parameters = dict(layout.model.named_parameters())
    assert layout.network.inherited == {name for name in parameters if name.startswith("backbone.")}
    assert all(torch.equal(parameters[name], stored[name]) for name in layout.network.inherited)
    assert not layout.network.report.new or all(
        n.startswith("heads.") for n in layout.network.report.new
    )
    assert [group.name for group in layout.network.groups if not group.inherited] == ["head.class"]


def start_tensors(run):
    return open_pretrained(str(run)).tensors()


def test_with_fresh_weights_nothing_is_inherited(laid_out, pretrained):
    layout = laid_out(pretrained, init="scratch")

    stored = start_tensors(pretrained)
    matrix = layout.model.backbone.token_embedding.weight
    assert layout.network.report is None
    assert layout.network.inherited == frozenset()
    assert not torch.equal(matrix, stored["backbone.token_embedding.weight"])


def test_a_classifier_of_the_same_labels_is_inherited_and_pools_as_before(laid_out, classifier):
    layout = laid_out(classifier, objective__pooling="auto")

    assert "heads.class.linear.weight" in layout.network.inherited
    assert pooling_of(layout) == "max"


def test_a_classifier_of_other_labels_is_drawn_anew_though_it_would_fit(laid_out, classifier):
    layout = laid_out(classifier, labels=("person", "thing"), objective__pooling="auto")

    head = layout.model.heads["class"].linear.weight
    assert not any(name.startswith("heads.") for name in layout.network.inherited)
    assert not torch.equal(head, start_tensors(classifier)["heads.class.linear.weight"])
    assert "heads.class.linear.weight" in layout.network.report.dropped
    assert pooling_of(layout) != "max"


def pooling_of(layout):
    objective = layout.network.losses[0].objective
    return objective.finalize_options(layout.model, frozenset())["pooling"]


# --- edits and stages --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_lora(tmp_path_factory, pretrained):
    folder = tmp_path_factory.mktemp("lora")
    config = configs.following(pretrained, folder, **ONLY_LORA)
    return configs.run(config, "finetune", folder / "run").path


def test_what_an_earlier_run_added_is_made_again_and_filled(laid_out, with_lora):
    layout = laid_out(with_lora)

    added = {name for name, _ in layout.model.named_parameters() if ".lora." in name}
    stored = start_tensors(with_lora)
    assert added
    assert added <= layout.network.inherited
    parameters = dict(layout.model.named_parameters())
    assert all(torch.equal(parameters[name], stored[name]) for name in added)
    assert list(layout.network.edits) == ["lora"]


# As by a version that has an option which the earlier run's had not.
@pytest.mark.parametrize("node", [LORA, {**LORA, "dora": False}], ids=["same", "more options"])
def test_an_edit_that_an_earlier_run_made_is_not_made_twice(node, laid_out, with_lora):
    once, again = laid_out(with_lora), laid_out(with_lora, adaptation__edits={"lora": node})

    names = [[name for name, _ in layout.model.named_parameters()] for layout in (once, again)]
    assert names[0] == names[1]
    assert again.network.inherited == once.network.inherited


def test_the_edits_that_a_plan_speaks_of_are_those_that_change_the_model(
    laid_out, pretrained, monkeypatch
):
    made = []
    monkeypatch.setattr(edits.LoRA, "__post_init__", lambda edit: made.append(edit.rank))

    layout = laid_out(pretrained, adaptation__edits={"lora": LORA})

    assert made == [LORA["rank"]]
    assert list(layout.adaptation.edits) == list(layout.network.edits) == ["lora"]


def test_further_edits_come_on_top_of_those_of_an_earlier_run(laid_out, with_lora):
    layout = laid_out(with_lora, adaptation__edits={"adapters": ADAPTERS})

    sites = {name for name, _ in layout.model.named_parameters() if ".sites." in name}
    assert list(layout.network.edits) == ["lora", "adapters"]
    assert sites
    assert not sites & layout.network.inherited


def test_weights_that_an_edit_drew_anew_are_not_inherited(laid_out, pretrained):
    layout = laid_out(pretrained, adaptation__edits={"fresh": FRESH_TOP})

    assert not any("blocks.1." in name for name in layout.network.inherited)
    assert any("blocks.0." in name for name in layout.network.inherited)
    assert layout.network.edits == {}


def test_what_an_edit_draws_follows_from_the_seed_alone(laid_out, pretrained):
    drawn = []
    wide = {**configs.CLASSIFICATION, "hidden": [7]}
    for seed, disturbed, head in [(0, 0, configs.CLASSIFICATION), (0, 5, wide), (1, 0, wide)]:
        torch.manual_seed(disturbed)
        layout = laid_out(
            pretrained, seed=seed, objective=head, adaptation__edits={"adapters": ADAPTERS}
        )
        named = layout.model.named_parameters()
        drawn.append(torch.cat([p.flatten() for n, p in named if ".sites." in n]).detach())

    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_stages_are_in_steps_of_this_run(laid_out, pretrained):
    thaw = {"_target_": f"{configs.PLANS}.GradualUnfreezing", "every": "1 epoch"}

    layout = laid_out(pretrained, adaptation__plan=thaw, loop__steps=11)

    # 20 examples in batches of 8: three steps an epoch; head, then two blocks, then embeddings.
    spans = [(span.begin, span.end) for span in layout.course.stage_plans]
    assert spans == [(0, 3), (3, 6), (6, 9), (9, 11)]
    assert all(name.startswith("heads.") for name in layout.course.stage_plans[0].trains)
    everything = {name for name, _ in layout.model.named_parameters()}
    assert layout.course.stage_plans[-1].trains == everything


@pytest.mark.parametrize("edits", [{}, {"lora": LORA}, {"fresh": FRESH_TOP}], ids=str)
def test_without_weights_a_run_is_laid_out_the_same(laid_out, pretrained, classifier, edits):
    for run in (pretrained, classifier):
        real, meta = (
            laid_out(run, adaptation__edits=edits, device=device) for device in ("cpu", "meta")
        )

        assert all(parameter.is_meta for parameter in meta.model.parameters())
        assert meta.network.groups == real.network.groups
        assert meta.course.stage_plans == real.course.stage_plans
        assert meta.network.inherited == real.network.inherited
        assert meta.network.edits == real.network.edits


# --- warm-up -----------------------------------------------------------------------------------


EACH = {
    "adaptation__plan": {**THAW, "new": "3 steps", "upper": "4 steps"},
    "adaptation__schedule_per": "stage",
}


@pytest.mark.parametrize(
    ("warmup", "changes", "what"),
    [(10, {}, None), (11, {}, "the run, which has 11"),
     (2, EACH, None), (3, EACH, "stage 1, which has 3")],
)  # fmt: skip
def test_a_warm_up_as_long_as_what_it_warms_up_is_a_problem(
    laid_out, pretrained, warmup, changes, what
):
    schedule = {"_target_": "transfer_cli.optim.schedules.Constant", "warmup": warmup}

    problems = advice(laid_out(pretrained, schedule=schedule, loop__steps=11, **changes))

    assert bool(problems) == bool(what)
    assert all(text.startswith("schedule.warmup: ") and what in text for text in problems[:1])


@pytest.mark.parametrize(
    ("changes", "key", "cure"),
    [
        ({"objective": configs.CLM}, "objective: ", "objective=classification"),
        ({"mixing__power": 0.2}, "mixing.power: ", "streams.NAME"),
        ({"forgetting__blocks": 3}, "forgetting.blocks: ", "forgetting.data=source"),
    ],
    ids=lambda value: str(value).strip(": "),
)
def test_what_nothing_in_the_run_reads_is_a_problem(laid_out, pretrained, changes, key, cure):
    (problem,) = advice(laid_out(pretrained, **changes))

    assert problem.startswith(key)
    assert cure in problem
