"""Questions with choices: files of every format, what is cut, answers, the loss of a choice."""

import csv
import json

import numpy as np
import pytest
import torch

from tests import tiny
from transfer_cli.data.records import Record
from transfer_cli.data.tokenizer_recipes import WordPiece
from transfer_cli.errors import DataError
from transfer_cli.objectives.base import Encoding
from transfer_cli.tasks.choice.task import (
    ChoiceExample,
    Choices,
    ChoiceTask,
    MultipleChoice,
    hits_and_ranks,
    read_examples,
)

TASK = ChoiceTask()

RACE = {
    "article": "Tom ran home.",
    "questions": ["Tom was _ .", "Who ran?"],
    "options": [["late", "early"], ["Tom", "Ann", "Bob", "Eve"]],
    "answers": ["B", "A"],
    "id": "high1.txt",
}


def rows(path, *rows):
    with path.open("w", newline="") as out:
        csv.writer(out).writerows(rows)
    return path


def lines(path, *records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


SWAG = ["video-id", "sent1", "sent2", "ending0", "ending1", "ending2", "ending3", "label"]
STORY = ["InputStoryid", *(f"InputSentence{n}" for n in range(1, 5)),
         "RandomFifthSentenceQuiz1", "RandomFifthSentenceQuiz2", "AnswerRightEnding"]  # fmt: skip

FILES = {
    "jsonl": (
        lambda at: lines(at / "a.jsonl", {"context": "C", "choices": ["a", "b", "c"], "label": 2}),
        [ChoiceExample("C", ["a", "b", "c"], "", 2)],
    ),
    "swag": (
        lambda at: rows(at / "a.csv", SWAG, ["7", 'Says "hi", "ho"', "She", *"wxyz", "3"]),
        [ChoiceExample('Says "hi", "ho"', ["w", "x", "y", "z"], "She", 3)],
    ),
    "copa": (
        lambda at: lines(
            at / "a.jsonl",
            {"premise": "P", "choice1": "a", "choice2": "b", "question": "cause", "label": 0},
            {"premise": "P", "choice1": "a", "choice2": "b", "question": "effect", "label": 1},
            {"premise": "P", "choice1": "a", "choice2": "b", "question": "Why?", "label": 1},
        ),
        [ChoiceExample("P", ["a", "b"], word, n)
         for word, n in (("because", 0), ("so", 1), ("Why?", 1))],
    ),
    "storycloze": (
        lambda at: rows(at / "a.csv", STORY, ["i", "A.", "B.", "C.", "D.", "x", "y", "1"]),
        [ChoiceExample("A. B. C. D.", ["x", "y"], "", 0)],
    ),
    "race": (
        lambda at: lines(at / "1.txt", RACE),
        [ChoiceExample("Tom ran home.", ["Tom was late .", "Tom was early ."], "", 1),
         ChoiceExample("Tom ran home.", ["Tom", "Ann", "Bob", "Eve"], "Who ran?", 0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_questions_of_each_format_are_read_and_the_format_is_recognised(kind, tmp_path):
    make, expected = FILES[kind]
    path = make(tmp_path)

    assert read_examples(path, kind) == expected
    assert read_examples(path, "auto") == expected


def test_a_folder_of_race_is_read_in_the_order_of_its_names(tmp_path):
    (tmp_path / "high").mkdir()
    for name in ("2.txt", "10.txt"):
        lines(tmp_path / "high" / name, {**RACE, "article": name})

    examples = read_examples(tmp_path, "auto")

    assert [example.context for example in examples] == ["10.txt", "10.txt", "2.txt", "2.txt"]


def test_a_text_beside_tables_makes_no_folder_of_race_and_a_question_may_be_null(tmp_path):
    rows = lines(tmp_path / "a.jsonl", {**GOOD, "question": None}, GOOD)
    lines(tmp_path / "README.txt", {})

    examples = Choices(train=str(tmp_path)).examples({"train": [rows]}).splits["train"]

    assert Choices(train=str(tmp_path)).paths == {"train": [rows]}
    assert examples == [ChoiceExample("C", ["a", "b"], "", 1)] * 2


def test_a_folder_of_parquet_files_is_one_table(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {"context": "C", "choices": ["a", "b"], "label": 1}
    for name in ("0", "1"):
        parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / f"{name}.parquet")

    assert read_examples(tmp_path, "auto") == 2 * [ChoiceExample("C", ["a", "b"], "", 1)]


GOOD = {"context": "C", "choices": ["a", "b"], "label": 1}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({**GOOD, "label": 2}, "line 2: 'label' is 2, expected a number from 0 to 1, since there"),
        ({**GOOD, "label": -1}, "line 2: 'label' is -1, expected"),
        ({**GOOD, "label": True}, "line 2: 'label' is True, expected"),
        ({**GOOD, "label": "b"}, "line 2: 'label' is 'b', expected"),
        ({"context": "C", "choices": ["a", "b"]}, "line 2: 'label' is missing, expected"),
        ({**GOOD, "choices": ["a"]}, "line 2: 'choices' has 1, expected at least 2"),
        ({**GOOD, "choices": "ab"}, "line 2: 'choices' is no list of texts"),
        ({**GOOD, "choices": ["a", 7]}, "line 2: 'choices' is a number, expected text"),
        (
            {"contxt": "C", "choices": ["a", "b"]},
            "line 2: .* 'contxt', .*swag: sent1, sent2, ending0.* 'context'",
        ),
        ({**RACE, "answers": ["B", "E"]}, "line 2: the answer to question 2 is 'E', expected one"),
        ({**RACE, "answers": ["B"]}, "line 2: there are not as many options and answers"),
    ],
)
def test_a_question_that_is_none_is_refused_with_file_and_line(bad, message, tmp_path):
    path = lines(tmp_path / "a.jsonl", GOOD, bad)

    with pytest.raises(DataError, match=f"a.jsonl, {message}"):
        read_examples(path, "auto")


def test_stories_count_their_endings_from_one(tmp_path):
    path = rows(tmp_path / "a.csv", STORY, ["i", "A.", "B.", "C.", "D.", "x", "y", "0"])

    with pytest.raises(DataError, match="'AnswerRightEnding' is 0, expected a number from 1 to 2"):
        read_examples(path, "auto")


# --- rows of tokens ----------------------------------------------------------------------------


WORDS = "the old bridge is red blue over a river and new"
TOKENIZER = WordPiece(size=80).make(lambda: iter([WORDS] * 3))
LONG = ChoiceExample("the old bridge is over a river", ["red", "the new blue"], "and", 1)


@pytest.mark.parametrize(
    ("length", "contexts", "endings"),
    [
        (16, ["the old bridge is over a river"] * 2, ["and red", "and the new blue"]),
        (10, ["the old bridge is over", "the old bridge"], ["and red", "and the new blue"]),
        (6, ["the", ""], ["and red", "and the new"]),
    ],
)
def test_the_context_is_cut_first(length, contexts, endings):
    batch = TASK.encode([LONG], TOKENIZER, length, "bidirectional").batch(np.array([0]))

    texts = [TOKENIZER.decode(row[mask].tolist())
             for row, mask in zip(batch["tokens"][0], batch["mask"][0], strict=True)]  # fmt: skip
    layout = "[CLS] {} [SEP] {} [SEP]"
    assert [text.split() for text in texts] == [
        layout.format(*pair).split() for pair in zip(contexts, endings, strict=True)
    ]


def test_examples_with_other_numbers_of_choices_share_a_batch():
    more = ChoiceExample("a bridge", ["red", "blue", "new", "old"], label=3)
    data = TASK.encode([LONG, more], TOKENIZER, 10, "causal")

    batch = data.batch(np.array([1, 0]))

    assert batch["tokens"].shape == batch["segment"].shape == (2, 4, 10)
    assert batch["mask"].any(-1).tolist() == [[True] * 4, [True, True, False, False]]
    assert batch["label"].tolist() == [3, 1]
    assert batch["index"].tolist() == [1, 0]
    assert (batch["tokens"][~batch["mask"]] == TOKENIZER.pad).all()
    assert data.lengths.tolist() == [10, 5]
    assert data.num_cut == 1


# --- answers -----------------------------------------------------------------------------------


def test_an_answer_is_a_choice_with_the_shares_of_all():
    answer = {"choices": ["a", "b"], "probabilities": [0.25, 0.75]}

    assert TASK.written(answer) == {
        "label": 1, "answer": "b", "probability": 0.75, "probabilities": [0.25, 0.75],
    }  # fmt: skip
    assert TASK.cells(answer) == [1, "b", 0.75, "[0.25, 0.75]"]


def test_several_runs_answer_with_their_mean():
    one, two = ({"choices": ["a", "b"], "probabilities": p} for p in ([0.9, 0.1], [0.2, 0.8]))

    answer = TASK.combine([(TASK, one), (TASK, two)])

    assert answer["probabilities"] == pytest.approx([0.55, 0.45])
    assert answer["choices"] == ["a", "b"]


def test_questions_of_any_row_format_can_be_asked_without_an_answer():
    record = Record(3, {"sent1": "He", "sent2": "She", **{f"ending{n}": str(n) for n in range(4)}})

    assert TASK.text_column(list(record.fields), "x") == "sent1"
    assert TASK.read(record, "sent1", None, "x") == ChoiceExample("He", ["0", "1", "2", "3"], "She")
    with pytest.raises(DataError, match="x: the columns 'text' are those of no format"):
        TASK.text_column(["text"], "x")


TWO = ChoiceExample("the old bridge", ["red", "blue over a river"], "is", 1)
FOUR = ChoiceExample("a river", ["new", "old", "red and blue", "is over"], label=2)


@pytest.fixture(params=[("cls_first", ()), ("max", (5,))], ids=str)
def asked(request):
    """Return an objective with a random model, and how to ask it for the logits of examples."""
    pooling, hidden = request.param
    objective = MultipleChoice(pooling=pooling, hidden=hidden)
    model = tiny.at_work(objective, TASK, TOKENIZER, direction="bidirectional", segments=2)

    def logits(*examples):
        return objective.outputs(model, *batched(model, *examples))

    return objective, model, logits


def batched(model, *examples):
    data = TASK.encode(examples, TOKENIZER, 32, "bidirectional")
    batch = data.batch(np.arange(len(examples)))
    return batch, Encoding(model, batch)


def with_choices(example, *choices):
    return ChoiceExample(example.context, [example.choices[n] for n in choices], example.question)


def test_permuted_choices_have_permuted_logits(asked):
    _, _, logits = asked

    original, permuted = logits(FOUR), logits(with_choices(FOUR, 3, 1, 0, 2))

    torch.testing.assert_close(permuted, original[:, [3, 1, 0, 2]], rtol=1e-6, atol=1e-6)


def test_a_choice_that_is_there_twice_splits_its_probability(asked):
    _, _, logits = asked

    once = logits(TWO).softmax(1)[0].tolist()
    first, second, again = logits(with_choices(TWO, 0, 1, 1)).softmax(1)[0].tolist()

    assert second == pytest.approx(again, rel=1e-5)
    assert first / second == pytest.approx(once[0] / once[1], rel=1e-4)


def test_examples_of_two_and_four_choices_are_judged_as_each_alone(asked):
    objective, model, logits = asked

    together = logits(TWO, FOUR)

    assert together[0, 2:].tolist() == [-torch.inf] * 2
    torch.testing.assert_close(together[:1, :2], logits(TWO), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(together[1:], logits(FOUR), rtol=1e-5, atol=1e-5)
    whole = objective.loss_sums(model, *batched(model, TWO, FOUR))["loss"]
    parts = [
        objective.loss_sums(model, *batched(model, example))["loss"] for example in (TWO, FOUR)
    ]
    torch.testing.assert_close(whole, sum(parts), rtol=1e-5, atol=1e-5)


def test_a_missing_choice_gets_no_gradient(asked):
    objective, model, _ = asked
    batch, encoded = batched(model, TWO, FOUR)

    loss = objective.loss_sums(model, batch, encoded)["loss"]
    (gradient,) = torch.autograd.grad(loss, encoded.top)

    is_there = batch["mask"].any(-1)
    assert torch.equal(gradient.flatten(1).any(1).view_as(is_there), is_there)


def test_a_missing_choice_is_not_among_the_statistics_of_a_batch_norm():
    objective = MultipleChoice(pooling="mean", batch_norm=True)
    model = tiny.at_work(objective, TASK, TOKENIZER, direction="bidirectional").train()

    objective.outputs(model, *batched(model, TWO, FOUR))

    batch, encoded = batched(model, TWO, FOUR)
    real = batch["mask"].any(-1).flatten()
    expected = 0.1 * encoded.pooled("mean")[real].mean(0)
    torch.testing.assert_close(model.heads["class"].norm.running_mean, expected)


@pytest.mark.parametrize(
    ("logits", "hit", "rank"),
    [
        ([0, 0, 0, 0], 0.25, 2.5),
        ([3, 1, 2, 0], 0, 3),
        ([1, 3, 2, -torch.inf], 1, 1),
        ([2, 2, 1, -torch.inf], 0.5, 1.5),
    ],
)
def test_equal_choices_count_as_if_their_order_were_drawn(logits, hit, rank):
    hits, ranks = hits_and_ranks(torch.tensor([logits]).float(), torch.tensor([1]))

    assert (float(hits), float(ranks)) == (hit, rank)
