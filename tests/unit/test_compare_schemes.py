import json
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.scripting import imported
from transfer_cli.config.locate import conf_dir


@pytest.fixture(scope="module")
def script():
    with imported("compare_schemes") as module:
        yield module


def results(test=10.0, validation=20.0, **changes):
    return {
        "measures": {"test": {"error_rate": test}, "validation": {"error_rate": validation}},
        "parameters": {"total": 2_000_000, "trainable": 12_345},
        "seconds": 41.6,
        "stored_bytes": 3_210_000,
        "peak_memory_bytes": 1_500_000_000,
        "forgetting": None,
        "failed": None,
        **changes,
    }


def forgot(before, after, name="token_perplexity"):
    return {"before": {name: before}, "after": {name: after}}


def finished(folder, found):
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    (folder / "status.json").write_text(json.dumps({"status": "finished"}))
    (folder / "results.json").write_text(json.dumps(found))


# What is run.


@pytest.mark.parametrize("labels", ["100", "all"])
def test_every_scheme_is_given_each_key_once_in_words_that_hydra_reads(script, labels):
    setting = script.Setting(Path("/ckpt"), Path("/o=1, 2"), Path("/data"), Path("/text.txt"))

    for scheme in script.SCHEMES:
        words = script.overrides(script.Run(scheme, labels, seed=2), setting)
        read = {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(words)}

        assert len(read) == len(words)
        preset = "full" if scheme == "scratch" else scheme
        assert read["adaptation"] == preset
        assert (conf_dir() / "adaptation" / f"{preset}.yaml").is_file()
        assert read["data.labelled"] == (100 if labels == "100" else None)
        assert read["loop.epochs"] == (20 if labels == "100" else 3)
        assert (read["seed"], read["data_dir"]) == (2, "/data")
        assert read["init_from"] == "/ckpt"
        assert read.get("forgetting.data") == (None if scheme == "scratch" else "/text.txt")
        assert read["run.dir"] == f"/o=1, 2/{labels}-labels/{scheme}/seed-2"


def test_what_is_not_asked_for_is_not_given(script):
    words = script.overrides(script.Run("full", "all", 0), script.Setting(Path("c"), Path("o")))

    assert not [word for word in words if word.startswith(("data_dir", "forgetting"))]


def test_a_rate_of_the_sweep_replaces_the_scheme_own_and_has_its_own_folder(script):
    setting = script.Setting(Path("/ckpt"), Path("/out"))
    runs = [script.Run("lora", "100", 0, rate) for rate in (None, 1e-4, 2e-3)]

    words = [script.overrides(run, setting) for run in runs]

    rates = [[w for w in each if w.startswith("optimizer.lr")] for each in words]
    own = script.SCHEMES["lora"][0]
    assert rates == [list(own), ["optimizer.lr=0.0001"], ["optimizer.lr=0.002"]]
    assert [run.row for run in runs] == ["lora", "lora lr=0.0001", "lora lr=0.002"]
    assert runs[1].name == "100-labels/lora-lr-0.0001/seed-0"


def test_a_setting_of_a_scheme_wins_over_the_common_one(script, monkeypatch):
    monkeypatch.setitem(script.SCHEMES, "full", (("loop.epochs=30",), ()))
    setting = script.Setting(Path("/ckpt"), Path("/out"))

    words = script.overrides(script.Run("full", "100", 0), setting)

    assert [word for word in words if word.startswith("loop.epochs")] == ["loop.epochs=30"]


def test_a_run_that_is_finished_is_left_as_it_is(script, tmp_path, monkeypatch):
    run = script.Run("full", "100", 0)
    finished(tmp_path / run.name, results())
    monkeypatch.setattr(script, "train", lambda *_, **__: pytest.fail("was run again"))

    assert script.perform(run, script.Setting(Path("/ckpt"), tmp_path)) is None


def test_a_run_that_fails_is_reported_with_its_last_words(script, tmp_path):
    run = script.Run("no_such_preset", "100", 0)
    half = tmp_path / run.name
    half.mkdir(parents=True)
    (half / "config.yaml").touch()

    reason = script.perform(run, script.Setting(tmp_path / "nothing", tmp_path))

    assert reason.startswith("100-labels/no_such_preset/seed-0: exit code 2: ")
    assert "no_such_preset" in reason.partition("exit code 2: ")[2]
    assert script.results_of([run], tmp_path) == {}


