"""`scripts/compare.py`: what each row of a grid is given, and what its tables say."""

import json

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.scripting import imported
from transfer_cli.config import compose
from transfer_cli.config.check import check_config
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.flags import Request

NEEDS = {
    "schemes": ("--with", "start=/runs/enwiki", "forgetting=/text.txt"),
    "pretraining": ("--with", "steps=700"),
    "recipe": (),
    "tutorial": ("--with", "start=/runs/clm"),
    "gpu_recipe": (),
    "gpu_typed": ("--with", "text=/text.txt"),
    "gpu_sizes": (),
}


@pytest.fixture(scope="module")
def script():
    with imported("compare") as module:
        yield module


@pytest.fixture
def given(script, tmp_path):
    """Return how a grid is asked for: the comparison and what stands on the command line."""
    for part in ("train", "valid", "test"):
        file = tmp_path / "wikitext-2" / f"{part}.txt"
        file.parent.mkdir(exist_ok=True)
        file.write_text("line\n" * 700)

    def ask(name, *words):
        words = [name, str(tmp_path), "--data-dir", str(tmp_path), *NEEDS[name], *words]
        asked = script.parse_arguments(words)
        more = {"data": "/data, too", "cut": "/cut"}
        return script.Comparison(asked.grid, tmp_path, {**asked.placeholders, **more}), asked

    return ask


def every_run(script, comparison, asked):
    if "then" not in asked.grid:
        tables = script.grid_runs(comparison, asked.rows, [2]).values()
        return [run for runs in tables for run in runs]
    made = script.Chain(comparison, [2])
    starts = [made.pretraining(row, 700, seed=2) for row in asked.rows]
    then = [
        made.fine_tuning(start.row, kind, start, labels, 1e-3)
        for start in starts
        for kind in ("scratch", "pretrained")
        for labels in asked.grid["then"]["tables"]
    ]
    return starts + then


@pytest.mark.parametrize("grid", NEEDS)
def test_every_run_is_given_each_key_once_in_words_that_are_read(script, given, grid):
    comparison, asked = given(grid)
    runs = every_run(script, comparison, asked)

    assert len({run.folder for run in runs}) == len(runs) >= len(asked.rows)
    for run in runs:
        read = OverridesParser.create().parse_overrides(list(run.words))
        assert len({(word.key_or_group, word.package) for word in read}) == len(run.words)
        assert [word.value() for word in read if word.key_or_group == "seed"] == [2]
        assert "{" not in " ".join(run.words)


@pytest.mark.slow
@pytest.mark.parametrize("grid", NEEDS)
def test_what_every_run_is_given_is_a_config(script, given, grid):
    for run in every_run(script, *given(grid)):
        words = [word for word in run.words if not word.startswith("forgetting.")]
        check_config(compose.load_config(run.command, Request(overrides=tuple(words))), run.command)


@pytest.mark.slow
def test_each_variant_of_the_recipe_differs_from_the_reference_in_one_part(script, given):
    comparison, asked = given("recipe")
    configs = {
        run.row: compose.load_config("pretrain", Request(overrides=run.words))
        for run in every_run(script, comparison, asked)
    }
    reference = configs["reference"]
    assert reference.optimizer._target_.endswith(".MuonWithAdamW")

    for row, config in configs.items():
        different = {key for key in reference if config[key] != reference[key]} - {"run"}
        if row.startswith("tutorial"):
            assert (config.loop.steps, config.model.activation) == (500, "relu")
        elif row != "reference":
            assert config.loop.steps == 125
            assert len(different) == (2 if row == "recipe" else 1), row


def test_a_word_whose_key_nobody_gave_is_left_out_and_later_words_win(script, tmp_path):
    grid = {
        "command": "finetune", "words": ["a=1", 'text="{text}"', "b={b}"], "with": {"b": 2},
        "parts": {"more": ["c=3"]}, "rows": {"one": ["+more", "a=4"]},
    }  # fmt: skip
    [run] = script.grid_runs(script.Comparison(grid, tmp_path, {"x": 1}), ["one"], [0])[""]

    assert run.words[:3] == ("a=4", "b=2", "c=3")


def finished(folder, cpu_s=60.0, **results):
    folder.mkdir(parents=True)
    (folder / "status.json").write_text('{"status": "finished"}')
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "cpu.json").write_text(str(cpu_s))


