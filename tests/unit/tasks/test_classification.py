"""Labels of texts: the record, and the linear model on words."""

import io
import random
import time

import pytest
import torch

from transfer_cli.commands.predict.reading import Columns, read_rows
from transfer_cli.commands.predict.writing import Submitted
from transfer_cli.data.labelled import Example
from transfer_cli.data.layout import Layout
from transfer_cli.data.split import TextStats
from transfer_cli.data.table import open_table
from transfer_cli.data.wanted import LABEL, Chosen, Wanted
from transfer_cli.errors import ConfigError, DataError
from transfer_cli.objectives.base import TaskInfo
from transfer_cli.objectives.classification import Classification
from transfer_cli.tasks import classification
from transfer_cli.tasks.classification import ClassificationTask, num_right_by_words
from transfer_cli.tasks.glue import TASKS, Glue
from transfer_cli.tasks.regression import RegressionTask

TASK = ClassificationTask(("no", "yes", "maybe"))


def test_an_answer_is_the_likeliest_label_with_rounded_probabilities():
    written = TASK.written({"probabilities": [0.1, 0.7000004, 0.2]})

    shares = {"no": 0.1, "yes": 0.7, "maybe": 0.2}
    assert written == {"label": "yes", "probability": 0.7, "probabilities": shares}
    assert TASK.cell_names == ("label", "probability", *(f"probability/{name}" for name in shares))


def test_several_runs_answer_by_their_mean_whatever_the_order_of_their_labels():
    other = ClassificationTask(("maybe", "no", "yes"))

    answer = TASK.combine(
        [(TASK, {"probabilities": [1.0, 0.0, 0.0]}), (other, {"probabilities": [0.5, 0.25, 0.25]})]
    )

    assert answer == {"probabilities": [0.625, 0.125, 0.25]}


def test_of_very_many_labels_there_is_no_linear_model_on_words():
    one = [Example("Where is it ?", 0), Example("How many ?", 1)]
    few, many = (ClassificationTask(tuple(map(str, range(count)))) for count in (256, 257))

    assert few.right_by_words(one, one) == 2
    assert many.right_by_words(one, one) is None


NOISE = ("the", "a", "of", "in", "one", "two", "new", "old", "big", "small")


def texts(count, word_of_label, seed=0):
    """Return texts of random words, with a word for their label somewhere among them."""
    drawn = random.Random(seed)
    examples = []
    for number in range(count):
        label = number % len(word_of_label)
        words = [*drawn.choices(NOISE, k=6), word_of_label[label]]
        drawn.shuffle(words)
        examples.append(Example(" ".join(words), label))
    return examples


def test_where_a_word_tells_the_label_all_are_right():
    mountain = ("Everest", "sea", "city")

    assert num_right_by_words(texts(60, mountain), texts(30, mountain, seed=1), 3) == 30


def test_where_words_say_nothing_it_is_right_by_chance():
    nothing = ("word", "word")

    right = num_right_by_words(texts(200, nothing), texts(1000, nothing, seed=1), 2)

    assert 400 < right < 600


def test_pairs_of_words_count_too():
    drawn = random.Random(0)
    train = []
    for number in range(80):
        words_ = drawn.choices(NOISE, k=4)
        pair = ["not", "good"] if number % 2 else ["good", "not"]
        train.append(Example(" ".join([*words_, *pair, *words_]), number % 2))

    assert num_right_by_words(train, [Example("not good", 1), Example("good not", 0)], 2) == 2


def test_a_word_of_the_second_text_is_another_one():
    train = [Example("yes", 0, pair="no"), Example("no", 1, pair="yes")] * 10

    assert num_right_by_words(train, train[:2], 2) == 2


def test_the_commonest_label_is_what_remains_without_any_word():
    train = [Example("?", 1)] * 3 + [Example("!", 0)]

    assert num_right_by_words(train, [Example("...", 1), Example("", 0)], 2) == 1


def test_order_and_repetition_of_the_call_change_nothing():
    train, scored = texts(60, ("a", "of", "old")), texts(300, ("a", "of", "old"), seed=1)
    first = num_right_by_words(train, scored, 3)

    assert num_right_by_words(train, scored, 3) == first
    assert abs(num_right_by_words(train[::-1], scored, 3) - first) <= 1


def test_of_many_labels_the_vocabulary_is_small(monkeypatch):
    monkeypatch.setattr(classification, "MOST_WEIGHTS", 6)
    train = texts(60, ("Everest", "sea", "city"))

    # The two most frequent words say nothing.
    assert num_right_by_words(train, train, 3) < 60


