"""What runs of commits 2841927 and e2ebd90 hold otherwise is read as today's."""

import pytest
import yaml

from transfer_cli.config.build import TARGET, build, class_of
from transfer_cli.config.check import check_config
from transfer_cli.config.compose import compose
from transfer_cli.config.flags import parse_request
from transfer_cli.config.plain_yaml import read_plain
from transfer_cli.earlier_runs import (
    UNDECLARED_METRICS,
    typed_with_old_defaults,
    upgrade_state,
    with_new_names,
)
from transfer_cli.metrics import find_metric
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.consistency import Consistency
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.runs.results import Results
from transfer_cli.tasks.samples import EmbeddedSample

OLD = """
data.hub_table.HubTable data.rest.Rest data.tasks.SamplePairs data.tasks.SampleQuestions
data.tasks.Table data.tasks.Trec data.tokenizer.BytePairs data.tokenizer.FromFile
data.tokenizer.Inherited data.tokenizer.WordPiece tasks.choice.data.Choices
tasks.choice.data.SampleChoices
tasks.dialog.data.Dialogs tasks.dialog.objective.NextUtterance
tasks.span.objective.SpanExtraction tasks.dialog.data.SampleDialog tasks.glue.Glue
tasks.multilabel.data.LabelsTable tasks.multilabel.data.SampleLabels
tasks.regression.data.NumberTable tasks.regression.data.SampleNumbers tasks.span.data.SampleSpans
tasks.span.data.Squad tasks.tagging.data.SampleTags tasks.tagging.data.TaggedFiles
tasks.text_to_text.data.SampleTextPairs tasks.text_to_text.data.TextPairsTable
objectives.consistency.Consistency objectives.cross_view.CrossView objectives.distil_lm.DistilLM
objectives.distillation.Distillation objectives.slice_heads.SliceHeads
objectives.source_distillation.SourceDistillation tasks.choice.objective.MultipleChoice
tasks.multilabel.objective.Multilabel tasks.multilabel.task.MultilabelTask
tasks.regression.objective.Regression
tasks.regression.task.NumberTable tasks.regression.task.RegressionTask
tasks.cloze.objective.Cloze tasks.text_to_text.objective.PrefixLM
"""


@pytest.mark.parametrize("name", OLD.split())
def test_a_class_of_an_older_run_has_one_of_the_same_name_or_is_a_sample(name):
    node = with_new_names({TARGET: f"transfer_cli.{name}"})

    today = class_of(node, "data")

    assert (
        EmbeddedSample(node["sample"])
        if today is EmbeddedSample
        else today.__name__ == name.split(".")[-1]
    )


def test_an_own_config_may_name_a_class_as_it_was_called():
    losses = "+losses.more={_target_: transfer_cli.objectives.consistency.Consistency}"
    words = ["data._target_=transfer_cli.data.tasks.SampleQuestions", losses]
    config = compose("finetune", parse_request(["init_from=run", *words])).config

    check_config(config, "finetune")

    assert config.data == {**config.data, TARGET: "transfer_cli.tasks.samples.EmbeddedSample"}
    assert class_of(config.losses.more, "losses.more") is Consistency


def test_names_inside_of_streams_and_tasks_are_new_as_well(tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(
        "streams:\n  more:\n    data:\n      task:\n"
        "        _target_: transfer_cli.data.tasks.SamplePairs\n        world: 3\n"
    )

    assert read_plain(path)["streams"]["more"]["data"]["task"] == {
        TARGET: "transfer_cli.tasks.samples.EmbeddedSample", "sample": "pairs", "world": 3,
        "duplicates": "keep",  # which it did not say yet
    }  # fmt: skip


def test_a_model_has_the_options_that_came_later_with_their_defaults(tmp_path):
    path, options = tmp_path / "config.yaml", {"width": 8, "heads": 2, "depth": 1}
    target = "transfer_cli.model.backbone.BackboneShape"
    path.write_text(yaml.safe_dump({"model": {TARGET: target, **options}}))
    needed = {**options, "feedforward": 8, "positions": 4}

    read = read_plain(path)["model"]

    del read[TARGET]
    assert build({**needed, **read}, "model", BackboneShape) == BackboneShape(**needed)
    assert read["norm"] == "layer"


INHERITED = {"tokenizer._target_": "a.Inherited", "tokenizer.add": ()}


@pytest.mark.parametrize(
    ("typed", "stored", "given", "then"),
    [
        # An option that its part got later, of the same part and of another.
        ({"data._target_": "A", "data.x": 1}, {"data._target_": "A"}, {"data"}, {"data.x": None}),
        ({"data._target_": "A", "data.x": 1}, {"data._target_": "B"}, {"data"}, {"data.x": 1}),
        ({"data._target_": "A", "data.x": 1}, {"data._target_": "A"}, {"data.x"}, {"data.x": 1}),
        (INHERITED, {"tokenizer": None}, set(), {}),
        (INHERITED, {"tokenizer._target_": "B"}, set(), INHERITED),
        ({"loop.monitor": "auto"}, {"loop.monitor": "loss"}, set(), {"loop.monitor": "loss"}),
        ({"data.duplicates": "together"}, {"data.duplicates": "keep"}, set(),
         {"data.duplicates": "keep"}),
        ({"loop.monitor": "f1"}, {"loop.monitor": "loss"}, {"loop.monitor"},
         {"loop.monitor": "f1"}),
    ],
)  # fmt: skip
def test_what_was_typed_says_what_it_said_when_the_run_began(typed, stored, given, then):
    compared = typed_with_old_defaults(typed, stored, given)

    assert compared == {k: v for k, v in typed.items() if k == "data._target_"} | then


@pytest.mark.parametrize(("best", "today"), [(0.5, (0.5,)), (None, None), ((0.5, 1.0),) * 2])
def test_the_best_value_of_a_stage_is_one_of_several(best, today):
    assert upgrade_state({"step": {"stages": {"best": best}}})["step"]["stages"]["best"] == today


def metrics_of(*names):
    """Return the metrics of results as they were before metrics were declared."""
    return Results.from_json({"measures": {"test": dict.fromkeys(names, 1.0)}}).metrics


def test_metrics_of_earlier_runs_are_those_of_the_objectives_of_that_time():
    known = {earlier.name: earlier for earlier in UNDECLARED_METRICS}

    for objective in (Classification(), CausalLM(), MaskedLM()):
        for metric in objective.declared_metrics():
            if metric.name == "token_accuracy":  # it came later
                continue
            then = known[metric.name]
            assert then.higher_is_better == metric.higher_is_better
            assert (then.unit, then.per_example) == (metric.unit, metric.per_example)


def test_earlier_runs_are_judged_by_the_error_rate_first_and_by_the_loss_last():
    headlines = [metric.name for metric in UNDECLARED_METRICS if metric.headline]

    assert headlines == [
        "error_rate", "word_perplexity", "token_perplexity", "masked_token_perplexity", "loss",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "higher_is_better"),
    [
        ("accuracy/city", True),
        ("order/accuracy/swapped", True),
        ("order/loss", False),
        ("surprise", False),
    ],
)
def test_in_earlier_runs_a_further_loss_and_a_class_are_told_by_parts_of_the_name(
    name, higher_is_better
):
    assert find_metric(name, metrics_of(name)).higher_is_better == higher_is_better


def test_results_of_any_other_form_are_no_error():
    assert metrics_of("", "/", "//loss")[: len(UNDECLARED_METRICS)] == UNDECLARED_METRICS
    for results in ({}, {"measures": 3}, {"measures": {"test": 3}}):
        assert Results.from_json(results).metrics == UNDECLARED_METRICS
