"""`transfer predict`: an answer for each text, in order, as they come."""

import csv
import io
import json
import shutil
import sys
from io import TextIOWrapper

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.cli import main
from transfer_cli.commands.predict import predict as predicting

TEXTS = [
    "What is the longest line in this file , which is long indeed ?",
    "Who ?",
    "",
    "Träume 🙂 , \"quoted\"",
    "Where is it ?",
]  # fmt: skip

LABELS = ["animal", "city", "disease", "mineral", "person", "river"]


@pytest.fixture
def predict(transfer, finetuned):
    """Return how to predict; gives the answers that were printed."""

    def call(*words):
        ended = transfer("predict", f"run={finetuned}", "device=cpu", *words).ok()
        return [json.loads(line) for line in ended.out.splitlines()]

    return call


def test_every_line_of_a_text_gets_a_label_in_order(predict, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")

    answers = predict("input=in.txt", "batch=2")

    assert [answer["text"] for answer in answers] == TEXTS
    for answer in answers:
        shares = answer["probabilities"]
        assert list(shares) == LABELS
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == max(shares, key=shares.get)


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv"])
def test_a_column_of_a_table_is_read(predict, tmp_path, kind):
    questions = ["Who , if not he ?", "Where ?"]
    if kind == "jsonl":
        lines = [json.dumps({"n": 1, "question": text}) for text in questions]
    else:
        mark = {"csv": ",", "tsv": "\t"}[kind]
        quote = {"csv": '"', "tsv": ""}[kind]
        lines = [mark.join(["n", "question"])]
        lines += [mark.join(["1", f"{quote}{text}{quote}"]) for text in questions]
    (tmp_path / f"in.{kind}").write_text("\n".join(lines) + "\n")

    answers = predict(f"input=in.{kind}", "text=question")

    assert [answer["text"] for answer in answers] == questions


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ((), "Who ?\nWhere ?\n"),
        (("-",), "Who ?\nWhere ?\n"),
        (("format=jsonl",), '{"text": "Who ?"}\n{"text": "Where ?"}\n'),
    ],
)
def test_standard_input_is_read_where_no_file_is_named(predict, type_in, words, given):
    type_in(given)

    assert [answer["text"] for answer in predict(*words)] == ["Who ?", "Where ?"]


def test_answers_go_to_a_file(predict, tmp_path):
    (tmp_path / "in.txt").write_text("Who ?\n")

    assert predict("input=in.txt", "output=out.jsonl") == []

    assert json.loads((tmp_path / "out.jsonl").read_text())["text"] == "Who ?"
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.jsonl"}


@pytest.mark.slow
def test_where_the_answers_are_and_what_they_replace_is_said(transfer, finetuned, tmp_path):
    (tmp_path / "in.txt").write_text("Who ?\n\n")
    words = ("predict", str(finetuned), "in.txt", "output=out.jsonl", "device=cpu")

    first, second = transfer(*words), transfer(*words)

    assert "the answers are in out.jsonl\n" in first.err
    assert "the answers are in out.jsonl, in place of what was there\n" in second.err
    assert "1 of 2 examples are empty texts" in first.err


def test_a_device_is_written_and_not_replaced(predict, tmp_path):
    (tmp_path / "in.txt").write_text("Who ?\n")
    (tmp_path / "null").symlink_to("/dev/null")

    predict("input=in.txt", f"output={tmp_path / 'null'}")

    assert (tmp_path / "null").is_symlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "words"), [(["Who ?"], ()), (["Who ?", "Where ?"], ("batch=2",))]
)
def test_answers_come_before_the_input_ends(shell, finetuned, lines, words):
    process = shell("predict", f"run={finetuned}", "device=cpu", *words)
    process.stdin.writelines(f"{line}\n" for line in lines)
    process.stdin.flush()

    early = [json.loads(process.stdout.readline())["text"] for _ in lines]
    late, err = process.communicate("What ?\n", timeout=120)

    assert early == lines
    assert json.loads(late)["text"] == "What ?"
    assert (process.returncode, err) == (0, "")


# --- batches and windows -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def many():
    """Return texts of many lengths, no two alike."""
    drawn = np.random.default_rng(0)
    words = ["who", "what", "where", "is", "the", "bridge", "of", "Oslo", "built", "?"]
    return [
        " ".join([str(number), *drawn.choice(words, size)])
        for number, size in enumerate(drawn.integers(0, 30, 120))
    ]


