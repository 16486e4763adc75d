"""`transfer diff` as people type it."""

import json

import pytest

from tests.fake_runs import write_run


@pytest.fixture
def two(tmp_path):
    """Return two runs: of other schemes, rates and versions."""
    write_run(tmp_path / "a", wrong=[0, 1, 2], data__labelled=100)
    other = write_run(
        tmp_path / "b", seed=1, adaptation="lora", optimizer__lr=0.01, wrong=[2, *range(10, 19)]
    )
    (other / "environment.json").write_text(
        json.dumps({"command": "finetune", "versions": {"torch": "2.14.0"}, "gpus": ["one"]})
    )
    return tmp_path


def rows(out):
    """Return the lines of a table by their first word."""
    return {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}


def test_what_differs_stands_side_by_side(transfer, two):
    done = transfer("diff", "a", "b")

    found = rows(done.out)
    assert (done.code, done.err) == (0, "")
    assert found["seed"] == ["0", "1"]
    assert found["adaptation"] == ["full", "lora"]
    assert found["optimizer.lr"] == ["0.001", "0.01"]
    assert found["adaptation.edits.lora.rank"] == ["-", "8"]
    assert found["data.labelled"] == ["100", "null"]
    assert found["versions"] == ["torch", "2.13.0", "2.14.0"]
    assert found["gpus"] == ["-", '["one"]']
    assert "b - a +17.50" in done.out
    assert "p 0.065 by McNemar on 40 items" in done.out  # 2 against 9 items
    assert any(line.split() == ["parameters", "trained", "1,000", "80", "-920"]
               for line in done.out.splitlines())  # fmt: skip
    assert "objective" not in done.out


def test_a_run_against_itself_differs_in_nothing(transfer, two):
    out = transfer("diff", "a", "a").out

    assert "config: no difference" in out
    assert "data: no difference" in out
    assert "environment: no difference" in out
    assert "p 1.00" in out


def test_the_same_as_json(transfer, two):
    found = json.loads(transfer("diff", "a", "b", "--json").out)["difference"]

    assert {"name": "optimizer.lr", "ours": "0.001", "theirs": "0.01", "change": None} in found[
        "config"
    ]
    (test,) = found["tests"]
    assert (test["difference"], test["test"]) == (17.5, "McNemar")


def test_runs_that_cannot_be_tested_say_why(transfer, two):
    (two / "b" / "items.jsonl").unlink()

    assert "no test on the items of test: without items.jsonl" in transfer("diff", "a", "b").out


def test_a_run_that_did_not_end_is_compared_as_far_as_it_goes(transfer, two):
    write_run(two / "c", status="failed", reason="out of memory")

    out = transfer("diff", "a", "c").out

    assert "failed: out of memory" in out
    assert "data.labelled" in out


def test_runs_of_other_commands_are_compared_as_far_as_it_makes_sense(
    transfer, pretrained, finetuned
):
    done = transfer("diff", str(pretrained), str(finetuned)).ok()

    found = rows(done.out)
    assert found["command"] == ["pretrain", "finetune"]
    assert found["test/error_rate"][:2] == ["(%)", "-"]
    share = json.loads((finetuned / "results.json").read_text())["measures"]["test"]["accuracy"]
    assert found["test/accuracy"] == ["(%)", "-", f"{100 * share:.6g}"]