def test_only_finished_runs_have_results(script, tmp_path):
    done, stopped, missing = (script.Run("full", "100", seed) for seed in range(3))
    finished(tmp_path / done.name, results())
    finished(tmp_path / stopped.name, results())
    (tmp_path / stopped.name / "status.json").write_text('{"status": "stopped"}')

    assert script.results_of([done, stopped, missing], tmp_path) == {done: results()}


def test_times_are_read_from_where_a_run_wrote_them(script, tmp_path):
    old, new = (script.Run("full", "100", seed) for seed in (0, 1))
    finished(tmp_path / old.name, results(seconds=7))
    finished(tmp_path / new.name, {"measures": {}})
    (tmp_path / new.name / "timing.json").write_text(json.dumps({"seconds": 8}))

    found = script.results_of([old, new], tmp_path)

    assert [found[run]["seconds"] for run in (old, new)] == [7, 8]
    assert "measures" in found[new]


# What is shown.


def test_a_row_holds_mean_and_sample_deviation_and_what_it_cost(script):
    found = [
        results(test=error, forgetting=forgot(before=50, after=60 + error))
        for error in (8.0, 10.0, 12.0)
    ]

    shown = script.table({"full": found}, seeds=3).splitlines()

    assert shown[0].startswith("| scheme | test error, % | parameters trained | stored | seconds |")
    assert shown[2] == "| full | 10.0 ± 2.0 | 12,345 | 3.2 MB | 42 | 1.5 GB | 50.0 → 70.0 |"
    assert {line.count("|") for line in shown} == {8}


def test_failed_and_missing_runs_are_marked(script):
    found = [results(test=8.0), results(test=10.0, failed="no better than chance")]

    assert script.error(found, "test", seeds=3) == "9.0 ± 1.4 † 1 of 2 failed (2 of 3 runs)"
    assert script.error(found[:1], "test", seeds=1) == "8.0"
    assert script.error([], "test", seeds=3) == "no run finished"


def test_a_row_without_runs_and_results_of_old_versions_are_shown_too(script):
    old = results()
    for key in ("stored_bytes", "peak_memory_bytes", "forgetting", "failed"):
        del old[key]

    shown = script.table({"full": [old], "lora": []}, seeds=1).splitlines()

    assert shown[2:] == [
        "| full | 10.0 | 12,345 | - | 42 | - | - |",
        "| lora | no run finished | - | - | - | - | - |",
    ]


def test_nothing_of_the_test_set_is_in_the_validation_table(script):
    shown = script.validation_table({"full": [results(test=77.7, validation=20.0)]}, seeds=1)

    assert shown.splitlines()[2] == "| full | 20.0 | 42 |"
    assert "test" not in shown
    assert "77.7" not in shown


def test_forgetting_of_a_masked_model_is_that_of_masked_tokens(script):
    found = [results(forgetting=forgot(5.0, 6.0, "masked_token_perplexity")), results()]

    assert script.forgetting(found) == "5.0 → 6.0"


@pytest.mark.parametrize(
    ("given", "shown"), [(12, "12 B"), (1_234, "1.2 kB"), (9.9e7, "99.0 MB"), (2e9, "2.0 GB")]
)
def test_sizes_have_the_unit_that_suits_them(script, given, shown):
    assert script.size(given) == shown


def test_rows_come_in_the_order_of_the_runs(script):
    runs = [script.Run(s, "100", seed) for s in ("lora", "full") for seed in (0, 1)]
    found = {run: results(test=n) for n, run in enumerate(runs)}
    del found[runs[0]]

    rows = script.by_row(runs, found)

    assert list(rows) == ["lora", "full"]
    assert [r["measures"]["test"]["error_rate"] for r in rows["lora"]] == [1]
    assert [r["measures"]["test"]["error_rate"] for r in rows["full"]] == [2, 3]


# The command line.


def test_the_defaults_compare_every_scheme(script):
    chosen = script.arguments(["ckpt", "out"])

    assert (chosen.seeds, chosen.labels, chosen.jobs) == ([0, 1, 2], ["100", "all"], 1)
    assert chosen.schemes == list(script.SCHEMES)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--rate", "1e-3"], "add --validation"),
        (["--labels", "some"], "neither a number of labels nor 'all'"),
        (["--labels", "0"], "neither a number of labels nor 'all'"),
    ],
)
def test_words_that_make_no_sense_are_refused(script, capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        script.arguments(["ckpt", "out", *words])

    assert ended.value.code == 2
    assert message in capsys.readouterr().err
