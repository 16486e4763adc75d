"""What `predict` writes can be read again."""

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.commands.predict.reading import Columns, Row
from transfer_cli.commands.predict.writing import FORMATS, format_of
from transfer_cli.data.labelled import Example
from transfer_cli.data.readers import all_lines
from transfer_cli.data.table import table_records
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.tasks.classification import ClassificationTask

LABELS = ("no", "yes")
TASK = ClassificationTask(LABELS)
KEPT = Columns("text", None, keep=True, task=TASK)
ANSWERS = [{"probabilities": [0.25, 0.75]}]
texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))


def written(table_format, row, columns=KEPT):
    """Return the answer to a row, as our own reader finds it."""
    out = io.StringIO(newline="")
    answers = FORMATS[table_format](out, columns)
    row = answers.renamed(row)
    assert answers.problem_of(row) is None
    answers.write_window([row], ANSWERS)
    lines = all_lines(io.BytesIO(out.getvalue().encode()), "a")
    [record] = table_records(lines, "a", table_format)
    return dict(record.fields)


@given(text=texts, pair=texts, kept=texts)
def test_csv_gives_back_any_text(text, pair, kept):
    found = written(
        "csv", Row(1, Example(text, pair=pair), {"n": kept}, 0), Columns("a", "b", True, TASK)
    )

    # The reader takes \r\n inside a value for the end of a line, which it writes as \n.
    assert {name: value.replace("\r\n", "\n") for name, value in found.items()} == {
        "text": text.replace("\r\n", "\n"),
        "pair": pair.replace("\r\n", "\n"),
        "label": "yes",
        "probability/no": "0.25",
        "probability/yes": "0.75",
        "n": kept.replace("\r\n", "\n"),
    }


def test_json_lines_hold_what_is_kept_as_it_was():
    row = Row(1, Example("a", pair="b"), {"n": [1, None], "x": "ü"}, 0)
    found = written("jsonl", row, Columns("text", "other", keep=True, task=TASK))

    assert found == {
        "text": "a", "label": "yes", "probabilities": {"no": 0.25, "yes": 0.75}, "pair": "b",
        "n": [1, None], "x": "ü",
    }  # fmt: skip


def test_values_of_json_lines_become_cells():
    kept = {"list": [1, "a"], "nothing": None, "true": True, "text": 'a, "b"'}
    columns = Columns("question", None, keep=True, task=TASK)

    found = written("tsv", Row(1, Example("a"), kept, 0), columns)

    assert (found["text"], found["input/text"]) == ("a", 'a, "b"')
    assert (found["list"], found["nothing"], found["true"]) == ('[1, "a"]', "", "true")


@pytest.mark.parametrize(
    ("table_format", "column"),
    [("jsonl", "probabilities"), ("jsonl", "label"), ("csv", "label"), ("csv", "probability/no")],
)
def test_a_column_with_the_name_of_one_of_ours_gets_another(table_format, column):
    kept = {column: "x", f"input/{column}": "y"}

    found = written(table_format, Row(1, Example("a"), kept, 0))

    assert found[column] != "x"
    assert (found[f"input/input/{column}"], found[f"input/{column}"]) == ("x", "y")


def problem(table_format, *rows):
    answers = FORMATS[table_format](io.StringIO(), KEPT)
    return [answers.problem_of(row) for row in rows][-1]


def test_a_table_has_the_same_columns_in_each_row():
    first = Row(1, Example("a"), {"n": 1, "x": 2}, 0)

    assert "'y' is not in the first row" in problem("csv", first, Row(2, Example("a"), {"y": 3}, 0))
    assert problem("csv", first, Row(2, Example("a"), {"x": 3}, 0)) is None
    assert problem("jsonl", first, Row(2, Example("a"), {"y": 3}, 0)) is None


@pytest.mark.parametrize("value", ["a\tb", "a\nb", "a\rb"])
def test_what_tsv_cannot_hold_is_said(value):
    assert "which TSV cannot hold" in problem("tsv", Row(1, Example(value), {}, 0))
    assert "which TSV cannot hold" in problem("tsv", Row(1, Example("a"), {"n": value}, 0))
    assert problem("csv", Row(1, Example(value), {"n": value}, 0)) is None


class Spoken(ClassificationTask):
    """Answers with a text, as `probabilities` says it."""

    cell_names = ("label",)

    def cells(self, answer):
        return [answer["probabilities"]]


@pytest.mark.parametrize("answer", ["a\tb", "a\nb", "a\rb"])
def test_an_answer_does_not_break_a_row(answer):
    spoken = Columns("text", None, keep=False, task=Spoken(LABELS))
    row = Row(3, Example("a"), {}, 0)
    out = io.StringIO(newline="")

    with pytest.raises(DataError, match=r"^line 3: its answer holds a tab .*output_format=csv"):
        FORMATS["tsv"](out, spoken).write_window([row], [{"probabilities": answer}])

    assert out.getvalue() == ""
    FORMATS["csv"](out, spoken).write_window([row], [{"probabilities": answer}])
    lines = all_lines(io.BytesIO(out.getvalue().encode()), "a")
    [record] = table_records(lines, "a", "csv")
    assert record.fields == {"text": "a", "label": answer}


def test_half_a_surrogate_pair_is_said_before_it_is_written():
    row = Row(1, Example("a"), {"n": json.loads('"\\ud800"')}, 0)

    for table_format in ("jsonl", "csv", "tsv"):
        assert "half of a surrogate pair" in problem(table_format, row)


@pytest.mark.parametrize(
    ("chosen", "path", "found"),
    [
        ("auto", "-", "jsonl"), ("auto", "a.csv", "csv"), ("auto", "a.TSV", "tsv"),
        ("auto", "a.ndjson", "jsonl"), ("auto", "a", "jsonl"), ("csv", "a.jsonl", "csv"),
        ("csv", "a.txt", "csv"),
    ],
)  # fmt: skip
def test_the_ending_tells_the_format(chosen, path, found):
    assert format_of(chosen, path) == found


@pytest.mark.parametrize("ending", ["txt", "foo", "xlsx", "parquet", "md"])
def test_an_ending_that_is_not_written_is_refused_with_those_that_are(ending):
    with pytest.raises(
        ConfigError, match=rf"^output: '\.{ending}' of a\.{ending} .* \.csv, \.tsv;"
    ):
        format_of("auto", f"a.{ending}")
