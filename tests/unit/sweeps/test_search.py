import json
import math
import sys
from pathlib import Path

import pytest

from tests.sweeping import run
from transfer_cli.errors import ConfigError, PrunedError, StoppedError, TransferError
from transfer_cli.metrics import Metric
from transfer_cli.runs.results import Results, Seen
from transfer_cli.runs.sweep import JobState, SweepDirectory
from transfer_cli.sweeps.search import value_at

optuna = pytest.importorskip("optuna", reason="needs Optuna: the extra `search`")

WORDS = (
    "sweep=search", "optimizer.lr=1e-3", "loop.clip=interval(0.1, 10.0)", "run.dir=mine",
    "sweep.prune=false",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def leaves(value_of):
    """Return a command that leaves what a run of `value_of(config)` would leave."""

    def work(config):
        value = value_of(config)
        if isinstance(value, Exception):
            return value
        folder = Path(config.run.dir)
        folder.mkdir(parents=True, exist_ok=True)
        results = {
            "measures": {"validation": {"error_rate": value}},
            "parameters": {"total": 7, "trainable": 0 if math.isnan(value) else int(value)},
        }
        (folder / "results.json").write_text(json.dumps(results))
        return None

    return work


def search(*words, value_of=lambda config: (config.loop.clip - 3) ** 2):
    configs, jobs, _ = run([*WORDS, *words], "finetune", fails=leaves(value_of))
    return configs, jobs


def study(file="mine/study.db"):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.load_study(study_name="search", storage=f"sqlite:///{file}")


@pytest.mark.slow
def test_a_search_comes_close_to_what_is_best():
    configs, _ = search("sweep.trials=16")

    values = [job.value for job in SweepDirectory(Path("mine")).jobs()]
    assert len(configs) == len(values) == 16
    # Ten at random, then six near the best of these.
    assert sum(values[-6:]) / 6 < sum(values[:10]) / 10
    assert study().best_value == min(values)


@pytest.mark.parametrize(
    ("objective", "named"), [("parameters.trainable", True), ("validation/error_rate", False)]
)
def test_the_best_by_a_cost_learnt_anything_and_that_by_validation_is_the_sweeps(
    caplog, objective, named
):
    caplog.set_level("INFO")
    file = SweepDirectory(Path("mine")).run(0) / "results.json"
    values = iter([1.0, 2.0, 3.0])

    def value_of(config):
        value = next(values)
        if value == 2.0:  # the first trial has ended, with the lowest value
            file.write_text(file.read_text().replace("{", '{"failed": "no better", ', 1))
        return value

    search("sweep.trials=3", f"sweep.objective={objective}", value_of=value_of)

    assert len(SweepDirectory(Path("mine")).jobs()) == 3
    assert ("of 3 trials, 1 has the lowest" in caplog.text) == named


@pytest.mark.slow
def test_the_same_seed_proposes_the_same_values():
    first = [config.loop.clip for config in search("sweep.trials=2")[0]]
    again = [config.loop.clip for config in search("sweep.trials=2", "run.dir=again")[0]]
    other = [config.loop.clip for config in search("sweep.trials=2", "run.dir=other", "seed=1")[0]]

    assert first == again != other


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "fits"),
    [
        ("loop.clip=interval(2.0, 3.0)", lambda config: 2 <= config.loop.clip <= 3),
        ("loop.batch=int(interval(2, 5))", lambda config: config.loop.batch in range(2, 6)),
        ("loop.batch=range(2, 11, 4)", lambda config: config.loop.batch in (2, 6, 10)),
        ("adaptation=choice(full, lora)", lambda config: "plan" in config.adaptation),
        ("loop.batch=2,8", lambda config: config.loop.batch in (2, 8)),
        ("optimizer.lr=tag(log, interval(1e-5, 1e-2))", lambda c: 1e-5 <= c.optimizer.lr <= 1e-2),
    ],
)
def test_ranges_are_typed_as_hydra_has_them(typed, fits):
    configs, _ = search("sweep.trials=2", typed, value_of=lambda config: 1.0)

    assert len(configs) == 2
    assert all(fits(config) for config in configs)


# --- going on ----------------------------------------------------------------------------------


def test_a_search_goes_on_where_it_was():
    first, _ = search("sweep.trials=3")

    more, _ = search("sweep.trials=5", "resume=auto")
    nothing, _ = search("sweep.trials=5", "resume=auto")

    assert [len(first), len(more), len(nothing)] == [3, 2, 0]
    assert SweepDirectory(Path("mine")).read_request().trials == 5
    assert len({config.loop.clip for config in [*first, *more]}) == 5
    assert [config.run.dir for config in more] == ["mine/3", "mine/4"]


@pytest.mark.slow
def test_a_stopped_trial_goes_on_before_a_new_one_is_proposed():
    stop = {"now": True}

    def value_of(config):
        return StoppedError("asked to") if stop["now"] else 1.0

    [stopped], jobs = search("sweep.trials=2", value_of=value_of)
    assert str(jobs.stopped) == "asked to"
    assert [job.outcome for job in SweepDirectory(Path("mine")).jobs()] == [JobState.STOPPED]
    stop["now"] = False

    [again, new], _ = search("sweep.trials=2", "resume=auto", value_of=value_of)

    assert (again.run.dir, again.loop.clip) == (stopped.run.dir, stopped.loop.clip)
    assert new.run.dir == "mine/1"
    assert [job.outcome for job in SweepDirectory(Path("mine")).jobs()] == [JobState.DONE] * 2


