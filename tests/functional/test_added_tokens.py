"""Tokens that a run adds to those of the model that it starts from."""

import json

import pytest
from safetensors.torch import load_file

from transfer_cli.data.library_tokenizer import LibraryTokenizer

pytestmark = pytest.mark.functional

ADDED = "tokenizer.add=[<speaker1>,<speaker2>]"


@pytest.fixture(scope="module")
def words(pretrained, questions, loop):
    return ("finetune", "data=table", f"data.train={questions}", *loop, f"init_from={pretrained}",
            "loop.steps=2", ADDED)  # fmt: skip


@pytest.mark.slow
def test_new_tokens_have_rows_like_the_others_and_no_text_is_read_as_one(
    transfer, words, pretrained, tmp_path
):
    ended = transfer(*words, "adaptation=frozen", "adaptation.store=all", "run.dir=run")

    assert ended.code == 0, ended.err
    assert "new: backbone.token_embedding.weight" in ended.out + ended.err
    places = (pretrained / "model", tmp_path / "run" / "model")
    own, grown = (LibraryTokenizer.load(each / "tokenizer.json") for each in places)
    assert grown.size == own.size + 2
    assert grown.pieces([own.size, own.size + 1]) == ["<speaker1>", "<speaker2>"]
    assert grown.token("<speaker2>") == own.size + 1
    text = "a <speaker1> , b"
    assert grown.encode(text) == own.encode(text)
    before, after = (
        load_file(each / "weights.safetensors")["backbone.token_embedding.weight"]
        for each in places
    )
    assert after.shape == (own.size + 2, before.shape[1])
    assert (after[: own.size] == before).all()
    assert (after[own.size :] - before.mean(0)).std() == pytest.approx(0.02, rel=0.4)


def test_a_run_with_new_tokens_goes_on_answers_and_is_started_from(transfer, words, tmp_path):
    (tmp_path / "new.txt").write_text("Where is Lima ?\n")

    assert transfer(*words, "run.dir=run", "adaptation=lora", "adaptation.store=trained").code == 0
    goes_on = transfer("finetune", "resume=run", "loop.steps=3")
    answered = transfer("predict", "run", "new.txt", "device=cpu")
    next_one = [each for each in words if not each.startswith(("init_from", "tokenizer"))]
    started = transfer(*next_one, "init_from=run", "run.dir=next")

    assert [each.code for each in (goes_on, answered, started)] == [0, 0, 0], started.err
    assert json.loads(answered.out)["label"]