@pytest.mark.slow
def test_ten_thousand_short_texts_take_seconds():
    train = texts(10_000, ("Everest", "sea", "city"))
    began = time.process_time()

    num_right_by_words(train, train[:1000], 3)

    assert time.process_time() - began < 5


# --- glue ----------------------------------------------------------------------------------------


FILES = {
    "cola": {"train.tsv": "gj04\t1\t\tThey go .\ngj04\t0\t*\tThey goes .\n"},
    "sst2": {"train.tsv": "sentence\tlabel\na gem \t1\ndull \t0\n"},
    "mrpc": {
        "train.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t7\t8\tA b\tB a\n"
        '0\t7\t8\tHe said " so\tNo\n'
    },
    "stsb": {
        "train.tsv": "index\tgenre\tsentence1\tsentence2\tscore\n0\tx\tA b\tB\t2.5\n1\tx\tC\tD\t5\n"
    },
    "qqp": {
        "train.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
        '1\t2\t3\tWhat is "x ?\tWhy ?\t0\n4\t5\n6\t7\t8\tHow ?\tHow so ?\t1\n'
    },
    "mnli": {
        "train.tsv": "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
        "0\tA\tB\tneutral\tneutral\n1\tC\tD\tentailment\t-\n2\tE\tF\tx\tcontradiction\n"
        "3\tG\tH\tx\tentailment\n",
    },
    "qnli": {
        "train.tsv": "index\tquestion\tsentence\tlabel\n0\tA ?\tB .\tentailment\n"
        "1\tC ?\tD .\tnot_entailment\n"
    },
    "rte": {
        "train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n"
        "1\tC\tD\tentailment\n"
    },
    "wnli": {"train.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1\n1\tC\tD\t0\n"},
}  # fmt: skip


@pytest.fixture
def glue(tmp_path):
    """Return a function that writes a task's files, with changes, and returns the data set."""

    def write(task, old="", new=""):
        (text,) = FILES[task].values()
        for file in TASKS[task].splits.values():
            (tmp_path / file).write_text(text.replace(old, new), encoding="utf-8")
        return Glue(task=task, folder=str(tmp_path))

    return write


@pytest.mark.parametrize("task", FILES)
def test_each_data_set_is_read(glue, task, tmp_path):
    data = glue(task).load(tmp_path, 0)

    more = {"mismatched"} if task == "mnli" else set()
    assert set(data.splits) == {"train", "validation"} | more
    labels = {*TASKS[task].labels}
    train = data.splits["train"]
    assert not labels or {data.labels[example.label] for example in train} == labels
    pairs = {example.pair is not None for example in train}
    assert pairs == {task not in ("cola", "sst2")}


def test_a_quotation_mark_is_a_character(glue, tmp_path):
    examples = glue("qqp").load(tmp_path, 0).splits["train"]

    assert [example.text for example in examples] == ['What is "x ?', "How ?"]


def test_what_is_left_out_is_counted(glue, tmp_path, caplog):
    glue("qqp").load(tmp_path, 0)
    assert "train.tsv: left out 1 rows that lack columns" in caplog.text

    assert len(glue("mnli").load(tmp_path, 0).splits["mismatched"]) == 3
    assert "dev_mismatched.tsv: left out 1 rows that are '-'" in caplog.text


def test_stsb_is_a_task_of_numbers(glue, tmp_path):
    data = glue("stsb").load(tmp_path, 0)

    assert data.task == RegressionTask.node(
        truncate="longest_first", mean=3.75, scale=1.25, quartiles=[3.125, 3.75, 4.375]
    )
    assert [example.value for example in data.splits["train"]] == [2.5, 5.0]


