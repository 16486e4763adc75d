"""Equal texts: no drawn split parts them, and what training has seen is known of each split."""

import json
import logging
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer_cli.data.equal_texts import fold_text, nearly_equal, union_keys
from transfer_cli.data.known_texts import TaskText
from transfer_cli.errors import DataError
from transfer_cli.tasks.choice.task import Choices
from transfer_cli.tasks.dialog.task import Dialogs
from transfer_cli.tasks.multilabel import LabelsTable
from transfer_cli.tasks.regression import NumberTable
from transfer_cli.tasks.sources import hold_out, keep_few
from transfer_cli.tasks.span.task import Squad
from transfer_cli.tasks.table import Table
from transfer_cli.tasks.tagging.files import TaggedFiles
from transfer_cli.tasks.text_to_text.task import TextPairsTable

# --- what is equal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (" A  text\n", "a text"),
        ("stra\u00dfe", "STRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("\uff21\u00a0b", "a b"),
        ("\ufb01ne", "fine"),
        (("A", "B "), ("a", "b")),
    ],
)
def test_texts_are_equal_but_for_capitals_white_space_and_form(one, other):
    assert fold_text(one) == fold_text(other)


@given(st.text())
def test_a_folded_text_is_folded(text):
    assert fold_text(fold_text(text)) == fold_text(text)


def test_accents_marks_and_the_order_of_a_pair_tell_texts_apart():
    assert (
        len({fold_text(text) for text in ("cafe", "caf\u00e9", "cafe.", ("a", "b"), ("b", "a"))})
        == 5
    )


def test_what_either_key_has_in_common_is_one():
    keys = union_keys("aabcd", "12233")
    assert keys[0] == keys[1] == keys[2] != keys[3] == keys[4]


# --- drawing -------------------------------------------------------------------------------------

tables = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), min_size=4, max_size=60)


@given(tables, st.floats(0.05, 0.95), st.integers(0, 3))
def test_what_is_held_out_parts_no_group_leaves_every_class_and_is_no_more_than_its_share(
    rows, share, seed
):
    keys, strata = zip(*rows, strict=True)
    try:
        chosen = hold_out(strata, share, seed, "", keys)
    except DataError:
        sizes = Counter(keys).values()
        assert int(share * len(rows)) < max(sizes) or len(set(strata)) > 1 or len(sizes) == 1
        return

    held, kept = ({keys[at] for at in range(len(rows)) if (at in chosen) == is_in}
                  for is_in in (True, False))  # fmt: skip
    assert not held & kept
    assert len(chosen) <= int(share * len(rows))
    assert {strata[at] for at in range(len(rows)) if at not in chosen} == set(strata)


