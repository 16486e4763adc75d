"""`transfer analyze analysis=importance`."""

import re

import pytest


def test_importance_is_written_beside_the_run_and_shown(transfer, finetuned, read_json, tmp_path):
    words = ("analysis.importance.most=8", "analysis.importance.random_orders=1")

    ended = transfer(
        "analyze", f"run={finetuned}", "analysis=importance", *words, "device=cpu",
        "output=found", "html=page.html",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert "error_rate, in random order" in ended.out
    found = read_json(tmp_path / "found" / "analyses" / "importance.json")
    assert [len(heads) for heads in found["heads"]] == [2]
    assert set(found["left_out"]) == {"heads", "blocks", "attention", "feed_forward"}
    assert [each["share"] for each in found["pruning"]] == [0, 0.5, 1]
    assert "Importance of heads and blocks" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("input=t.txt",), "input: .* no answers to judge a model by; name labelled data"),
        (("data=sample_text",), "data: .* this is text without labels; name data of its task"),
        (("data=sample_tags",), "data: .* this is tagging; name data of its task"),
        (("data=sample_choices",), "data: .* this is choice; name data of its task"),
        (("html=-",), "html: a page is a file; name it"),
        (("output=t.txt",), "output: t.txt is there already; choose a new folder"),
        (("analysis.importance.left_out=[norms]",), "analysis.importance.left_out.* 'norms'"),
    ],
)
def test_what_no_answers_are_judged_by_is_refused(transfer, finetuned, tmp_path, words, said):
    (tmp_path / "t.txt").write_text("Where is it ?\n")

    ended = transfer("analyze", f"run={finetuned}", "analysis=importance", "device=cpu",
                     "output=found", *words)  # fmt: skip

    assert ended.code == 2
    assert len(ended.err.strip().splitlines()) == 1

    assert re.search(said, ended.err), ended.err
    assert not (tmp_path / "found").exists()
