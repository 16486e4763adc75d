import pytest

from transfer_cli.errors import ConfigError
from transfer_cli.runs.atomic import write_json
from transfer_cli.sweeps.trial import WARM_UP_TRIALS, open_study, trial_file, trial_of

pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")


@pytest.fixture
def study(tmp_path):
    return tmp_path / "study.db"


def make_trial(study, run, direction="minimize"):
    asked = open_study(study, direction=direction).ask()
    content = {
        "study": str(study), "number": asked.number, "objective": "validation/error_rate",
        "direction": direction,
    }  # fmt: skip
    write_json(trial_file(run), content)
    return trial_of(run)


def finish(study, values, direction="minimize"):
    """Add a finished trial that measured these values after steps 10, 20, ..."""
    opened = open_study(study, direction=direction)
    trial = opened.ask()
    for number, value in enumerate(values, start=1):
        trial.report(value, 10 * number)
    opened.tell(trial, values[-1])


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"study": "x"}'])
def test_a_run_without_a_whole_file_beside_it_is_no_trial(tmp_path, content):
    if content is not None:
        trial_file(tmp_path / "run").write_text(content)

    assert trial_of(tmp_path / "run") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("finished", "direction", "step", "value", "hopeless"),
    [
        (WARM_UP_TRIALS, "minimize", 10, 90.0, True),
        (WARM_UP_TRIALS, "maximize", 10, 1.0, True),
        (WARM_UP_TRIALS, "minimize", 10, 49.0, False),
        (WARM_UP_TRIALS, "minimize", 20, 20.0, False),
        (WARM_UP_TRIALS - 1, "minimize", 10, 99.0, False),  # before there is a median
    ],
)
def test_what_is_far_behind_the_median_is_hopeless(
    tmp_path, study, finished, direction, step, value, hopeless
):
    for n in range(finished):
        finish(study, [50.0 + n, 40.0 + n], direction)
    trial = make_trial(study, tmp_path / "run", direction)

    assert trial.is_hopeless(step, {"error_rate": value}) is hopeless


def test_a_resumed_trial_may_measure_a_step_again(tmp_path, study):
    trial = make_trial(study, tmp_path / "run")

    assert not trial.is_hopeless(10, {"error_rate": 9.0})
    assert not trial.is_hopeless(10, {"error_rate": 9.0})
    assert not trial.is_hopeless(20, {"loss": 1.0})


def test_a_file_that_is_no_study_is_refused(study):
    study.write_text("no database\n" * 100)

    with pytest.raises(ConfigError, match=r"sweep\.study: .* is no study"):
        open_study(study, direction="minimize")
