"""Answers cut from texts: windows, the best answer of several, SQuAD's rules, its files."""

import collections
import json
import random
import re
import string

import numpy as np
import pytest

from transfer_cli.data.tokenizer_recipes import BytePairs, WordPiece
from transfer_cli.errors import DataError
from transfer_cli.tasks import scoring
from transfer_cli.tasks.base import rows_by_example
from transfer_cli.tasks.span.task import NO_ANSWER, SpanExample, SpanTask, Squad
from transfer_cli.tasks.span.windows import (
    FIRST,
    NULL,
    OWN_FIRST,
    OWN_PAST,
    PAST,
    RowLayout,
    owned_pieces,
    window_starts,
)

TEXT = "The Rhine , or Rhein in German , rises in the Alps and ends in the North Sea ."


@pytest.fixture(scope="module", params=["wordpiece", "bytes"])
def tokenizer(request):
    recipe = {"wordpiece": WordPiece(size=90), "bytes": BytePairs(size=300)}[request.param]
    return recipe.make(lambda: iter([TEXT] * 3))


# ---------------------------------------------------------------------------------- scores


def official(golds, prediction):
    """Return exact match and F1 as evaluate-v2.0.py defines them, step by step."""

    def normalize_answer(s):
        s = s.lower()
        s = "".join(ch for ch in s if ch not in set(string.punctuation))
        s = re.compile(r"\b(a|an|the)\b", re.UNICODE).sub(" ", s)
        return " ".join(s.split())

    def get_tokens(s):
        return normalize_answer(s).split() if s else []

    def compute_f1(a_gold, a_pred):
        gold_toks, pred_toks = get_tokens(a_gold), get_tokens(a_pred)
        num_same = sum((collections.Counter(gold_toks) & collections.Counter(pred_toks)).values())
        if len(gold_toks) == 0 or len(pred_toks) == 0:
            return int(gold_toks == pred_toks)
        if num_same == 0:
            return 0
        precision, recall = num_same / len(pred_toks), num_same / len(gold_toks)
        return 2 * precision * recall / (precision + recall)

    golds = [a for a in golds if normalize_answer(a)] or [""]
    exact = max(int(normalize_answer(a) == normalize_answer(prediction)) for a in golds)
    return exact, max(compute_f1(a, prediction) for a in golds)


def test_random_answers_are_scored_as_the_official_script_does():
    draw = random.Random(0)
    words = [
        "the", "a", "an", "The", "A.", "the-a", "Rome", "rome!", "«Rome»", "U.S.", "of", "-", "é",
        "\t", "an,", "",
    ]  # fmt: skip

    def text():
        return draw.choice([" ", "", "  "]).join(draw.choices(words, k=draw.randrange(5)))

    for _ in range(1000):
        golds, said = [text() for _ in range(draw.randrange(4))], text()

        scores = [
            scoring.best_score(score, golds, said)
            for score in (scoring.exact_match, scoring.word_f1)
        ]

        assert scores == pytest.approx(official(golds, said))


def test_the_threshold_is_the_best_of_all_that_could_be():
    generator = np.random.default_rng(0)
    for _ in range(300):
        margins = generator.integers(-4, 5, 12).astype(float)
        answered, unanswered = generator.integers(0, 3, (2, 12)) / 2

        def total(threshold, margins=margins, answered=answered, unanswered=unanswered):
            return np.where(margins > threshold, unanswered, answered).sum()

        best = scoring.best_null_threshold(margins, answered, unanswered)

        assert total(best) == max(total(candidate) for candidate in np.arange(-6, 6, 0.5))


# --------------------------------------------------------------------------------- windows


def test_a_piece_belongs_to_the_window_with_most_context():
    draw = random.Random(0)
    for _ in range(200):
        pieces, size = draw.randrange(1, 60), draw.randrange(2, 20)
        starts = window_starts(pieces, size, draw.randrange(1, size))
        owned = owned_pieces(pieces, size, starts)

        assert [piece for first, past in owned for piece in range(first, past)] == [*range(pieces)]
        for piece in range(pieces):
            scores = []
            for start in starts:
                end = min(start + size, pieces) - 1
                fits = start <= piece <= end
                context = min(piece - start, end - piece) + 0.01 * (end - start + 1)
                scores.append(context if fits else -1)
            first, past = owned[scores.index(max(scores))]
            assert first <= piece < past