def result(test=10.0, validation=20.0, seed=0, **changes):
    return {
        "seed": seed,
        "measures": {"test": {"error_rate": test}, "validation": {"error_rate": validation}},
        "parameters": {"trainable": 12_345}, "seconds": 41.6, "stored_bytes": 3_210_000,
        "peak_memory_bytes": 1_500_000_000, "forgetting": None, "failed": None, **changes,
    }  # fmt: skip


def test_a_run_that_is_finished_is_left_as_it_is_and_one_that_fails_is_named(script, tmp_path):
    grid = {"command": "finetune", "words": [], "rows": {"done": [], "bad": ["no_such_key=1"]}}
    comparison = script.Comparison(grid, tmp_path, {})
    done, bad = script.grid_runs(comparison, ["done", "bad"], [0])[""]
    finished(tmp_path / done.folder, **result())

    [reason] = comparison.run_missing([done, bad])

    assert reason.startswith("bad/seed-0: exit code 2: ")
    assert "no_such_key" in reason
    assert comparison.results(done)["seconds"] == 41.6
    assert comparison.results(bad) == {}


def test_a_row_holds_mean_and_sample_deviation_and_what_it_cost(script, given):
    _, asked = given("schemes")
    forgot = {"before": {"token_perplexity": 50}, "after": {"token_perplexity": 70}}
    errors = (8.0, 10.0, 12.0)
    results = [result(error, seed=n, forgetting=forgot) for n, error in enumerate(errors)]
    # One seed has not ended; the others lie one above and two below the reference.
    partial = [result(error, seed=n) for n, error in ((2, 10.0), (0, 9.0))]

    rows = {"full": results, "lora": [], "ewc": partial}
    shown = script.table(rows, asked.grid["columns"], 3, "full").splitlines()

    assert shown[2] == "| full | 10.0 ± 2.0 |  | 12,345 | 3.2 MB | 42 | 1.5 GB | 50.0 → 70.0 |"
    assert shown[3] == "| lora | no run finished |  | - | - | - | - | - |"
    assert shown[4].startswith("| ewc | 9.5 ± 0.7 (2 of 3 runs) | -0.5 ± 2.1 |")
    failed = [result(test=8.0), result(test=10.0, failed="no better than chance")]
    assert script.error_cell(failed, "test", seeds=3) == "9.0 ± 1.4 † 1 of 2 failed (2 of 3 runs)"


def test_rates_are_chosen_without_the_test_set(script, given, tmp_path, capsys):
    words = ("--rows", "full", "--seeds", "0", "--rates", "1e-4", "2e-3")
    comparison, asked = given("schemes", *words)
    for runs in script.grid_runs(comparison, asked.rows, [0], asked.rates).values():
        for run in runs:
            finished(tmp_path / run.folder, **result(test=77.7))

    assert list(script.compare(comparison, asked)) == []

    shown = capsys.readouterr().out
    assert "| full lr=0.0001 | 20.0 | 42 |" in shown
    assert "| full lr=0.002 |" in shown
    assert "77.7" not in shown


def test_a_table_of_losses_compares_with_the_reference(script, given, tmp_path, capsys):
    rows = ("tutorial, rate 5e-4", "reference", "ReLU for GELU")
    comparison, asked = given("recipe", "--rows", *rows)
    runs = script.grid_runs(comparison, asked.rows, [0])[""]
    for run, loss, steps, cpu_s in zip(
        runs, (5.5, 5.25, 5.125), (500, 125, 125), (300, 100, 99.6), strict=True
    ):
        measures = {"validation": {"loss": loss}}
        finished(tmp_path / run.folder, cpu_s, measures=measures, seen={"steps": steps})

    assert list(script.compare(comparison, asked)) == []

    assert capsys.readouterr().out.splitlines()[5:] == [
        "| tutorial, rate 5e-4 | 500 | 5.500 | +0.250 | 300 |",
        "| reference | 125 | 5.250 |  | 100 |",
        "| ReLU for GELU | 125 | 5.125 | -0.125 | 100 |",
    ]


def test_texts_are_cut_where_a_grid_says_so(given, tmp_path):
    made = given("recipe")[0].cut_data(tmp_path) / "wikitext-2"

    lines = {file.stem: len(file.read_text().splitlines()) for file in made.iterdir()}
    assert lines == {"train": 700, "valid": 600, "test": 60}