@pytest.mark.slow
def test_a_failed_or_pruned_trial_is_told_to_the_study():
    values = iter([1.0, ConfigError("bad"), PrunedError("hopeless"), math.nan])

    search("sweep.trials=4", value_of=lambda config: next(values))

    states = [trial.state.name for trial in study().trials]
    assert states == ["COMPLETE", "FAIL", "PRUNED", "FAIL"]
    assert [(job.outcome, job.value) for job in SweepDirectory(Path("mine")).jobs()] == [
        (JobState.DONE, 1.0), (JobState.FAILED, None), (JobState.PRUNED, None),
        (JobState.DONE, None),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_study_can_lie_elsewhere_and_be_shared():
    search("sweep.trials=2", "sweep.study=shared.db")
    configs, _ = search("sweep.trials=5", "sweep.study=shared.db", "run.dir=second")

    assert [config.run.dir for config in configs] == ["second/2", "second/3", "second/4"]
    assert len(study("shared.db").trials) == 5


# --- bad input ---------------------------------------------------------------------------------


OTHER_SEARCHES = [
    (["loop.clip=interval(0.1, 9.0)"], "its range of loop.clip is 0.1 to 10.0, not 0.1 to 9.0"),
    (["loop.clip=tag(log, interval(0.1, 10.0))"], "is 0.1 to 10.0, not 0.1 to 10.0 (log)"),
    (["loop.batch=2,4"], "it does not search loop.batch"),
    (["loop.clip=1", "loop.batch=2,4"], "it does not search loop.batch"),
    (["sweep.direction=maximize"], "its direction is minimize, not maximize"),
    (["sweep.objective=validation/loss"], "its objective is validation/error_rate, not"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "said"), OTHER_SEARCHES)
def test_a_study_of_another_search_is_refused(words, said):
    search("sweep.trials=1")

    with pytest.raises(ConfigError) as error:
        search("sweep.trials=2", "resume=auto", *words)

    assert str(error.value).startswith("sweep.study: mine/study.db is of another search: ")
    assert SweepDirectory(Path("mine")).read_request().objective == "validation/error_rate"
    assert said in str(error.value)
    assert len(study().trials) == 1


def test_a_search_without_optuna_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)

    with pytest.raises(ConfigError, match=r"pip install 'optuna"):
        search()


@pytest.mark.parametrize("key", ["sweep.study=afile/x.db", "sweep.objective=flops"])
def test_what_a_search_cannot_have_is_refused_before_its_first_trial(key):
    Path("afile").touch()

    with pytest.raises(TransferError, match=key.rpartition("=")[2]):
        search(key)
    assert not list(Path().glob("**/job-0.json"))


def test_any_number_of_the_results_can_be_the_objective():
    results = Results(measures={"test": {"accuracy/LOC": 0.5, "loss": 2}}, seen=Seen(steps=12))

    assert value_at(results, "test/accuracy/LOC") == 0.5
    assert value_at(results, "measures.test.loss") == 2.0
    assert value_at(results, "seen.steps") == 12.0
    with pytest.raises(KeyError, match=r"no number 'seen\.step'. Did you mean 'seen\.steps'"):
        value_at(results, "seen.step")
    with pytest.raises(KeyError, match="no number 'failed'"):
        value_at(results, "failed")


@pytest.mark.parametrize(
    ("objective", "wanted", "words"),
    [("validation/accuracy", "maximize", ()), ("measures.validation.accuracy", "maximize", ()),
     ("validation.accuracy", "maximize", ()), ("validation/error_rate", "minimize", ()),
     ("parameters.total", "minimize", ()), ("validation/span_f1", "maximize", ()),
     ("validation/accuracy", "minimize", ("sweep.direction=minimize",))],
)  # fmt: skip
def test_a_search_goes_where_its_measure_is_better_or_where_it_is_told(objective, wanted, words):
    measured = {"accuracy": 0.5, "span_f1": 3.0, "error_rate": 1.0}

    def work(config):
        folder = Path(config.run.dir)
        folder.mkdir(parents=True, exist_ok=True)
        results = {"measures": {"validation": measured}, "parameters": {"total": 7}}
        (folder / "results.json").write_text(json.dumps(results))

    # One of another objective, which no list of ours has.
    own = {"metrics": lambda _: [Metric("span_f1", higher_is_better=True)]}
    typed = [*WORDS, "sweep.trials=1", f"sweep.objective={objective}", *words]
    run(typed, "finetune", fails=work, **(own if "span_f1" in objective else {}))

    assert SweepDirectory(Path("mine")).read_request().direction == wanted


def test_a_measure_has_one_name_however_it_is_typed():
    for typed in ("validation.error_rate", "measures.validation.error_rate"):
        search("sweep.trials=1", f"sweep.objective={typed}", f"run.dir={typed}")

        assert SweepDirectory(Path(typed)).read_request().objective == "validation/error_rate"
        assert study(f"{typed}/study.db").best_value >= 0