@pytest.mark.parametrize(
    ("length", "question", "step"), [(384, 64, 128), (512, 64, 128), (60, 10, 20)]
)
def test_rows_of_384_tokens_are_cut_as_berts(tokenizer, length, question, step):
    layout = RowLayout.for_length(tokenizer, "bidirectional", length)

    assert (layout.question, layout.step, layout.room) == (question, step, length - 3)


def encoded(tokenizer, examples, length=26, direction="bidirectional", **options):
    task = SpanTask(unanswerable=True, **options)
    return task, task.encode(examples, tokenizer, length, direction)


def oracle(data, margin=10.0):
    """Return what a model says that knows each row's target."""
    batch = data.batch(np.arange(len(data)))
    rows = {}
    for row, (span, window) in enumerate(
        zip(batch["span"].tolist(), batch["window"].tolist(), strict=True)
    ):
        is_own = span[0] != window[NULL] and window[OWN_FIRST] <= span[0] < window[OWN_PAST]
        best = span if is_own else [window[OWN_FIRST]] * 2
        score = 2 * margin if is_own else 0.0
        null = 2 * margin if span[0] == window[NULL] else 0.0
        rows[row] = {"start": [best[0]], "end": [best[1]], "score": [score], "null": null}
    return rows_by_example(data, rows)


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("answer", ["Rhine", "the Alps", "North Sea", "German , rises", TEXT[:9]])
def test_an_oracle_is_right_whatever_the_windows_are(tokenizer, direction, answer):
    example = SpanExample("  Where ?", TEXT, (answer,), TEXT.index(answer))

    for length in (20, 24, 32, 90):
        task, data = encoded(tokenizer, [example], length, direction, question_length=2, step=3)
        apart = oracle(data)

        prediction = task.answer(data, 0, apart[0])
        assert (prediction["answer"], prediction["start"]) == (answer, example.start)
        assert TEXT[prediction["start"] : prediction["end"]] == answer
        assert task.scores(data, apart) == {"exact_match": 100, "f1": 100}


def test_targets_are_of_whole_answers_and_else_the_special_token(tokenizer):
    example = SpanExample("Where ?", TEXT, ("North Sea",), TEXT.index("North Sea"))
    for direction in ("causal", "bidirectional"):
        _, data = encoded(tokenizer, [example], 16, direction, question_length=1, step=4)
        for row in range(len(data)):
            batch = data.batch(np.array([row]))
            tokens, window = batch["tokens"][0].tolist(), batch["window"][0].tolist()
            first, last = batch["span"][0].tolist()
            text = tokens[window[FIRST] : window[PAST]]
            assert tokens[window[NULL]] == tokenizer.cls
            assert window[NULL] == (0 if direction == "bidirectional" else len(tokens) - 1)
            assert batch["mask"].all()
            if first == window[NULL]:
                assert last == first
                assert "North Sea" not in tokenizer.decode(text)
            else:
                assert tokenizer.decode(tokens[first : last + 1]).strip() == "North Sea"
        targets = data.batch(np.arange(len(data)))["span"]
        assert 0 < sum(first != last for first, last in targets.tolist()) < len(data)


def test_windows_without_the_answer_can_be_left_out(tokenizer):
    start = TEXT.index("North Sea")
    kept = SpanExample("Where ?", TEXT, ("North Sea",), start)
    dropped = SpanExample("Where ?", TEXT, ("North Sea",), start, answer_windows_only=True)
    none = SpanExample("Where ?", TEXT, ())

    _, data = encoded(tokenizer, [kept, dropped, none], 16, question_length=1, step=4)

    rows = np.bincount(data.example_of)
    batch = data.batch(np.flatnonzero(data.example_of == 1))
    assert rows[0] == rows[2] > rows[1] > 0
    assert (batch["span"] != batch["window"][:, [NULL]]).all()


