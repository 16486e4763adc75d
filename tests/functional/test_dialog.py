"""Dialogs, from the file to talking."""

import io
import json
import re
import shlex
import signal

import pytest
from safetensors.torch import load_file

from transfer_cli.config.locate import conf_dir

pytestmark = pytest.mark.functional

PLACES = ("red", "blue", "old", "new")


def turn(number):
    """Return a turn whose right reply repeats a word of its last utterance."""
    own = PLACES[number % 4]
    others = [f"it is {each} ." for each in PLACES if each != own][: 1 + number % 3]
    history = ["what is it ?", "a bridge .", f"the {own} bridge ?"][-1 - 2 * (number % 2) :]
    return {
        "personality": ["the bridge is here ."],
        "history": history,
        "candidates": [*others, f"it is very {own} ."],
    }


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return dialogs as PersonaChat's file has them."""
    path = tmp_path_factory.mktemp("dialogs") / "personachat.json"

    def dialogs(first, last):
        return [
            {"personality": turn(n)["personality"], "utterances": [turn(n)]}
            for n in range(first, last)
        ]

    path.write_text(json.dumps({"train": dialogs(0, 96), "valid": dialogs(96, 120)}))
    return path


@pytest.fixture(scope="module")
def words(pretrained, file, loop):
    """Return a command line that fine-tunes on them."""
    return ("finetune", "data=dialog", "objective=next_utterance", f"data.train={file}", *loop,
            "+objective@losses.lm=clm", "losses.lm.weight=2", "data.speakers=[the,it]",
            "adaptation/edits=[segments]",
            f"init_from={pretrained}", "optimizer.lr=3e-3", "loop.steps=30", "loop.batch=16",
            "loop.evaluate_every=15 steps", "checkpoint.every=15 steps")  # fmt: skip


@pytest.fixture(scope="module")
def run(words, tmp_path_factory):
    """Return a finished run."""
    from tests.functional.conftest import finished

    place = tmp_path_factory.mktemp("runs") / "dialog"
    finished(*words, f"run.dir={place}")
    return place


def test_replies_are_learnt_and_measured(run, read_json):
    results = read_json(run / "results.json")

    measures = results["measures"]["validation"]
    assert measures["hits_at_1"] > 0.9 > 0.6 > measures["chance"]
    assert measures["perplexity"] < 100
    assert 0 <= measures["f1"] <= 1
    assert [each["name"] for each in results["metrics"] if each["headline"]] == ["hits_at_1"]


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["max_tokens=64"], "max_tokens: 64 leaves no room for what was said"),
        (["temperature=-1"], "temperature: must be 0 (greedy) or more"),
    ],
)
def test_talk_that_cannot_be_is_refused(talk, more, said):
    ended = talk("hello", more=more)

    assert ended.code == 2
    assert said in ended.err


def test_a_run_that_cannot_talk_is_told_what_can(transfer, pretrained, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))

    ended = transfer("chat", str(pretrained), "device=cpu")

    assert ended.code == 2
    assert "is a language model; chat needs a run of objective=next_utterance" in ended.err


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    transfer, words, run, at_record, tmp_path, read_json
):
    at_record("after", "validation", 15, lambda: signal.raise_signal(signal.SIGTERM))
    assert transfer(*words, "run.dir=again").code == 75
    ended = transfer("finetune", "resume=again")

    assert ended.code == 0, ended.err
    ours, theirs = (read_json(place / "results.json") for place in (tmp_path / "again", run))
    assert ours["measures"] == theirs["measures"]


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["objective=choice"], "Choice needs examples of the task choice"),
        (["data.speakers=[the,the]"], "data.speakers: this tokenizer does not tell 'the'"),
        (["data.candidates=1"], "data: candidates must be at least 2, got 1"),
    ],
)
def test_what_does_not_fit_is_refused(transfer, words, more, said, tmp_path):
    ended = transfer(*words, *more, "run.dir=run")

    assert ended.code == 2
    assert said in ended.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_command_of_the_page_runs(transfer, tmp_path, monkeypatch):
    page = (conf_dir().parent / "docs" / "tasks" / "dialog.md").read_text(encoding="utf-8")
    typed = [shlex.split(line) for line in re.findall(r"^\$ transfer (.+)$", page, re.MULTILINE)]
    asked = re.findall(r"^(\{.+\})$", page, re.MULTILINE)[-1]
    (tmp_path / "turns.jsonl").write_text(f"{asked}\n")

    for words in typed[1:]:  # the first is about a file of one's own
        monkeypatch.setattr("sys.stdin", io.StringIO("What is Kadru ?\n"))
        ended = transfer(*words, "device=cpu")
        assert ended.code == 0, (words, ended.err)

    assert {words[0] for words in typed} == {"pretrain", "finetune", "evaluate", "predict", "chat"}
    measures = json.loads((tmp_path / "runs" / "dialog" / "results.json").read_text())["measures"]
    assert measures["test"]["hits_at_1"] > 0.8
