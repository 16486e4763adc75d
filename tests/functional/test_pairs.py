"""Pairs of texts, from the data to the prediction."""

import json
import re
import shlex

import pytest

from transfer_cli.config.locate import conf_dir
from transfer_cli.data import sample

pytestmark = pytest.mark.functional


def test_the_sample_asks_for_one_kind_as_often_as_for_two():
    kinds, asked = sample.questions()
    kind_of = {text: label for rows in asked.values() for text, label in rows}

    for rows in sample.pairs().values():
        assert 2 * sum(is_same for *_, is_same in rows) == len(rows)
        assert all((kind_of[one] == kind_of[other]) == is_same for one, other, is_same in rows)
    assert len(kinds) == 6


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, tmp_path):
    page = (conf_dir().parent / "docs" / "tasks" / "pairs.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    (tmp_path / "pairs.csv").write_text("text,pair\nWhat is Kadru ?,Who is Mavazu ?\n")

    # The others are about files of one's own.
    for words in (each for each in typed if any("runs/" in word for word in each)):
        ended = transfer(*words, *([] if words[0] == "export" else ["device=cpu"]))
        assert ended.code == 0, (words, ended.err)

    assert {words[0] for words in typed} >= {
        "pretrain",
        "finetune",
        "evaluate",
        "predict",
        "export",
    }
    measures = json.loads((tmp_path / "runs" / "pairs" / "results.json").read_text())["measures"]
    assert measures["test"]["accuracy"] > 0.75
