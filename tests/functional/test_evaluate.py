"""`transfer evaluate`: any split, any data that fits, and the baseline."""

import json
import math
import re
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from transfer_cli.runs.items import read_items


def measured(out):
    """Return what was printed as split -> measure -> number."""
    measures = {}
    for line in out.splitlines():
        parts = line.split()
        if len(parts) == 3 and parts[0] in ("train", "validation", "test"):
            measures.setdefault(parts[0], {})[parts[1]] = float(parts[2])
    return measures


@pytest.fixture
def trec(tmp_path):
    """Return a data folder with a few questions as TREC has them."""
    folder = tmp_path / "given" / "trec"
    folder.mkdir(parents=True)
    labels = ("ABBR:exp", "DESC:def", "ENTY:food", "HUM:ind", "LOC:city", "NUM:date")
    lines = [f"{labels[n % 6]} What is it no {n} ?\n" for n in range(60)]
    (folder / "train_5500.label").write_text("".join(lines))
    (folder / "TREC_10.label").write_text("".join(lines[:12]))
    return folder.parent


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_split_scores_as_it_did_in_training(transfer, finetuned, read_json, split):
    words = (f"run={finetuned}", f"split={split}", "batch=1", "device=cpu", "output=out.json")

    ended = transfer("evaluate", *words).ok()

    expected = read_json(finetuned / "results.json")["measures"][split]
    assert measured(ended.out) == {split: pytest.approx(expected, rel=1e-4)}
    written = read_json("out.json")
    assert written["run"] == str(finetuned)
    assert written["measures"][split] == pytest.approx(expected, rel=1e-5)


def test_all_splits_that_there_are_are_scored(transfer, short_run, read_json):
    ended = transfer("evaluate", f"run={short_run}", "split=all", "batch=64", "device=cpu").ok()

    measures = measured(ended.out)
    assert set(measures) == {"train", "validation"}
    expected = read_json(short_run / "results.json")["measures"]
    assert measures["validation"] == pytest.approx(expected["validation"], rel=1e-4)


def test_a_sliding_window_scores_the_same_tokens_with_more_before_them(
    transfer, short_run, tmp_path, read_json
):
    at = ("evaluate", f"run={short_run}", "split=train", "device=cpu")
    losses = {}
    for name, words in {
        "default": (),
        "blocks": ("evaluation.context=0", "batch=5"),
        "windows": ("evaluation.context=24",),
        "narrow": ("evaluation.context=24", "evaluation.stride=8", "batch=7"),
    }.items():
        transfer(*at, *words, f"output={name}.json").ok()
        losses[name] = read_json(tmp_path / f"{name}.json")["measures"]["train"]["loss"]
    context = read_json(tmp_path / "windows.json")["counts"]["train"]["context"]

    assert context == {"by": "windows", "tokens": 24, "stride": 40}
    assert losses.pop("blocks") == pytest.approx(losses["default"], rel=1e-5)
    assert len({round(loss, 6) for loss in losses.values()}) == 3


def test_what_is_scored_is_counted_against_what_there_is(
    transfer, pretrained, questions, tmp_path, read_json
):
    words = ("finetune", "data=table", f"data.train={questions}", f"init_from={pretrained}")
    run = ("data.labelled=20", "loop.steps=1", "device=cpu", "run.dir=run")
    transfer(*words, *run).ok()

    ended = transfer("evaluate", "run=run", "split=all", "output=out.json", "device=cpu").ok()

    train = f"of 60 examples of {questions} (6 are held out for validation, 34 are beyond"
    assert f"train: scored 20 {train} data.labelled)" in ended.out
    assert f"validation: scored 6 of 60 examples of {questions} (54 are left" in ended.out
    counts = read_json(tmp_path / "out.json")["counts"]
    assert counts["train"]["scored"] == 20
    assert counts["train"]["of"] == 60


