"""`transfer analyze analysis=importance`."""


def test_importance_is_written_beside_the_run_and_shown(transfer, finetuned, read_json, tmp_path):
    words = ("analysis.importance.most=8", "analysis.importance.random_orders=1")

    ended = transfer(
        "analyze", f"run={finetuned}", "analysis=importance", *words, "device=cpu",
        "output=found", "html=page.html",
    )  # fmt: skip

    assert ended.code == 0, ended.err
    assert "without which error_rate is" in ended.out
    found = read_json(tmp_path / "found" / "analyses" / "importance.json")
    assert [len(heads) for heads in found["heads"]] == [2]
    assert set(found["left_out"]) == {"heads", "blocks", "attention", "feed_forward"}
    assert [each["share"] for each in found["pruning"]] == [0, 0.5, 1]
    assert "Importance of heads and blocks" in (tmp_path / "page.html").read_text()
