"""`transfer predict`: a JSON line for each text, in order, as they come."""

import json
import sys
from io import BytesIO, TextIOWrapper

import pytest

pytestmark = pytest.mark.functional

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
        ended = transfer("predict", f"run={finetuned}", "device=cpu", *words)
        assert ended.code == 0, ended.err
        return [json.loads(line) for line in ended.out.splitlines()]

    return call


@pytest.fixture
def type_in(monkeypatch):
    """Return how to set what stands in standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(text.encode())))


def test_every_line_of_a_text_gets_a_label_in_order(predict, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")

    answers = predict("input=in.txt", "batch=2")

    assert [answer["text"] for answer in answers] == TEXTS
    for answer in answers:
        shares = answer["probabilities"]
        assert list(shares) == LABELS
        assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == max(shares, key=shares.get)


def test_the_batch_does_not_change_an_answer(predict, tmp_path):
    (tmp_path / "in.txt").write_text("\n".join(TEXTS))

    one, all_at_once = predict("input=in.txt", "batch=1"), predict("input=in.txt", "batch=32")

    for alone, among in zip(one, all_at_once, strict=True):
        assert alone["probabilities"] == pytest.approx(among["probabilities"], abs=2e-6)


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


def test_standard_input_is_read_where_no_file_is_named(predict, type_in):
    type_in("Who ?\nWhere ?\n")

    assert [answer["text"] for answer in predict()] == ["Who ?", "Where ?"]


def test_standard_input_may_hold_a_table(predict, type_in):
    type_in('{"text": "Who ?"}\n')

    assert [answer["text"] for answer in predict("format=jsonl")] == ["Who ?"]


def test_answers_go_to_a_file(predict, tmp_path):
    (tmp_path / "in.txt").write_text("Who ?\n")

    assert predict("input=in.txt", "output=out.jsonl") == []

    assert json.loads((tmp_path / "out.jsonl").read_text())["text"] == "Who ?"
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.jsonl"}


def test_a_device_is_written_and_not_replaced(predict, tmp_path):
    (tmp_path / "in.txt").write_text("Who ?\n")
    (tmp_path / "null").symlink_to("/dev/null")

    predict("input=in.txt", f"output={tmp_path / 'null'}")

    assert (tmp_path / "null").is_symlink()


def test_answers_come_before_the_input_ends(shell, finetuned):
    process = shell("predict", f"run={finetuned}", "batch=2", "device=cpu")
    process.stdin.write("Who ?\nWhere ?\n")
    process.stdin.flush()

    early = [json.loads(process.stdout.readline())["text"] for _ in range(2)]
    late, err = process.communicate("What ?\n", timeout=120)

    assert early == ["Who ?", "Where ?"]
    assert json.loads(late)["text"] == "What ?"
    assert (process.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"", [], "in.txt is empty."),
        (b"caf\xe9\n", [], "in.txt, line 1: byte 0xE9 at offset 3"),
        (b"a,b\n1,2\n", ["format=csv"], "line 2: no column 'text'; there are 'a', 'b'."),
        (b"text\na,b\n", ["format=csv"], "line 2: 2 columns, but the header in line 1 has 1."),
        (b"{\n", ["format=jsonl"], "in.txt, line 1: not JSON"),
        (b"a\n", ["format=xml"], "format: 'xml' is not one of auto, text, jsonl, csv, tsv."),
        (b"a\n", ["batch=0"], "batch: must be at least 1, got 0"),
        (
            b"a\n",
            ["output=nowhere/x"],
            "nowhere/x cannot be written: No such file or directory. Ch",
        ),
        (b"a\n", ["output=."], ". cannot be written: Is a directory"),
    ],
)
def test_what_cannot_be_read_or_written_is_refused(
    transfer, finetuned, tmp_path, content, words, message
):
    (tmp_path / "in.txt").write_bytes(content)

    ended = transfer(
        "predict", f"run={finetuned}", "device=cpu", "input=in.txt", "output=out", *words
    )

    assert ended.code == 2
    assert message in ended.err
    assert ended.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_a_missing_input_is_refused(transfer, finetuned):
    ended = transfer("predict", f"run={finetuned}", "input=nothing.txt")

    assert ended.code == 2
    assert "nothing.txt does not exist" in ended.err


def test_a_language_model_has_no_labels_to_give(transfer, pretrained):
    ended = transfer("predict", f"run={pretrained}", "input=x")

    assert ended.code == 2
    assert "is a language model; predict needs a fine-tuned run" in ended.err


def test_the_output_never_replaces_the_input(transfer, finetuned, tmp_path):
    file = tmp_path / "texts.txt"
    file.write_text("What do we know about Miryar ?\n")

    ended = transfer("predict", f"run={finetuned}", f"input={file}", "output=texts.txt")

    assert ended.code == 2
    assert "would be lost" in ended.err
    assert file.read_text() == "What do we know about Miryar ?\n"