def test_a_share_is_as_exact_as_groups_allow_and_each_class_has_its_part_of_it():
    strata = [label for label in (0, 1) for _ in range(150)]
    pairs, triples = ([at // size for at in range(300)] for size in (2, 3))

    for keys, size in ((pairs, 60), (triples, 60), ([*pairs[:150], *triples[150:]], 60)):
        chosen = hold_out(strata, 0.2, 0, "", keys)
        assert len(chosen) == size
        assert abs(sum(strata[at] for at in chosen) - size / 2) <= 2


@given(tables, st.integers(0, 3), st.data())
def test_few_labels_are_exact_and_nested_and_what_equals_them_is_no_part_of_the_rest(
    rows, seed, data
):
    keys, strata = zip(*rows, strict=True)
    fewest = len(set(strata))
    small = data.draw(st.integers(fewest, len(rows)))
    large = data.draw(st.integers(small, len(rows)))

    (few, cut), (more, _) = (keep_few(strata, count, seed, "", keys) for count in (small, large))

    assert (len(few), len(more)) == (small, large)
    assert few <= more
    assert {strata[at] for at in few} == {*strata}
    rest = set(range(len(rows))) - few - cut
    assert not {keys[at] for at in rest} & {keys[at] for at in few}
    assert {keys[at] for at in cut} <= {keys[at] for at in few}


# --- every kind of task --------------------------------------------------------------------------


def csv(rows, header="text,label"):
    return "a.csv", "\n".join([header, *rows])


def lines(records):
    return "a.jsonl", "\n".join(map(json.dumps, records))


def spelt(number):
    """Return one of 20 texts, each in two spellings."""
    return f"{'Text' if number % 2 else 'text'} {number // 2 % 20}"


WORDS = [{"tokens": spelt(n).split(), "tags": ["O", "B-X"]} for n in range(80)]
SPANS = [
    {"context": f"{spelt(n)} by {'ABC'[n % 3]}", "question": f"Who {n} ?",
     "answers": {"text": ["by"], "answer_start": [len(spelt(n)) + 1]}}
    for n in range(80)
]  # fmt: skip
CHOICES = [{"context": spelt(n), "choices": [f"a {n}", "b"], "label": n % 2} for n in range(80)]
TURNS = [
    {"persona": [spelt(n)], "history": ["Hi" if n % 3 else "hi", *["more"] * (n % 4)],
     "candidates": [f"no {n}", f"yes {n}"]}
    for n in range(80)
]  # fmt: skip

KINDS = {
    "texts": (Table, csv(f"{spelt(n)},{'ab'[n % 2]}" for n in range(80))),
    "pairs": (
        Table, csv((f"{spelt(n)},B {n % 3},{'ab'[n % 2]}" for n in range(80)), "text,pair,label"),
    ),
    "numbers": (NumberTable, csv(f"{spelt(n)},{n / 7:.3f}" for n in range(80))),
    "labels": (LabelsTable, csv(f"{spelt(n)},{'x|y' if n % 3 else 'y'}" for n in range(80))),
    "text_pairs": (TextPairsTable, csv((f"{spelt(n)},to {n}" for n in range(80)), "source,target")),
    "tags": (TaggedFiles, lines(WORDS)),
    "spans": (Squad, lines(SPANS)),
    "choices": (Choices, lines(CHOICES)),
    "dialogs": (Dialogs, lines(TURNS)),
}  # fmt: skip


def equal_in(example):
    """Return what the examples of `KINDS` have in common, folded."""
    if hasattr(example, "persona"):
        return fold_text((*example.persona, example.history[0]))
    if hasattr(example, "context"):
        return fold_text(example.context)
    return fold_text(
        (getattr(example, "source", None) or example.text, getattr(example, "pair", "") or "")
    )


@pytest.fixture
def source(tmp_path):
    def made(kind, **settings):
        cls, (name, content) = KINDS[kind]
        path = tmp_path / name
        path.write_text(f"{content}\n")
        pair = {"pair": "pair"} if kind == "pairs" else {}
        return cls(train=str(path), **pair, **{"validation_share": 0.2, **settings})

    return made


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_no_drawn_split_parts_equal_examples_whatever_they_are(source, kind, seed):
    data = source(kind).load(Path(), seed)

    train, held = ({equal_in(e) for e in data.splits[name]} for name in ("train", "validation"))
    assert not train & held
    assert 8 <= len(data.splits["validation"]) <= 20


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_has_no_example_that_equals_one_with_a_label(source, kind):
    data = source(kind, labelled=15).load(Path(), 0)

    assert len(data.splits["train"]) == 15
    if kind not in ("spans", "dialogs"):  # whose questions and turns are drawn one by one
        assert not {equal_in(e) for e in data.splits["train"]} & {equal_in(e) for e in data.rest}
    assert data.rest


def test_the_texts_of_a_task_are_parted_as_the_task_is(source):
    read = TaskText(task=source("texts")).splits(Path(), 2)
    splits = source("texts").load(Path(), 2).splits

    assert list(read["validation"].lines()) == [e.text for e in splits["validation"]]


# --- what becomes of them ------------------------------------------------------------------------

DOUBLED = [
    "one,a",
    "One,b",
    "ONE ,a",
    "two,b",
    "two,b",
    *(f"text {n},{'ab'[n % 2]}" for n in range(20)),
]


@pytest.fixture
def doubled(tmp_path):
    def made(rows=DOUBLED, **settings):
        path = tmp_path / "a.csv"
        path.write_text("\n".join(["text,label", *rows]) + "\n")
        return Table(train=str(path), **{"validation_share": 0.2, **settings}).load(Path(), 0)

    return made


@pytest.mark.parametrize(
    ("conflicts", "ones"), [("majority", [("one", 0)]), ("drop", [])],
)  # fmt: skip
def test_drop_keeps_the_first_of_each_text_with_the_label_that_wins(doubled, conflicts, ones):
    data = doubled(duplicates="drop", conflicts=conflicts)

    every = sorted((e.text, e.label) for part in data.splits.values() for e in part)
    assert [e for e in every if not e[0].startswith("text")] == [*ones, ("two", 1)]
    left_out = data.part_of["train"].left_out[0]
    assert (data.part_of["train"].size, left_out.split()[0]) == (25, str(25 - len(every)))


def test_with_drop_labels_that_disagree_are_refused_by_the_key_that_decides(doubled):
    with pytest.raises(DataError, match=r"'one'.* 3 times, .*data\.conflicts"):
        doubled(duplicates="drop")


def test_keep_draws_as_before_there_were_groups(doubled):
    data = doubled(duplicates="keep")

    labels = [0, 1, 0, 1, 1, *[n % 2 for n in range(20)]]
    rows = [e.line - 2 for e in data.splits["validation"]]
    assert set(rows) == hold_out(labels, 0.2, 0, "")


@pytest.mark.parametrize("rows", [["same,a", "Same,b"] * 20, ["same,a"] * 30 + ["other,b"] * 30])
def test_a_group_that_no_split_can_take_is_refused(doubled, rows):
    with pytest.raises(DataError, match="different texts"):
        doubled(rows)


@pytest.mark.parametrize(
    ("duplicates", "more"), [("together", {}), ("keep", {}), ("drop", {"conflicts": "majority"})]
)
def test_doubled_rows_are_said_with_what_became_of_them(doubled, caplog, duplicates, more):
    with caplog.at_level(logging.INFO):
        doubled(duplicates=duplicates, **more)

    [said] = [r.getMessage() for r in caplog.records if "are equal" in r.getMessage()]
    assert "5 of the 25 rows" in said
    assert "(2 different texts, 1 of them with different labels)" in said
    assert f"data.duplicates={duplicates}" in said


def test_texts_without_doubles_are_not_spoken_of(doubled, caplog):
    with caplog.at_level(logging.INFO):
        doubled(DOUBLED[5:])

    assert not caplog.records


# --- given splits --------------------------------------------------------------------------------


def test_of_given_splits_it_is_known_what_training_has_seen(tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("\n".join(["text,label", *DOUBLED]) + "\n")
    test.write_text("text,label\nnew,a\n TWO,b\nText 3,b\nnew,b\n")

    assert Table(train=str(train), test=str(test)).load(Path(), 0).seen == {"test": [1, 2]}


# --- nearly equal --------------------------------------------------------------------------------


def numbered(count, start=0):
    return [f"word{number}" for number in range(start, start + count)]


def test_texts_are_nearly_equal_above_nine_tenths_of_their_pairs_of_words():
    long, other = " ".join(numbered(60)), " ".join(numbered(60, 100))
    changed = {at: " ".join([*numbered(at), "new", *numbered(59 - at, at + 1)]) for at in (0, 30)}

    near = nearly_equal([long, other, changed[0], f"{long}!", changed[30]])

    assert [second for _, second in near] == [2, 3, 4]
    assert nearly_equal([long, f"{' '.join(numbered(50))} {' '.join(numbered(10, 200))}"]) == []
    assert nearly_equal(["", "!", "a", "b", "a b", "b a"]) == []


def test_nearly_equal_texts_are_counted_and_one_is_shown(doubled, caplog):
    long = " ".join(numbered(30))
    with caplog.at_level(logging.INFO):
        doubled([*DOUBLED[5:], f"{long},a", f"{long} and,a"])

    [said] = [record.getMessage() for record in caplog.records]
    assert "1 of 22 different texts" in said
    assert long[:50] in said