def test_without_a_test_split_validation_is_scored_and_its_size_said(transfer, short_run, corpus):
    ended = transfer("evaluate", str(short_run), "device=cpu").ok()

    assert set(measured(ended.out)) == {"validation"}
    said = next(line for line in ended.out.splitlines() if line.startswith("validation: scored"))
    assert f"of {corpus} (its other lines are trained on): " in said
    assert " bytes; in blocks of 64, without context" in said
    refused = transfer("evaluate", str(short_run), "split=test", "device=cpu")
    assert refused.err.splitlines()[-1].endswith("split= with one of train, validation")


def test_a_confusion_table_is_shown(transfer, finetuned):
    ended = transfer("evaluate", f"run={finetuned}", "device=cpu")

    table = ended.out.split("test confusion")[1].splitlines()
    assert table[1].split() == ["animal", "city", "disease", "mineral", "person", "river"]
    assert all(sum(map(int, row.split()[1:])) == 48 for row in table[2:8])


def test_the_unigram_baseline_is_scored_on_the_same_tokens(
    transfer, short_run, tmp_path, read_json
):
    words = ("evaluate", f"run={short_run}", "split=validation", "device=cpu")

    model = transfer(*words, "output=model.json")
    unigram = transfer(*words, "baseline=unigram", "output=unigram.json")

    assert (model.code, unigram.code) == (0, 0), unigram.err
    assert "scored by baseline=unigram and not by the run" in unigram.out
    assert "unigram" not in model.out
    results = read_json(tmp_path / "unigram.json")
    assert results["baseline"] == "unigram"
    ours = results["measures"]["validation"]
    theirs = read_json(tmp_path / "model.json")["measures"]["validation"]
    assert set(ours) == set(theirs)
    # Two steps teach less than counting does.
    assert 1 < ours["token_perplexity"] < theirs["token_perplexity"]


def test_other_text_is_scored(transfer, pretrained, corpus):
    ended = transfer(
        "evaluate", f"run={pretrained}", "data=text", f"data.train={corpus}", "split=train",
        "device=cpu",
    ).ok()  # fmt: skip

    assert set(measured(ended.out)) == {"train"}


SHORT = ["What do we know ?", "sea the . to a", "", "Kadru has ferries , and rafts ."]


@pytest.mark.parametrize(
    ("run", "files"),
    [
        ("short_run", {"held.txt": 150}),
        ("masked", {"held.txt": 150}),
        ("short_run", {"a.txt": 4, "b.txt": 5}),
        ("short_run", {"rows.jsonl": 2}),
    ],
)
def test_every_line_of_an_own_text_is_scored(run, files, transfer, request, tmp_path, read_json):
    for name, count in files.items():
        lines = [SHORT[number % 4] for number in range(count)]
        rows = [json.dumps({"body": line}) for line in lines]
        (tmp_path / name).write_text("\n".join(rows if name == "rows.jsonl" else lines) + "\n")
    path, name = request.getfixturevalue(run), next(iter(files)) if len(files) == 1 else "*.txt"
    words = [*(["text=body"] if name == "rows.jsonl" else []), "device=cpu", "output=out.json"]

    ended = transfer("evaluate", path, name, *words).ok()

    counts, measures = (read_json("out.json")[what]["input"] for what in ("counts", "measures"))
    lines = [SHORT[number % 4] for count in files.values() for number in range(count)]
    assert counts["words"] == sum(len(line.split()) + 1 for line in lines)
    assert (counts["tokens"] == counts["of_tokens"]) is (run == "short_run")
    assert 0 < counts["tokens"] <= counts["of_tokens"]
    assert f"; {counts['tokens']:,} of {counts['of_tokens']:,} tokens" in ended.out
    assert all(map(math.isfinite, measures.values()))


def test_a_text_of_ones_own_is_scored_as_the_same_text_is_elsewhere(transfer, short_run, read_json):
    Path("held.txt").write_text("".join(f"{line} {n}\n" for n in range(40) for line in SHORT))
    context = ("device=cpu", "evaluation.context=16", "output=out.json")

    transfer("evaluate", short_run, "held.txt", *context).ok()
    measures = read_json("out.json")["measures"]["input"]
    data = ("data=text", "data.train=held.txt", "data.validation=other.txt")
    Path("other.txt").write_text("other\n")
    transfer("evaluate", short_run, *data, "split=train", *context).ok()

    assert measures == read_json("out.json")["measures"]["train"]