def test_an_answer_inside_a_piece_is_counted(tokenizer, caplog):
    example = SpanExample("Where ?", TEXT, ("hin",), TEXT.index("hin"))

    with caplog.at_level("INFO"):
        _, data = encoded(tokenizer, [example, example], 90, question_length=2)

    if (data.offsets[0][:, 0] == example.start).any():
        assert "inside a token" not in caplog.text
    else:
        assert "2 of 2 answers begin or end inside a token" in caplog.text


def test_a_text_without_pieces_has_no_answer(tokenizer):
    task, data = encoded(tokenizer, [SpanExample("", " ", ("x",), None)])
    rows = {0: {"start": [0], "end": [0], "score": [-np.inf], "null": -np.inf}}

    assert task.answer(data, 0, rows)["answer"] == ""
    assert task.answer(data, 0, rows)["probability"] == 1
    assert task.scores(data, {0: rows}) == {"exact_match": 0, "f1": 0}


# --------------------------------------------------------------------------------- answers


def test_scores_of_windows_are_merged_and_no_answer_has_the_lowest(tokenizer):
    example = SpanExample("Where ?", TEXT, ("Rhine",), 4)
    task, data = encoded(tokenizer, [example], 90, question_length=2)
    batch = data.batch(np.array([0]))
    at = int(batch["window"][0, FIRST])
    rows = {0: {"start": [at, at + 1], "end": [at, at + 1], "score": [1.0, 0.0], "null": 3.0}}

    prediction = task.answer(data, 0, rows)

    assert prediction["n_best"][0]["answer"] == prediction["answer"] == ""
    assert prediction["start"] is None
    assert sum(candidate["probability"] for candidate in prediction["n_best"]) == pytest.approx(1)
    assert len(prediction["n_best"]) == 2  # as many as the window has
    rows[0]["null"] = 1.0
    assert task.answer(data, 0, rows)["answer"] == TEXT[: int(data.offsets[0][0, 1])]
    assert task.answer(data, 0, rows)["probability"] == pytest.approx(0.5)


def test_every_question_counts_and_the_two_parts_are_told(tokenizer):
    examples = [
        SpanExample("Where ?", TEXT, ("Rhine", "The Rhine"), 4),
        SpanExample("Who ?", TEXT, ()),
        SpanExample("What ?", TEXT, ("North Sea",), None),
    ]
    task, data = encoded(tokenizer, examples, 90, question_length=2)
    apart = oracle(data)

    scores = task.scores(data, apart)

    assert scores["exact_match"] == pytest.approx(200 / 3)
    assert scores["exact_match/HasAns"] == scores["f1/HasAns"] == 50
    assert scores["exact_match/NoAns"] == scores["f1/NoAns"] == 100
    assert task.result(data, 1, apart[1]).predicted == NO_ANSWER
    assert (task.result(data, 0, apart[0]).score, task.result(data, 2, apart[2]).score) == (1, 0)


def test_the_fitted_threshold_is_the_best_one(tokenizer):
    examples = [SpanExample("Q ?", TEXT, ("Rhine",), 4), SpanExample("Q ?", TEXT, ())]
    task, data = encoded(tokenizer, examples, 90, question_length=2)
    apart = oracle(data)
    for rows in apart.values():
        for row in rows.values():
            row["null"] += 25.0

    threshold = task.fit(data, apart)["null_threshold"]

    assert 5 < threshold < 45
    for rows in apart.values():
        for row in rows.values():
            row["null"] -= threshold
    assert task.scores(data, apart)["exact_match"] == 100


# ----------------------------------------------------------------------------------- files

QUESTION = {"id": "1", "question": "Which river ?", "context": TEXT,
            "answers": [{"text": "Rhine", "answer_start": 4}]}  # fmt: skip


def squad(*questions, **paragraph):
    """Return a file of SQuAD's form."""
    qas = [{k: v for k, v in question.items() if k != "context"} for question in questions]
    return {"data": [{"title": "T", "paragraphs": [{"context": TEXT, "qas": qas, **paragraph}]}]}


def load(path, content, **options):
    """Return the data in a file."""
    lines = content if isinstance(content, list) else [content]
    is_raw = isinstance(content, bytes)
    path.write_bytes(content if is_raw else "\n".join(map(json.dumps, lines)).encode())
    return Squad(train=str(path), validation=str(path), **options).load(path.parent, 0)