def test_neither_the_batch_nor_the_window_changes_an_answer(predict, tmp_path, many, monkeypatch):
    (tmp_path / "in.txt").write_text("\n".join(many))
    whole = predict("input=in.txt", "batch=7")
    monkeypatch.setattr(predicting, "WINDOW_BATCHES", 3)
    parts = predict("input=in.txt", "batch=5")
    monkeypatch.setattr(predicting, "WINDOW_BATCHES", 1)
    alone = predict("input=in.txt", "batch=1")

    for answers in (whole, parts, alone):
        assert [answer["text"] for answer in answers] == many
        for answer, other in zip(answers, alone, strict=True):
            assert answer["probabilities"] == pytest.approx(other["probabilities"], abs=2e-6)


def test_what_is_read_is_never_further_ahead_than_a_window(transfer, finetuned, monkeypatch, many):
    read = written = most_ahead = 0

    class Source(io.BytesIO):
        def readline(self, size=-1):
            nonlocal read, most_ahead
            if read == 3000:
                return b""
            most_ahead = max(most_ahead, read - written)
            read += 1
            return many[read % len(many)].encode() + b"\n"

    class Sink(io.StringIO):
        def write(self, text):
            nonlocal written
            written += 1
            return len(text)

    monkeypatch.setattr(sys, "stdin", TextIOWrapper(Source(b"x")))
    monkeypatch.setattr(sys, "stdout", Sink())
    monkeypatch.setattr(predicting, "WINDOW_BATCHES", 4)

    transfer("predict", f"run={finetuned}", "device=cpu", "batch=16").ok()

    assert (read, written) == (3000, 3000)
    assert 32 < most_ahead <= 64


# --- what is written ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("output", "words", "mark"),
    [("out.csv", [], ","), ("out.tsv", [], "\t"), ("out", ["output_format=csv"], ",")],
)
def test_a_table_is_written_where_it_is_asked_for(predict, tmp_path, output, words, mark):
    (tmp_path / "in.csv").write_text('n,question,more\n1,"Who , then ?",a\n2,Where ?,b\n')
    answers = predict("input=in.csv", "text=question")

    predict("input=in.csv", "text=question", "keep=true", f"output={output}", *words)

    with (tmp_path / output).open(newline="") as file:
        header, *rows = csv.reader(file, delimiter=mark)
    ours = ["label", "probability", *(f"probability/{label}" for label in LABELS), "warning"]
    assert header == ["text", *ours, "n", "more"]
    for row, answer, kept in zip(rows, answers, (["1", "a"], ["2", "b"]), strict=True):
        assert row[:2] == [answer["text"], answer["label"]]
        shares = [answer["probability"], *answer["probabilities"].values()]
        assert [*map(float, row[2:-3])] == shares
        assert row[-2:] == kept


def test_pairs_have_a_column_of_their_own(predict, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"a": "Who ?", "b": "He ."}\n')

    predict("input=in.jsonl", "text=a", "pair=b", "output=out.csv")

    header, row = csv.reader((tmp_path / "out.csv").read_text().splitlines())
    assert header[:3] == ["text", "pair", "label"]
    assert row[:2] == ["Who ?", "He ."]


def test_a_column_that_is_called_as_an_answer_is_kept_under_another_name(predict, tmp_path):
    (tmp_path / "in.csv").write_text("text,label,n\nWho ?,given,1\n")

    predict("in.csv", "keep=true", "output=out.csv")
    [answer] = predict("in.csv", "keep=true")

    header, row = csv.reader((tmp_path / "out.csv").read_text().splitlines())
    assert (header[-2:], row[-2:]) == (["input/label", "n"], ["given", "1"])
    assert (answer["input/label"], answer["label"] in LABELS) == ("given", True)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"review;n\nWho , then ?;1\nWhere ?;2\n", "columns parted by semicolons, text"),
        ("review\tn\nWho , then ?\t1\nWhere ?\t2\n".encode("utf-16"), "read as UTF-16, col"),
        ("review,n\n\"Who , then ?\",café\nWhere ?,2\n".encode("cp1252"), "read as Windows-1252"),
    ],
)  # fmt: skip
def test_how_a_table_is_written_is_recognised_and_said(
    transfer, finetuned, tmp_path, content, said
):
    (tmp_path / "in.csv").write_bytes(content)

    ended = transfer("predict", str(finetuned), "in.csv", "device=cpu").ok()

    texts = [json.loads(line)["text"] for line in ended.out.splitlines()]
    assert texts == ["Who , then ?", "Where ?"]
    assert ended.err.startswith(f"in.csv: {said}")
    assert ended.err.count("\n") == 1