def test_other_labelled_data_is_scored(transfer, finetuned, tmp_path):
    labels = ("animal", "city", "disease", "mineral", "person", "river")
    rows = [f"What is it no {n} ?,{labels[n % 6]}" for n in range(60)]
    (tmp_path / "new.csv").write_text("\n".join(["text,label", *rows]))

    ended = transfer(
        "evaluate", f"run={finetuned}", "data=table", "data.train=new.csv",
        "data.validation=new.csv", "split=train", "device=cpu",
    ).ok()  # fmt: skip

    assert set(measured(ended.out)) == {"train"}


LABELS = ("animal", "city", "disease", "mineral", "person", "river")


@pytest.fixture
def new_table(tmp_path):
    """Return how to write a labelled file of one's own: 60 rows, and more."""

    def write(*more, header="question;kind;n"):
        rows = [f"What is it , no {n} ?;{LABELS[n % 6]};{n}" for n in range(60)]
        (tmp_path / "new.csv").write_text("\n".join([header, *rows, *more]) + "\n")

    return write


def test_every_row_of_a_file_of_ones_own_is_scored(
    transfer, finetuned, new_table, tmp_path, read_json
):
    new_table()

    words = ("evaluate", str(finetuned), "new.csv", "output=out.json", "device=cpu")
    ended = transfer(*words).ok()

    assert (
        "new.csv: columns parted by semicolons, text from 'question', label from 'ki" in ended.err
    )
    assert "input: scored 60 of 60 examples of new.csv\n" in ended.out
    results = read_json(tmp_path / "out.json")
    assert set(results["measures"]) == {"input"}
    table = ended.out.split("input confusion")[1].splitlines()[2:8]
    assert [sum(map(int, row.split()[1:])) for row in table] == [10] * 6


def test_rows_that_cannot_be_scored_are_counted(transfer, finetuned, new_table):
    new_table("no label;;1", "ragged")

    ended = transfer("evaluate", str(finetuned), "input=new.csv", "errors=skip", "device=cpu").ok()

    assert "input: scored 60 of 62 examples of new.csv (2 cannot be read)\n" in ended.out
    assert re.search(r"new.csv: 2 of 62 rows left out: .*lines? 62", ended.err), ended.err


def test_all_rows_have_one_label_or_some_of_the_runs(transfer, finetuned, tmp_path):
    (tmp_path / "one.csv").write_text("text,label\nWho ?,person\nWhere ?,person\n")

    ended = transfer("evaluate", str(finetuned), "input=one.csv", "device=cpu").ok()

    assert "input: scored 2 of 2 examples of one.csv" in ended.out


def test_the_data_is_looked_for_where_the_run_found_it(
    transfer, pretrained, trec, loop, tmp_path, monkeypatch
):
    words = ("data=trec6", f"init_from={pretrained}", *loop, "loop.steps=1")
    transfer("finetune", *words, f"data_dir={trec}", "run.dir=run").ok()

    scored = transfer("evaluate", "run=run").ok()
    trec.rename(tmp_path / "elsewhere")
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path / "elsewhere"))
    moved = transfer("evaluate", "run=run")

    assert moved.out == scored.out


def test_slices_are_scored_beside_the_whole(transfer, finetuned, read_json):
    words = ("slices.short.length=[0,6]", "slices.long.length=[7,null]", "slices.none.word=zebra")
    wrong = f"slices.wrong.file={finetuned / 'items.jsonl'}"

    ended = transfer("evaluate", f"run={finetuned}", *words, wrong, "output=out.json").ok()

    measures = read_json("out.json")["measures"]["test"]
    short, long = (measures[f"count/slice/{name}"] for name in ("short", "long"))
    assert min(short, long) > 0
    assert short + long == read_json("out.json")["counts"]["test"]["scored"]
    right = sum(
        measures[f"count/slice/{name}"] * measures[f"accuracy/slice/{name}"]
        for name in ("short", "long")
    )
    assert right / (short + long) == pytest.approx(measures["accuracy"])
    assert measures["count/slice/none"] == 0
    assert "accuracy/slice/none" not in measures
    assert measures["accuracy/slice/wrong"] == 0
    assert measures["count/slice/wrong"] == round((1 - measures["accuracy"]) * (short + long))
    assert f"count/slice/short        {short}" in ended.out