def test_all_forms_of_a_file_hold_the_same_questions(tmp_path):
    columns = {**QUESTION, "answers": {"text": ["Rhine"], "answer_start": [4]}}
    none = {**QUESTION, "id": "2", "answers": []}
    expected = (
        SpanExample("Which river ?", TEXT, ("Rhine",), 4),
        SpanExample("Which river ?", TEXT, ()),
    )
    impossible = {**none, "is_impossible": True, "plausible_answers": QUESTION["answers"]}

    for name, content in {
        "a.json": squad(QUESTION, impossible),
        "b.jsonl": [QUESTION, none],
        "c.json": [columns, {**none, "answers": {"text": [], "answer_start": []}}],
    }.items():
        data = load(tmp_path / name, content)
        assert data.splits["train"] == expected
        assert data.task["unanswerable"] is True


def test_parquet_is_read_as_the_hub_has_it(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    row = {**QUESTION, "answers": {"text": ["Rhine"], "answer_start": [4]}}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([row]), path)

    (example,) = Squad(train=str(path), validation=str(path)).load(tmp_path, 0).splits["train"]

    assert example == SpanExample("Which river ?", TEXT, ("Rhine",), 4)


def test_one_line_of_json_is_json_lines(tmp_path):
    assert len(load(tmp_path / "a.json", [QUESTION]).splits["train"]) == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", [{**QUESTION, "answers": [{"text": "Rhein", "answer_start": 4}]}],
         "a.jsonl, line 1: its answer does not stand in the text at answer_start, and so it is "
         "with 1 of 1"),
        ("a.jsonl", [{**QUESTION, "answers": [{"text": "Rhine", "answer_start": -5}]}],
         "does not stand in the text"),
        ("a.jsonl", [QUESTION, QUESTION], "line 2: the id '1' is also that of line 1"),
        ("a.json", squad(QUESTION, QUESTION),
         r"data\[0\].paragraphs\[0\].qas\[1\]: the id '1' is also that of data\[0\]"),
        ("a.jsonl", [{**QUESTION, "answers": "Rhine"}], "'answers' is a string, expected a list"),
        ("a.jsonl", [{**QUESTION, "answers": [{"text": "Rhine"}]}], "no 'answer_start'"),
        ("a.jsonl", [{**QUESTION, "answers": [{"text": "Rhine", "answer_start": True}]}],
         "'answer_start' is true or false, expected a whole number"),
        ("a.jsonl", [{k: v for k, v in QUESTION.items() if k != "answers"}], "'answers' is null"),
        ("a.jsonl", [{**QUESTION, "answers": {"text": ["a"], "answer_start": []}}],
         "has 1 texts and 0 times"),
        ("a.jsonl", [{**QUESTION, "question": 3}], "'question' is a number, expected text"),
        ("a.json", {"data": [{"title": "T"}]}, r"data\[0\]: no 'paragraphs'; there is 'title'"),
        ("a.json", {"version": "1.1"}, "a.json: no 'data'"),
        ("a.json", squad(QUESTION, context=None), "'context' is null, expected text"),
        ("a.json", {"data": []}, "a.json has no questions"),
        ("a.json", [[1]], "a list, expected an object"),
        ("a.csv", [QUESTION], "expected a file of SQuAD's form"),
        ("a.jsonl", [{**QUESTION, "answers": []}], "no question has an answer"),
        ("a.json", b'{"data": [\n\n}', r"a\.json, line 3: not JSON"),
        ("a.json", b'{"data":\n "\xff"}', r"a\.json, line 2: not UTF-8"),
        ("a.json", b"", "is empty"),
        ("a.json", b'{"data": [], "data": []}', "'data' is there twice"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, content, said):
    with pytest.raises(DataError, match=said):
        load(tmp_path / name, content)


def test_few_misplaced_answers_are_left_out_of_training_alone(tmp_path, caplog):
    wrong = {**QUESTION, "id": "x", "answers": [{"text": "Rhine", "answer_start": 5}]}
    many = [{**QUESTION, "id": n} for n in range(199)]

    data = load(tmp_path / "a.jsonl", [*many, wrong])

    assert len(data.splits["train"]) == 199
    assert len(data.splits["validation"]) == 200
    assert "1 of 200 questions are left out" in caplog.text