@pytest.mark.parametrize(
    ("task", "old", "new", "message"),
    [
        ("rte", "sentence2\t", "hypothesis\t", r"train.tsv, line 1: no column 'sentence2'; there"),
        ("rte", "1\tC\tD\t", "C\t", "train.tsv, line 3: 2 columns parted by tabs, expected at"),
        ("rte", "\tentailment", "\tentailed", "line 3: the label 'entailed' is not one of entail"),
        ("stsb", "2.5", "nan", "train.tsv, line 2: 'nan' is no number"),
        ("cola", "\t0\t", "\t1\t", "no training example has the label '0'"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_is_named(glue, tmp_path, task, old, new, message):
    with pytest.raises(DataError, match=message):
        glue(task, old, new).load(tmp_path, 0)


def test_a_folder_without_the_files_and_a_task_that_is_none_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"train\.tsv"):
        Glue(task="rte", folder=str(tmp_path / "none")).load(tmp_path, 0)
    with pytest.raises(ValueError, match=r"'mmli' is not one of .* Did you mean 'mnli'"):
        Glue(task="mmli", folder=str(tmp_path))


@pytest.mark.parametrize(
    ("judged_by", "first", "value"),
    [("matthews", "matthews", 0.7035265), ("f1", "f1", 90 / 105), ("error_rate", "error_rate", 15)],
)
def test_runs_are_judged_by_what_the_benchmark_takes(judged_by, first, value):
    objective = Classification()
    task = ClassificationTask(("0", "1"), judged_by=judged_by)
    objective.setup(TaskInfo(None, task.labels, task=task))
    totals = {"confusion": torch.tensor([[40, 10], [5, 45]]), "loss": torch.tensor(50.0)}

    measures = objective.compute_metrics(totals, {"loss": 100}, TextStats())

    assert objective.declared_metrics()[0].name == first
    assert [metric.name for metric in objective.declared_metrics() if metric.headline] == [first]
    assert measures[first] == pytest.approx(value, abs=1e-6)


TESTS = {
    "cola": ("test.tsv", "CoLA.tsv", "index\tsentence", "0\tBill's \" book ."),
    "sst2": ("test.tsv", "SST-2.tsv", "index\tsentence", "0\tuneasy ."),
    "mrpc": (
        "test.tsv", "MRPC.tsv", "\ufeffindex\t#1 ID\t#2 ID\t#1 String\t#2 String", "0\t1\t2\tA\tB",
    ),
    "stsb": (
        "test.tsv", "STS-B.tsv",
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2",
        "0\tnews\tx\t2012\t9\ts\ts\tA , b\tB",
    ),
    "qqp": ("test.tsv", "QQP.tsv", "id\tquestion1\tquestion2", "0\tWhy \" ?\tHow ?"),
    "mnli": (
        "test_mismatched.tsv", "MNLI-mm.tsv",
        "index\tpromptID\tpairID\tsentence1_parse\tsentence1\tsentence2", "0\t1\t2\t( A\tA\tB",
    ),
    "qnli": ("test.tsv", "QNLI.tsv", "index\tquestion\tsentence", "0\tA ?\tB ."),
    "rte": ("test.tsv", "RTE.tsv", "index\tsentence1\tsentence2", "0\tA\tB"),
    "wnli": ("test.tsv", "WNLI.tsv", "index\tsentence1\tsentence2", "0\tA\tB"),
}  # fmt: skip
"""For each task its test file, that of its answers, and the first lines of the former."""


@pytest.mark.parametrize("task", TESTS)
def test_the_answers_to_each_test_set_have_the_form_that_the_benchmark_wants(task, tmp_path):
    test, name, header, line = TESTS[task]
    (tmp_path / test).write_text(
        f"{header}\n{line}\n{line.replace('0', '1', 1)}\n", encoding="utf-8"
    )
    submission = Glue(task=task, folder="").submission()
    labels = TASKS[task].labels
    record = ClassificationTask(labels) if labels else RegressionTask()
    shares = [float(label == labels[-1]) for label in labels]
    said = [{"probabilities": shares, "value": 5.25}, {"probabilities": shares, "value": 2.46}]
    out = io.StringIO()

    text, pair = (*submission.texts, None)[:2]
    columns = Columns(Chosen(text, pair, LABEL), keep=False, task=record, submission=submission)
    layout = Layout("tab", None, header=True)
    with open_table(tmp_path / test, "tsv", layout, Wanted(text, pair)) as table:
        rows = list(read_rows(table, columns, pytest.fail))
    answers = Submitted(out, columns)
    answers.write_window([answers.with_place(row) for row in rows], said)

    expected = [labels[-1]] * 2 if labels else ["5.000", "2.460"]
    assert submission.answers_file_name(f"GLUE/{test}") == name
    assert out.getvalue() == f"index\tprediction\n0\t{expected[0]}\n1\t{expected[1]}\n"
    records = out.getvalue().splitlines(keepends=True)[1:]
    assert all(map(answers.is_for, rows, records))
    assert [len(record.texts(row.example)) for row in rows] == [len(submission.texts)] * 2


def test_the_answers_to_three_test_sets_of_mnli_are_told_apart_by_name():
    submission = Glue(task="mnli", folder="").submission()

    tests = ("test_matched.tsv", "test_mismatched.tsv", "diagnostic.tsv")
    assert [submission.answers_file_name(test) for test in tests] == [
        "MNLI-m.tsv",
        "MNLI-mm.tsv",
        "AX.tsv",
    ]
    with pytest.raises(ConfigError, match=r"'test\.tsv' is called neither 'mismatched', 'matched'"):
        submission.answers_file_name("test.tsv")