TABLE = [f"text number {n} of {'one' if n % 2 else 'two'},{'one' if n % 2 else 'two'}"
         for n in range(30)]  # fmt: skip


def test_a_slice_is_told_by_a_column_of_its_table(transfer, adapting, read_json):
    rows = [f"{row},{'web' if n % 3 else 'mail'}" for n, row in enumerate(TABLE)]
    Path("all.csv").write_text("\n".join(["text,label,source", *rows]) + "\n")
    words = [word for word in adapting() if not word.startswith("data.train=")]
    transfer("finetune", *words, "data.train=all.csv", "run.dir=run").ok()
    Path("new.csv").write_text("source,text,label\nweb,a b,one\nmail,c,two\n")

    slices = ("slices.web.column=source", "slices.web.value=web")
    ended = transfer("evaluate", "run", "split=all", *slices, "output=own.json", "device=cpu")
    other = transfer("evaluate", "run", "new.csv", *slices, "output=other.json", "device=cpu")

    assert ended.code == other.code == 0, (ended.err, other.err)
    measures = read_json("own.json")["measures"]
    assert measures["train"]["count/slice/web"] + measures["validation"]["count/slice/web"] == 20
    assert read_json("other.json")["measures"]["input"]["count/slice/web"] == 1


@pytest.mark.slow
def test_what_became_of_each_example_is_a_slice_for_another_run(transfer, adapting, read_json):
    transfer("finetune", *adapting(), "run.dir=first").ok()
    transfer("evaluate", "first", "split=all", "each=each.jsonl", "device=cpu").ok()
    items = [json.loads(line) for line in Path("each.jsonl").read_text().splitlines()]
    hard = sum(
        item["predicted"] != item["label"] for item in items if item["split"] == "validation"
    )

    transfer(
        "finetune", *adapting("slices"), "losses.slices.parts.hard.file=each.jsonl",
        "run.dir=second",
    ).ok()  # fmt: skip

    assert {item["split"] for item in items} == {"train", "validation"}
    measures = read_json("second/results.json")["measures"]["validation"]
    assert measures["count/slice/hard"] == hard
    assert measures["count/slice/short"] + measures["count/slice/long"] == 6


@pytest.mark.slow
def test_heads_of_slices_and_views_end_with_the_training(transfer, adapting):
    for preset, heads in (("slices", 2), ("cvt", 3)):
        transfer("finetune", *adapting(preset), f"run.dir={preset}").ok()

        kept = load_file(f"{preset}/model/weights.safetensors")
        (newest, *_) = sorted(Path(preset, "checkpoints").glob("step-*"), reverse=True)
        whole = load_file(newest / "weights.safetensors")
        assert len({name.split(".")[1] for name in whole.keys() - kept.keys()}) == heads
        assert {name.split(".")[1] for name in kept if name.startswith("heads.")} == {"class"}


# --- items ---------------------------------------------------------------------------------------


def items_of(run, split):
    return list(read_items(Path(run) / "items.jsonl", split))


def check(run, results, split):
    """Hold a split's items to its measures; return them."""
    items, measures = items_of(run, split), results["measures"][split]
    assert [item.index for item in items] == list(range(len(items)))
    total, targets = (sum(getattr(item, name) for item in items) for name in ("loss", "targets"))
    assert total / targets == pytest.approx(measures["loss"], rel=1e-6)
    if "error_rate" in measures:
        wrong = sum(item.predicted != item.label for item in items)
        assert 100 * wrong / len(items) == pytest.approx(measures["error_rate"])
        table = results["tables"][split]["confusion"]
        assert len(items) == sum(map(sum, table))
    return items


@pytest.mark.parametrize("split", ["validation", "test"])
def test_items_of_fine_tuning_are_what_the_measures_are_made_of(finetuned, read_json, split):
    items = check(finetuned, read_json(finetuned / "results.json"), split)

    for item in items:
        assert item.label
        assert item.text
        assert item.targets == 1
        assert 1 / 6 <= item.probability <= 1