def test_steps_make_operations_and_time_equal(script, given, tmp_path):
    made = script.Chain(given("pretraining")[0], [0, 1])
    rows = ["mlm", "clm", "electra"]
    for row, flops, cpu_s in zip(rows, (2e9, 4e9, 2e9), (3, 2, 2.95), strict=True):
        for steps in (script.FIRST, script.SHORT):
            cost = {"flops": 7e9 + flops * steps}
            finished(tmp_path / made.pretraining(row, steps).folder, 20 + cpu_s * steps, cost=cost)

    runs = made.equal_flops_runs(rows, 1000)

    expected = {"mlm": 1000, "clm": 500, "electra": 1000}
    assert runs == {
        row: [made.pretraining(row, steps, n) for n in (0, 1)] for row, steps in expected.items()
    }
    for row, seconds in zip(rows, (3000, 1000, 2950), strict=True):
        for run, more in zip(runs[row], (10, 30), strict=True):
            finished(tmp_path / run.folder, seconds + more, seen={"steps": expected[row]})

    # 1,000 x 3.0 s = 1,500 x 2.0 s; `electra` is less than 3 % away and stays.
    assert made.equal_time_runs(runs, 1000) == {
        **runs, "clm": [made.pretraining("clm", 1500, n) for n in (0, 1)],
    }  # fmt: skip


def test_the_rate_is_chosen_by_the_first_seed_without_the_test_set(script, given, tmp_path):
    comparison, _ = given("pretraining")
    comparison.grid["then"].update(rates=[2e-4, 5e-4], tables={"100 labels": []})
    made = script.Chain(comparison, [0, 1])
    runs = [made.pretraining("mlm", 700, seed) for seed in (0, 1)]
    for run in runs:
        finished(
            tmp_path / run.folder, seen={"steps": 700}, cost={"flops": 3e12, "tokens": 2_000_000},
            measures={"validation": {"loss": 5, "masked_token_perplexity": 148.4}},
        )  # fmt: skip
    name = "scratch, bidirectional"
    for row, kind, shift in ((name, "scratch", 20), ("mlm", "pretrained", 0)):
        for run, rate, validation, test in (
            (runs[0], 5e-4, 30, 40), (runs[0], 2e-4, 31, 10), (runs[1], 5e-4, 30, 44),
        ):  # fmt: skip
            tuned = made.fine_tuning(row, kind, run, "100 labels", rate)
            finished(tmp_path / tuned.folder, **result(test + shift, validation))

    assert made.table({"mlm": runs}).splitlines()[2:] == [
        f"| {name} |  |  |  |  |  | 62.0 ± 2.8 | 20.0 ± 0.0 | 0.0005 |",
        "| mlm | 700 | 2.00M | 3.00 | 60 | masked_token_perplexity 148 | 42.0 ± 2.8 |  | 0.0005 |",
    ]


@pytest.mark.parametrize(
    ("line", "said"),
    [("schemes out", "--with start=... is missing"),
     ("no-grid out", "no-grid is neither a grid of"),
     ("schemes out --with start", "--with start: type it as KEY=VALUE"),
     ("recipe out --rows reciep", "no row is called 'reciep'"),
     ("recipe out --data-dir {}", "valid.txt")],
)  # fmt: skip
def test_words_that_make_no_sense_and_a_text_that_is_missing_are_refused(
    script, tmp_path, capsys, line, said
):
    (tmp_path / "wikitext-2").mkdir()
    (tmp_path / "wikitext-2" / "train.txt").write_text("line\n")

    with pytest.raises(SystemExit, match="2"):
        script.parse_arguments(line.format(tmp_path).split())

    assert said in capsys.readouterr().err


def test_the_preset_of_the_recipe_leaves_data_and_sizes_to_others():
    text = (conf_dir() / "experiment" / "recipe" / "clm.yaml").read_text()
    words = ["experiment=recipe/clm", "data=wikitext2", "loop.steps=9"]

    def composed(*more):
        return compose.load_config("pretrain", Request(overrides=(*words, *more)))

    assert "/data" not in text
    config = composed("model=small")
    assert (config.model.width, config.data.name) == (256, "wikitext-2")
    assert config.optimizer._target_ == "transfer_cli.optim.muon.MuonWithAdamW"
    assert config.schedule._target_.endswith(".Trapezoid")
    other = composed("schedule=linear", "optimizer=adamw")
    assert other.schedule._target_.endswith(".Linear")
    assert other.optimizer.lr == 2.5e-4
