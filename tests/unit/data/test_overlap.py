import logging
import shutil

import numpy as np
import pytest

from transfer_cli.data import drawing
from transfer_cli.data.drawing import say_overlap
from transfer_cli.data.labelled import Example
from transfer_cli.tasks.classification import ClassificationTask
from transfer_cli.tasks.samples import EmbeddedSample
from transfer_cli.tasks.table import Table


def examples(*texts, pair=None):
    return [Example(text, 0, pair) for text in texts]


def said(caplog, **splits):
    caplog.clear()
    with caplog.at_level(logging.INFO):
        say_overlap(splits, "here", ClassificationTask().texts)
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_few_texts_in_two_splits_are_said(caplog):
    [(level, text)] = said(caplog, train=examples(*"abcdef"), test=examples(*"xyzaz"))

    assert (level, text) == (
        "INFO", "here: 1 of the 5 texts of test (20.0 %) are in train, too, such as 'a'"
    )  # fmt: skip


def test_most_texts_of_the_smaller_split_in_the_other_are_warned_of(caplog):
    [(level, text)] = said(caplog, train=examples(*"abc"), test=examples(*"abxxxxxxx"))

    assert level == "WARNING"
    assert text.startswith("here: 2 of the 3 texts of train (66.7 %) are in test, too, such as 'a'")


def test_splits_without_common_texts_are_not_spoken_of(caplog):
    assert not said(caplog, train=examples("a", "b"), validation=examples("c"), test=[])
    assert not said(caplog, train=examples("a", pair="b"), test=examples("a", pair="c"))
    assert not said(caplog, train=examples("a"), test=examples("a", pair="c"))


@pytest.mark.parametrize("way", ["same", "symlink", "copy", "turned round"])
def test_one_table_under_two_names_is_warned_of(tmp_path, caplog, way):
    lines = [f"text {n},{n % 2}" for n in range(40)]
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("\n".join(["text,label", *lines]) + "\n")
    if way == "same":
        test = train
    elif way == "symlink":
        test.symlink_to(train)
    elif way == "copy":
        shutil.copy(train, test)
    else:
        test.write_text("\n".join(["text,label", *reversed(lines)]) + "\n")

    Table(train=str(train), test=str(test)).load(tmp_path, 0)

    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert "40 of the 40 texts of" in record.getMessage()


def test_the_sample_has_no_text_in_two_splits(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        EmbeddedSample("questions").load(tmp_path, 0)

    assert not caplog.records


def test_what_is_found_is_what_numpy_finds():
    generator = np.random.default_rng(0)
    for size in (1, 2, 1000):
        wanted, among = generator.integers(-9, 9, 50), generator.integers(-9, 9, size)

        assert (drawing._found(wanted, among) == np.isin(wanted, among)).all()