@pytest.mark.parametrize("split", ["validation", "test"])
def test_items_of_pretraining_are_blocks_without_text(pretrained, read_json, split):
    items = check(pretrained, read_json(pretrained / "results.json"), split)

    assert {item.targets for item in items[:-1]} == {32}
    assert {(item.label, item.predicted, item.text) for item in items} == {("", "", "")}


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["loop.evaluate_every=9 epochs"], 1),
        (["loop.evaluate_every=1 epoch", "loop.monitor=error_rate", "optimizer.lr=1e-12"], 3),
    ],
    ids=["the last weights are the best", "the first are"],
)
def test_validation_is_scored_again_only_if_other_weights_are_the_best(
    words, times, transfer, adapting, read_json, monkeypatch
):
    from transfer_cli.training import trainer

    evaluate, scored = trainer.evaluate, []

    def counting(model, objective, split, **rest):
        scored.append(split.name)
        return evaluate(model, objective, split, **rest)

    monkeypatch.setattr(trainer, "evaluate", counting)
    transfer("finetune", *adapting(), "loop.epochs=2", "loop.steps=null", *words, "run.dir=r").ok()

    assert scored.count("validation") == times
    check(Path("r"), read_json(Path("r/results.json")), "validation")


@pytest.mark.parametrize("preset", ["frozen", "lm_auxiliary"])
def test_items_with_kept_states_and_with_further_losses(preset, adapted, read_json):
    run = adapted(preset).run

    items = check(run, read_json(run / "results.json"), "validation")

    assert all(item.text for item in items)
    assert items_of(run, "test") == []


def test_a_pair_is_shown_as_two_texts(transfer, deep, tmp_path, loop):
    rows = [f"A {n} ?,B {n} .,{('yes', 'no')[n % 2]}" for n in range(30)]
    Path("pairs.csv").write_text("\n".join(["text,pair,label", *rows]))
    words = ("data=table", "data.train=pairs.csv", "data.pair=pair", "data.validation_share=0.2")

    transfer("finetune", *words, f"init_from={deep}", *loop, "loop.steps=1", "run.dir=run").ok()

    items = items_of("run", "validation")
    assert len(items) == 6
    for item in items:
        number = item.text.split()[1]
        assert item.text == f"A {number} ? / B {number} ."
        assert item.label == ("yes", "no")[int(number) % 2]


# --- TensorBoard's HParams ---------------------------------------------------------------------


def test_final_measures_stand_beside_the_hyper_parameters(finetuned, read_json):
    events = EventAccumulator(str(finetuned / "tensorboard")).Reload()

    measures = read_json(finetuned / "results.json")["measures"]
    for split in ("validation", "test"):
        for name in ("loss", "error_rate"):
            (point,) = events.Scalars(f"weights_kept/{split}/{name}")
            assert point.step == 6
            assert point.value == pytest.approx(measures[split][name])
    assert not [
        tag for tag in events.Tags()["scalars"] if tag.startswith("weights_kept/test/accuracy/")
    ]


def test_a_finished_run_that_goes_on_is_listed_once_with_its_last_measures(
    transfer, adapting, read_json
):
    words = ("finetune", *adapting("full"), "schedule=constant", "run.dir=run")
    transfer(*words, "loop.steps=3").ok()
    transfer("finetune", "resume=run", "loop.steps=6").ok()

    events = EventAccumulator("run/tensorboard").Reload()

    (point,) = events.Scalars("weights_kept/validation/loss")
    assert point.step == 6
    wanted = read_json("run/results.json")["measures"]["validation"]["loss"]
    assert point.value == pytest.approx(wanted)
    assert [path.name for path in Path("run/tensorboard").iterdir() if path.is_dir()] == []
    starts = [
        event
        for path in Path("run/tensorboard").iterdir()
        for event in _events(path)
        if any(value.tag == "_hparams_/session_start_info" for value in event.summary.value)
    ]
    assert len(starts) == 1
    assert json.loads(Path("run/items.jsonl").read_text().splitlines()[0])["split"] == "validation"


def _events(path):
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    return LegacyEventFileLoader(str(path)).Load()
