import json
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.scripting import imported
from transfer_cli.config import compose
from transfer_cli.config.check import check
from transfer_cli.config.flags import Request

RATES = (2e-4, 5e-4)


@pytest.fixture(scope="module")
def script():
    with imported("compare_pretraining") as module:
        yield module


@pytest.fixture
def asked(script, monkeypatch):
    """What `transfer` was told to do, instead of doing it: (command, words, folder)."""
    found = []
    monkeypatch.setattr(
        script, "train", lambda command, words, folder, name: found.append((command, words, folder))
    )
    return found


def finished(folder, measures, flops=3e12, cpu_s=60.0):
    folder.mkdir(parents=True)
    (folder / "status.json").write_text('{"status": "finished"}')
    results = {"measures": measures, "cost": {"flops": flops, "tokens": 2_000_000}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "cpu.json").write_text(str(cpu_s))


def errors(validation, test):
    return {"validation": {"error_rate": validation}, "test": {"error_rate": test}}


def test_each_method_is_given_each_key_once(script, asked, tmp_path):
    setting = script.Setting(tmp_path, Path("/data, too"))

    for method in script.METHODS:
        script.Pretraining(method, 700, seed=2).run(setting)

    assert len({folder for _, _, folder in asked}) == len(script.METHODS)
    for _, words, _ in asked:
        read = OverridesParser.create().parse_overrides(words)
        assert len({(each.key_or_group, each.package) for each in read}) == len(words)


@pytest.mark.slow
def test_what_each_method_is_given_is_a_config(script, asked, tmp_path):
    setting = script.Setting(tmp_path, Path("/data"))
    for method in script.METHODS:
        start = script.Pretraining(method, 700, seed=2)
        start.run(setting)
        script.FineTuning(start, scratch=True, labels="100", rate=1e-3).run(setting)

    for command, words, _ in asked:
        check(compose.compose(command, Request(overrides=tuple(words))), command)


def test_a_run_that_is_finished_is_left_as_it_is(script, asked, tmp_path):
    start = script.Pretraining("mlm", 700, seed=0)
    finished(tmp_path / start.name, {})

    start.run(script.Setting(tmp_path, Path("/data")))

    assert asked == []


def test_steps_make_operations_and_time_equal(script, tmp_path):
    setting = script.Setting(tmp_path, Path("/data"))
    for method, flops, cpu_s in (("mlm", 2e9, 3), ("clm", 4e9, 2), ("electra", 2e9, 2.95)):
        for steps in (script.FIRST, script.SHORT):
            short = script.Pretraining(method, steps, seed=0)
            finished(tmp_path / short.name, {}, 7e9 + flops * steps, 20 + cpu_s * steps)

    by_flops = script.of_equal_flops(["mlm", "clm", "electra"], [0, 1], 1000, setting)

    assert [(run.method, run.steps, run.seed) for run in by_flops] == [
        ("mlm", 1000, 0), ("clm", 500, 0), ("electra", 1000, 0),
        ("mlm", 1000, 1), ("clm", 500, 1), ("electra", 1000, 1),
    ]  # fmt: skip
    for run, cpu_s in zip(by_flops, (3000, 1000, 2950, 3020, 1020, 2970), strict=True):
        finished(tmp_path / run.name, {}, cpu_s=cpu_s + 10)

    by_time = script.of_equal_time(by_flops, setting)

    # 1,000 x 3.0 s = 1,500 x 2.0 s; `electra` is less than 3 % away and stays.
    assert [(run.method, run.steps, run.seed) for run in by_time] == [
        ("mlm", 1000, 0), ("clm", 1500, 0), ("electra", 1000, 0),
        ("mlm", 1000, 1), ("clm", 1500, 1), ("electra", 1000, 1),
    ]  # fmt: skip


def test_the_rate_is_chosen_by_the_first_seed_without_the_test_set(script, tmp_path):
    setting = script.Setting(tmp_path, Path("/data"))
    starts = [script.Pretraining("mlm", 700, seed) for seed in (0, 1)]
    for start in starts:
        finished(
            tmp_path / start.name, {"validation": {"loss": 5, "masked_token_perplexity": 148.4}}
        )
    for scratch, shift in ((True, 20), (False, 0)):
        better, worse = (
            script.FineTuning(starts[0], scratch, "100", rate) for rate in (5e-4, 2e-4)
        )
        finished(tmp_path / better.name, errors(validation=30, test=40 + shift))
        finished(tmp_path / worse.name, errors(validation=31, test=10 + shift))
        other = script.FineTuning(starts[1], scratch, "100", 5e-4)
        finished(tmp_path / other.name, errors(validation=30, test=44 + shift))

    table = script.table(starts, ["100"], RATES, setting)

    assert table.splitlines()[2:] == [
        "| scratch, bidirectional |  |  |  |  |  | 62.0 ± 2.8 | 20.0 ± 0.0 | 0.0005 |",
        "| mlm | 700 | 2.00M | 3.00 | 60 | masked_token_perplexity 148 | 42.0 ± 2.8 |  | 0.0005 |",
    ]