def test_other_fields_are_kept_in_json_lines(predict, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Who ?", "n": [1], "x": {"y": null}}\n')

    [answer] = predict("input=in.jsonl", "keep=true")

    assert list(answer) == ["text", "label", "probability", "probabilities", "n", "x"]
    assert (answer["n"], answer["x"]) == ([1], {"y": None})


# --- several files -----------------------------------------------------------------------------


@pytest.fixture
def parts(tmp_path):
    """Write two tables into a folder of their own."""
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.csv").write_text("text,file\nWho ?,x\nWhere ?,y\n")
    (folder / "b.csv").write_text("file;text\nz;How ?\n")
    return folder


@pytest.mark.parametrize(
    "words",
    [["parts/a.csv", "parts/b.csv"], ["input=[parts/a.csv,parts/b.csv]"], ["parts/*.csv"],
     ["parts"]],
)  # fmt: skip
def test_several_files_are_answered_as_one_and_named_beside_each_answer(predict, parts, words):
    answers = predict(*words, "keep=true")

    places = [tuple(answer[name] for name in ("text", "file", "line")) for answer in answers]
    a, b = "parts/a.csv", "parts/b.csv"
    assert places == [("Who ?", a, 2), ("Where ?", a, 3), ("How ?", b, 2)]
    assert [answer["input/file"] for answer in answers] == ["x", "y", "z"]


# --- rows that cannot be read ------------------------------------------------------------------


def test_rows_that_cannot_be_read_are_told_of_and_left_out(transfer, finetuned, tmp_path):
    (tmp_path / "in.csv").write_bytes(b'text,n\nWho ?,1\nbad\n"Where\n?",2\n\xff,3\nHow ?,4\n')

    ended = transfer(
        "predict", f"run={finetuned}", "device=cpu", "input=in.csv", "errors=skip"
    ).ok()

    texts = [json.loads(line)["text"] for line in ended.out.splitlines()]
    assert texts == ["Who ?", "Where\n?", "How ?"]
    (said,) = ended.err.splitlines()
    assert "in.csv: 2 of 5 rows left out: " in said
    assert "columns (1), line 3" in said
    assert "not UTF-8 (1), line 6" in said


def test_many_bad_rows_are_counted(transfer, finetuned, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Who ?"}\n' + "{\n" * 500)

    ended = transfer(
        "predict", f"run={finetuned}", "device=cpu", "input=in.jsonl", "errors=skip"
    ).ok()

    (said,) = ended.err.splitlines()
    assert "in.jsonl: 500 of 501 rows left out: " in said
    assert said.endswith(", lines 2, 3, 4, 5, 6, ...")


# --- several runs ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def other_model(finetuned, deep):
    """Return a run on the same task, with another tokenizer and fewer positions."""
    run = finetuned.with_name("other_model")
    words = ("data=sample_questions", f"init_from={deep}", "device=cpu", "loop.steps=3")
    words = (*words, "loop.batch=8", "optimizer.lr=0.02", f"run.dir={run}")
    assert main(["finetune", *words]) == 0
    return run


@pytest.fixture
def relabelled(finetuned, tmp_path):
    """Return how to copy a run with other names of its labels."""

    def copy(labels):
        run = tmp_path / "relabelled"
        shutil.copytree(finetuned, run)
        file = run / "model" / "model.json"
        content = json.loads(file.read_text())
        assert content["labels"] == LABELS
        file.write_text(json.dumps({**content, "labels": labels}))
        file.with_name("meta.json").unlink()
        return run

    return copy


def shares_of(answers):
    return np.array([[answer["probabilities"][label] for label in LABELS] for answer in answers])


def test_several_runs_answer_with_the_mean_of_their_probabilities(
    predict, finetuned, other_model, tmp_path
):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS * 5))
    one, two = predict("input=in.txt"), predict("input=in.txt", f"run={other_model}")

    both = predict("input=in.txt", "batch=3", f"run=[{finetuned},{other_model}]")

    mean = (shares_of(one) + shares_of(two)) / 2
    assert np.abs(shares_of(one) - shares_of(two)).max() > 0.01
    assert shares_of(both) == pytest.approx(mean, abs=3e-6)
    assert [answer["label"] for answer in both] == [LABELS[best] for best in mean.argmax(1)]


def test_labels_of_another_order_are_matched_by_name(predict, finetuned, relabelled, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))
    one = predict("input=in.txt")
    backwards = relabelled(LABELS[::-1])

    both = predict("input=in.txt", f"run=[{finetuned},{backwards}]")

    assert shares_of(both) == pytest.approx(
        (shares_of(one) + shares_of(one)[:, ::-1]) / 2, abs=2e-6
    )


