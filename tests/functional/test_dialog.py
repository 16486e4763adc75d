"""Dialogs, from the file to talking."""

import io
import json

import pytest
from safetensors.torch import load_file

from tests.task_kinds import turn

pytestmark = pytest.mark.functional


@pytest.fixture
def run(task_run):
    """Return a finished run."""
    return task_run("dialog")


def test_speakers_have_embeddings_that_were_learnt(run):
    weights = load_file(run / "model" / "weights.safetensors")

    found = weights["backbone.new_segments.weight"]
    assert found.shape == (2, weights["backbone.token_embedding.weight"].shape[1])
    assert found.any(1).all()
    assert (found[0] != found[1]).any()


def test_candidates_are_ranked(transfer, run, tmp_path):
    asked = turn(5)
    (tmp_path / "new.jsonl").write_text(f"{json.dumps(asked)}\n")

    ended = transfer("predict", str(run), "new.jsonl", "device=cpu")

    assert ended.code == 0, ended.err
    answer = json.loads(ended.out)
    best, *_ = answer["ranking"]
    assert answer["text"] == asked["history"][-1]
    assert answer["reply"] == asked["candidates"][best]
    assert sorted(answer["ranking"]) == list(range(len(asked["candidates"])))
    shares = [answer["probabilities"][number] for number in answer["ranking"]]
    assert shares == sorted(shares, reverse=True)


@pytest.fixture
def talk(transfer, run, monkeypatch):
    """Return how to say some lines to the run."""

    def call(*lines, more=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        return transfer("chat", str(run), "device=cpu", "max_tokens=8", *more)

    return call


def test_each_line_gets_a_reply_that_depends_on_what_was_said(talk):
    ended = talk("the red bridge ?", "", "the old bridge ?", more=["temperature=0"])
    alone = talk("the old bridge ?", more=["temperature=0", "persona=[the bridge is here .]"])

    assert ended.code == alone.code == 0, ended.err + alone.err
    first, second = ended.out.splitlines()
    assert (len(alone.out.splitlines()), len(ended.out.splitlines())) == (1, 2)
    assert first != second


def test_the_same_seed_says_the_same(talk):
    once, again = (talk("the red bridge ?", more=["seed=3"]).out for _ in range(2))

    assert once == again != ""


def test_nothing_typed_is_the_end(talk):
    ended = talk()

    assert (ended.code, ended.out) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["frozen", "lora", "adapters", "gradual_unfreezing"])
def test_every_kind_of_scheme_learns_replies(transfer, words, scheme, read_json, tmp_path):
    # Where the backbone is frozen, nothing new in it can learn.
    plain = [word for word in words if not word.startswith("adaptation/edits")]
    ended = transfer(*plain, f"adaptation={scheme}", "tokenizer.add=[<speaker1>,<speaker2>]",
                     "data.speakers=[<speaker1>,<speaker2>]", "run.dir=run")  # fmt: skip

    assert ended.code == 0, ended.err
    found = read_json(tmp_path / "run" / "results.json")["measures"]["validation"]
    assert found["loss"] < 2
