"""Laws of made-up losses, and what a ladder of made-up runs foretells."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from transfer_cli.reports.compare import compare_tasks
from transfer_cli.reports.contents import FINISHED, Report, Run, Rung
from transfer_cli.reports.ladder import loss_by_size, predict_run
from transfer_cli.reports.page import page
from transfer_cli.reports.remarks import ladder_lines
from transfer_cli.reports.scaling_law import NoLawError, fit_law
from transfer_cli.reports.tables import as_json, as_markdown
from transfer_cli.runs.results import Results

DEPTHS = (2, 3, 4, 5)


def law(operations):
    return 2.0 + 3.0 * (operations / 1e12) ** -0.2


def loss_of(depth, seed, noise):
    parameters = 1e5 * depth**3
    drawn = np.random.default_rng([depth, seed]).normal(0, noise) if noise else 0.0
    return law(6 * 20 * parameters**2) + drawn


def run_of(depth, *, seed=0, noise=0.0, ratio=20, loss=None, more=(), **settings):
    parameters = int(1e5 * depth**3)
    operations = 6 * ratio * parameters**2
    return Run(
        Path(f"runs/{depth}-{seed}-{ratio}"), f"{depth}-{seed}-{ratio}", "pretrain", FINISHED,
        settings={"data._target_": "Text", "data": "text", "sweep": "ladder", "seed": seed,
                  "model.depth": depth, "tokenizer.size": 4096, "loop.tokens": ratio * parameters,
                  **{key.replace("__", "."): value for key, value in settings.items()}},
        results=Results.from_json({
            "measures": {"validation": {"loss": loss or loss_of(depth, seed, noise)}},
            "parameters": {"total": parameters, "trainable": parameters},
            "seen": {"tokens": ratio * parameters, "steps": 9}, "cost": {"flops": operations},
            **dict(more),
        }),
        timing={"seconds": operations / 2e10},
    )  # fmt: skip


def ladder_of(runs):
    [task] = compare_tasks(runs)
    return task.ladder


def rungs(operations, losses, sizes=None):
    sizes = sizes or [(amount, amount) for amount in operations]
    return [
        Rung("run", 1, amount, parameters, tokens, 1, loss)
        for amount, (parameters, tokens), loss in zip(operations, sizes, losses, strict=True)
    ]


# --- laws ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [0.05, 0.2, 0.7])
def test_a_law_without_noise_is_found(exponent):
    operations = [1e12 * depth**4.5 for depth in DEPTHS]
    losses = [1.5 + 4 * (amount / 1e14) ** -exponent for amount in operations]

    fit = fit_law(rungs(operations, losses))

    expected = fit.predict(5e15, 1, 1)
    assert expected.loss == pytest.approx(1.5 + 4 * 50**-exponent, abs=0.01)
    assert expected.low <= expected.loss <= expected.high < expected.low + 0.1


def test_parameters_and_tokens_each_have_their_exponent():
    sizes = [[size, size * ratio] for size in (1e5, 4e5, 1.6e6) for ratio in (5, 10, 20, 40)]
    losses = [1.7 + 400 * n**-0.34 + 410 * d**-0.28 for n, d in sizes]

    fit = fit_law(rungs([6 * n * d for n, d in sizes], losses, sizes))

    assert fit.law.exponents[0] == pytest.approx([0.34, 0.28], rel=0.05)
    assert fit.predict(1e15, 4e6, 4e7).loss == pytest.approx(
        1.7 + 400 * 4e6**-0.34 + 410 * 4e7**-0.28, abs=0.01
    )


@pytest.mark.parametrize("depths", [(2,), (2, 3)])
def test_a_law_of_parameters_and_tokens_needs_three_of_each(depths):
    sizes = [[1e5 * d**3, 1e5 * d**3 * ratio] for d in depths for ratio in (1, 2, 4, 8, 16, 32)]
    losses = [1.7 + 400 * n**-0.34 + 410 * d**-0.28 for n, d in sizes]

    with pytest.raises(NoLawError):
        fit_law(rungs([6 * n * d for n, d in sizes], losses, sizes))


def test_how_far_runs_are_from_a_law_allows_for_what_they_decide():
    operations = np.repeat(1e12 * np.array(DEPTHS) ** 4.5, 2)
    losses = law(operations) + np.tile([0.01, -0.01], len(DEPTHS))

    fit = fit_law(rungs(operations, losses))

    # Eight runs decide on three parameters: a sum of eight squares, of five degrees of freedom.
    assert np.abs(fit.residuals) == pytest.approx(0.01, rel=0.1)
    assert fit.deviation == pytest.approx(0.01 * (8 / 5) ** 0.5, rel=0.02)


@pytest.mark.slow
def test_intervals_hold_what_comes_about_as_often_as_they_say():
    rng, operations = np.random.default_rng(3), np.repeat(1e12 * np.array(DEPTHS) ** 4.5, 3)
    within = []
    for _ in range(60):
        fit = fit_law(rungs(operations, law(operations) + rng.normal(0, 0.02, 12)))
        expected = fit.predict(6e15, 1, 1)
        within.append(expected.low <= law(6e15) + rng.normal(0, 0.02) <= expected.high)

    assert 0.85 <= np.mean(within) <= 1


@pytest.mark.parametrize(
    ("operations", "losses"),
    [([1e12, 1e13, 1e14], [5, 4, 3.5]), ([1e12, 1e12, 1e13, 1e14], [5, 5.1, 4, 3.5]),
     ([1e12, 1e13, 1e14, 1e15], [5, 4.2, 4.6, 4.1]), ([1e12, 1e13, 1e14, 1e15], [4, 4.5, 5, 5.5])],
    ids=["three runs", "three sizes", "noise", "rises"],
)  # fmt: skip
def test_no_law_is_claimed_where_none_holds(operations, losses):
    with pytest.raises(NoLawError):
        fit_law(rungs(operations, losses))


def test_a_law_ends_at_ten_times_the_largest_run():
    operations = [1e12 * depth**4.5 for depth in DEPTHS]
    fit = fit_law(rungs(operations, [law(amount) for amount in operations]))

    fit.predict(9.9 * operations[-1], 1, 1)
    with pytest.raises(NoLawError):
        fit.predict(10.1 * operations[-1], 1, 1)


# --- ladders of runs -----------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["7", "1.411788e17flop"])
def test_a_ladder_says_what_its_target_takes_and_reaches(asked):
    noisy = {"noise": 0.005, "ladder__target": asked}

    target = ladder_of([run_of(d, seed=s, **noisy) for d in DEPTHS for s in range(3)]).target

    size = 1e5 * 7**3
    assert target.depth == pytest.approx(7, rel=0.01)
    assert target.parameters == pytest.approx(size, rel=0.01)
    assert target.operations == pytest.approx(120 * size**2, rel=0.01)
    assert target.seconds == pytest.approx(120 * size**2 / 2e10, rel=0.01)
    assert target.prediction.loss == pytest.approx(law(120 * size**2), abs=0.02)


def test_hours_are_turned_into_operations_by_what_the_runs_took():
    target = ladder_of([run_of(depth, ladder__target="2h") for depth in DEPTHS]).target

    assert target.operations == pytest.approx(7200 * 2e10, rel=0.01)


def test_nothing_is_foretold_of_a_target_that_is_too_far_or_no_size():
    far = ladder_of([run_of(depth, ladder__target="12") for depth in DEPTHS])
    runs = [run_of(depth, ladder__target="7") for depth in (2, 3, 4, 5, 6)]
    wide = ladder_of([*runs[:-1], replace(runs[-1], settings={**runs[3].settings, "x": 1})])

    for ladder in (far, wide):
        assert ladder.law
        assert ladder.target.prediction is None
        assert "no prediction" in [*ladder_lines(ladder)][1]


@pytest.mark.parametrize("key", ["tokenizer__size", "data__length"])
def test_losses_of_other_tokens_are_not_mixed(key):
    ladder = ladder_of([run_of(d, **{key: 100 if d == 5 else 200}) for d in DEPTHS])

    assert key.replace("__", ".") in ladder.refused


def test_a_ladder_over_lengths_too_has_a_law_of_both():
    runs = [run_of(d, ratio=r, loss=1 + 90 * (1e5 * d**3) ** -0.3 + 200 * (r * 1e5 * d**3) ** -0.3)
            for d in DEPTHS for r in (5, 20)]  # fmt: skip

    assert "(N/" in ladder_of(runs).law
    loss = pytest.approx(1 + 90 * 2e7**-0.3 + 200 * 4e8**-0.3, abs=0.02)
    assert predict_run(runs, 1e17, 2e7, 4e8).loss == loss
    assert loss_by_size(runs)(2e7, 4e8) == loss
    assert loss_by_size(runs[::2]) is None


def test_what_came_stands_beside_what_was_foretold_in_every_format():
    prediction = {"prediction": {"loss": 3.1, "low": 3.0, "high": 3.2}}
    target = run_of(7, loss=3.25, more=prediction.items(), sweep=None)
    report = Report(compare_tasks([*(run_of(depth) for depth in DEPTHS), target]))

    said = [*ladder_lines(report.tasks[0].ladder)][-1]
    assert "came 3.250, 0.150 above, outside of" in said
    assert "came 3.250" in as_markdown(report)
    assert "came 3.250" in page(report)
    [stored] = json.loads(as_json(report))["tasks"]
    assert stored["ladder"]["came"][0]["prediction"] == prediction["prediction"]


def test_runs_that_are_of_no_ladder_have_none():
    assert ladder_of([replace(run_of(depth, sweep=None)) for depth in DEPTHS]) is None