# --- what is not finite --------------------------------------------------------------------------


LARGEST = 3e38
"""A float32 whose sums are infinite: finite weights, and an answer that is none."""

SOME_TEXTS = ["Where is it ?", "Who ?", "Who are we ?", "Where ?"]


@pytest.fixture
def spoilt(tmp_path):
    """Return how to copy a run with one number in the weights of some tokens."""

    def copy(run, value, *words):
        copied = shutil.copytree(run, tmp_path / "spoilt")
        weights = copied / "model" / "weights.safetensors"
        tensors = load_file(weights)
        tokenizer = open_pretrained(str(run)).tokenizer
        for token in tokenizer.encode(" ".join(words)):
            tensors["backbone.token_embedding.weight"][token] = value
        save_file(tensors, weights)
        (copied / "model" / "meta.json").unlink()
        return copied

    return copy


@pytest.mark.parametrize("words", [(), ("run=[finetuned,spoilt]",), ("output_format=csv",)])
def test_the_first_text_without_an_answer_is_named(transfer, finetuned, spoilt, tmp_path, words):
    (tmp_path / "in.txt").write_text("\n".join(SOME_TEXTS))
    (tmp_path / "finetuned").symlink_to(finetuned)
    spoilt(finetuned, LARGEST, "we")

    ended = transfer("predict", "run=spoilt", "input=in.txt", "device=cpu", *words)

    assert ended.code == 2
    assert "in.txt, line 3: the answer to 'Who are we ?' is not finite" in ended.err
    answered = ended.out.splitlines()[-2:]
    assert [text in line for text, line in zip(SOME_TEXTS, answered, strict=False)] == [True, True]


def test_an_evaluation_names_the_first_example(transfer, finetuned, spoilt, tmp_path):
    labels = ["animal", "city", "disease", "mineral", "person", "river"]
    texts = [f"number {n} is what ?" for n in range(24)]
    texts[13] = texts[20] = "we"
    rows = [f"{text},{labels[n % 6]}" for n, text in enumerate(texts)]
    (tmp_path / "new.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    spoilt(finetuned, LARGEST, "we")
    data = ("data=table", "data.train=new.csv", "data.test=new.csv", "device=cpu")

    ended = transfer("evaluate", "run=spoilt", *data, "batch=4", "output=out.json")

    assert ended.code == 2
    assert "test: the loss of example 14 ('we') is not finite" in ended.err
    assert ended.out == ""
    assert not (tmp_path / "out.json").exists()


def test_a_text_that_cannot_be_scored_ends_the_training_as_diverged(
    transfer, pretrained, spoilt, tmp_path
):
    spoilt(pretrained, LARGEST, "the", "what")
    words = ("data=sample_questions", "init_from=spoilt", "device=cpu", "loop.steps=2")

    ended = transfer("finetune", *words, "run.dir=run")

    assert ended.code == 4
    assert "validation: the loss of example " in ended.err
    records = (tmp_path / "run" / "metrics.jsonl").read_text()
    assert "NaN" not in records
    assert json.loads(records.splitlines()[0])["loss"] is None


def test_a_column_that_json_cannot_hold_is_not_kept(transfer, finetuned, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "Who ?", "n": NaN}\n{"text": "Where ?", "n": 1}\n')
    words = ("predict", f"run={finetuned}", "input=in.jsonl", "keep=true", "device=cpu")

    stopped, skipped = transfer(*words), transfer(*words, "errors=skip")

    assert stopped.code == 2
    assert "in.jsonl, line 1: a column holds NaN or Infinity, which is no JSON" in stopped.err
    assert [json.loads(line)["n"] for line in skipped.out.splitlines()] == [1]


def test_a_run_that_diverges_says_where_and_ends_with_4(transfer, deep_words, read_json):
    ended = transfer(
        *deep_words, "run.dir=run", "optimizer.lr=1e18", "loop.clip=null", "loop.steps=20",
        "loop.evaluate_every=20 steps", "loop.max_bad_steps=2",
    )  # fmt: skip

    assert ended.code == 4, ended.err
    assert "Traceback" not in ended.err
    said = ended.err.splitlines()[-1]
    assert "loss or gradient is not finite" in said
    assert "on examples main" in said
    assert read_json("run/status.json")["status"] == "failed"
