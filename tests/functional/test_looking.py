"""What commands show of what is there: `info`, `presets`, `inspect` and `prepare`."""

import json
from importlib import metadata

import torch

# --- info ----------------------------------------------------------------------------------------


def test_programs_get_json(transfer, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))

    ended = transfer("info", "--json")

    assert (ended.code, ended.err) == (0, "")
    found = json.loads(ended.out)
    assert found["versions"]["torch"] == metadata.version("torch")
    assert len(found["gpus"]) == torch.cuda.device_count()
    folders = {folder["name"]: folder["path"] for folder in found["folders"]}
    assert folders["data"] == str(tmp_path / "data")
    assert folders["cache"] == str(tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_people_get_lines(transfer):
    ended = transfer("info")

    assert (ended.code, ended.err) == (0, "")
    assert {"versions", "devices", "folders"} <= set(ended.out.splitlines())


# --- presets -------------------------------------------------------------------------------------


def test_every_group_and_option_is_listed_with_its_line(transfer):
    ended = transfer("presets", "--json")

    assert (ended.code, ended.err) == (0, "")
    found = {(each["group"], each["option"]): each for each in json.loads(ended.out)}
    assert {
        ("model", "tiny"),
        ("data", "sample_text"),
        ("objective", "mlm"),
        ("adaptation", "frozen"),
        ("tokenizer", "bpe"),
        ("optimizer", "adamw"),
        ("schedule", "slanted"),
    } <= set(found)
    assert all(each["description"] for each in found.values())


def test_people_get_a_block_for_each_group(transfer):
    ended = transfer("presets", "model")

    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("model=\n")
    assert "  tiny " in ended.out
    assert "data=" not in ended.out


# --- inspect -------------------------------------------------------------------------------------


def test_labelled_data_is_described(transfer, pretrained):
    ended = transfer(
        "inspect", "data=sample_questions", f"init_from={pretrained}", "samples=1"
    ).ok()

    out = ended.out
    for split, count in {"train": 144, "validation": 96, "test": 288}.items():
        assert f"{split}: {count} examples" in out
    assert "labels   animal 24  city 24  disease 24  mineral 24  person 24  river 24" in out
    assert "tokens   " in out
    assert "longest" in out
    assert "unknown  " in out
    assert "overlap: 0 texts stand in both train and test" in out
    # The classification token ends an input of a causal model.
    samples = [line for line in out.splitlines() if line.rstrip().endswith("[CLS]")]
    assert len(samples) == 3


def test_repeats_and_overlaps_are_counted(transfer, tmp_path):
    (tmp_path / "train.csv").write_text("text,label\none,a\ntwo,b\none,a\nthree,b\n")
    (tmp_path / "test.csv").write_text("text,label\none,a\nfour,b\n")

    ended = transfer(
        "inspect", "data=table", "data.train=train.csv", "data.validation=test.csv",
        "data.test=test.csv", "tokenizer.size=300", "samples=0",
    ).ok()  # fmt: skip

    assert "repeats  1 texts stand there before" in ended.out
    assert "overlap: 1 texts stand in both train and test" in ended.out


def test_both_texts_of_a_pair_are_counted(transfer, tmp_path):
    (tmp_path / "train.csv").write_text("text,other,label\none,a a a,x\ntwo,b b,y\n")
    table = ("data=table", "data.train=train.csv", "data.validation=train.csv", "samples=1")

    one = transfer("inspect", *table, "tokenizer.size=300").out
    both = transfer("inspect", *table, "tokenizer.size=300", "data.pair=other").out

    assert "longest 1" in one
    assert "tokens   3.5 on average" in both
    assert "longest 4" in both
    assert "x: one | a a a" in both


def test_text_is_described_with_its_targets(transfer, corpus):
    ended = transfer(
        "inspect", "data=text", f"data.train={corpus}", "tokenizer.size=600", "samples=1"
    ).ok()

    out = ended.out.splitlines()
    assert out[0].startswith("train: 297 lines, ")
    assert any(line.startswith("  tokens a word  ") for line in out)
    assert any(line.startswith("  unknown  0 tokens") for line in out)
    assert any(line.startswith("overlap: 0 of ") for line in out)
    tokens, targets = (
        next(line for line in out if line.startswith(f"  {what}")).split()[1:]
        for what in ("tokens   ", "targets")
    )
    assert tokens[1:] == targets[: len(tokens) - 1]


def test_what_the_masked_objective_hides_is_shown(transfer, corpus):
    ended = transfer(
        "inspect", "data=text", f"data.train={corpus}", "tokenizer.size=600", "samples=1",
        "objective=mlm",
    ).ok()  # fmt: skip

    assert "[MASK]" in ended.out


# --- prepare -------------------------------------------------------------------------------------

WORDS = ("tokenizer.size=600",)


def test_a_second_call_makes_and_encodes_nothing(transfer, corpus, tmp_path, monkeypatch):
    monkeypatch.setenv("TRANSFER_CACHE", str(tmp_path / "cache"))
    words = ("prepare", "data=text", f"data.train={corpus}", *WORDS)

    first = transfer(*words)
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}
    second = transfer(*words)

    assert (first.code, second.code) == (0, 0)
    assert "Encoding the train text" in first.err
    assert second.err == ""
    assert first.out == second.out
    assert made == {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.*")}


def test_a_run_on_prepared_data_encodes_nothing(transfer, corpus, tiny, loop):
    data = ("data=text", f"data.train={corpus}")

    transfer("prepare", *data, "tokenizer.size=600").ok()
    ended = transfer("pretrain", *data, *tiny, *loop, "loop.steps=1", "run.dir=run").ok()

    assert "Encoding" not in ended.err
    assert "Making the tokenizer" not in ended.err


def test_it_says_what_came(transfer, corpus):
    ended = transfer("prepare", "data=text", f"data.train={corpus}", *WORDS)

    lines = [line.split()[0] for line in ended.out.splitlines()]
    assert lines == ["tokenizer", "train", "validation"]
    assert "tokens" in ended.out.splitlines()[0]


def test_the_tokenizer_of_a_run_is_used(transfer, pretrained, corpus):
    words = ("data=text", f"data.train={corpus}", f"init_from={pretrained}")

    ended = transfer("prepare", *words).ok()

    assert "Making the tokenizer" not in ended.err


def test_a_task_is_checked(transfer, questions):
    ended = transfer("prepare", "data=table", f"data.train={questions}", *WORDS).ok()

    assert ended.out.splitlines() == [
        "train      54 examples, 2 labels",
        "validation 6 examples, 2 labels",
    ]
