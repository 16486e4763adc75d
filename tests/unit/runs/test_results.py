"""Metrics of stored results, with declarations and without."""

from transfer_cli.metrics import Metric, find
from transfer_cli.objectives.causal_lm import CausalLM
from transfer_cli.objectives.classification import Classification
from transfer_cli.objectives.masked_lm import MaskedLM
from transfer_cli.runs.results import UNDECLARED, merged, metrics_of

SPAN_F1 = Metric("span_f1", higher_is_better=True, unit="percent", headline=True)


def before(*names):
    """Return results as they were before metrics were declared."""
    return {"measures": {"test": dict.fromkeys(names, 1.0)}}


def test_declarations_are_read_as_they_were_stored():
    assert metrics_of({"metrics": [SPAN_F1.as_json()]}) == (SPAN_F1,)


def test_damaged_declarations_are_left_out():
    records = [3, SPAN_F1.as_json(), {"name": "x"}]

    assert metrics_of({"metrics": records}) == (SPAN_F1,)


def test_metrics_of_earlier_runs_are_those_of_the_objectives_of_that_time():
    known = {each.name: each for each in UNDECLARED}

    for objective in (Classification(), CausalLM(), MaskedLM()):
        for metric in objective.declared_metrics():
            then = known[metric.name]
            assert then.higher_is_better == metric.higher_is_better
            assert (then.unit, then.per_example) == (metric.unit, metric.per_example)


def test_earlier_runs_are_judged_by_the_error_rate_first_and_by_the_loss_last():
    headlines = [each.name for each in UNDECLARED if each.headline]

    assert headlines == [
        "error_rate", "word_perplexity", "token_perplexity", "masked_token_perplexity", "loss",
    ]  # fmt: skip


def test_in_earlier_runs_a_further_loss_and_a_class_are_told_by_parts_of_the_name():
    found = metrics_of(before("accuracy/city", "order/accuracy/swapped", "order/loss"))

    assert find("accuracy/city", found).higher_is_better
    assert find("order/accuracy/swapped", found).higher_is_better
    assert not find("order/loss", found).higher_is_better


def test_in_earlier_runs_less_is_better_of_what_nobody_knows():
    assert not find("surprise", metrics_of(before("surprise"))).higher_is_better


def test_results_of_any_other_form_are_no_error():
    for results in ({}, {"measures": 3}, {"measures": {"test": 3}}, before("", "/", "//loss")):
        assert metrics_of(results)[: len(UNDECLARED)] == UNDECLARED


def test_of_several_runs_the_first_declaration_counts():
    other = Metric("span_f1", higher_is_better=False)

    assert merged(((SPAN_F1,), (other, UNDECLARED[0]))) == (SPAN_F1, UNDECLARED[0])
