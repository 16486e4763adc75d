"""Models to start from and finished runs, opened."""

import shutil

import pytest

from tests import configs, tiny
from transfer_cli.assembly.chosen_tokenizer import choose_tokenizer
from transfer_cli.assembly.finished_run import open_trained
from transfer_cli.assembly.init_from import open_pretrained, open_start
from transfer_cli.errors import CheckpointError
from transfer_cli.model.weights import read_weights


@pytest.fixture
def apart(tmp_path, pretrained):
    """Return a base and a run that stores what it trained alone, in one folder."""
    shutil.copytree(pretrained, tmp_path / "base")
    config = configs.following(tmp_path / "base", tmp_path, **configs.ONLY_LORA,
                               adaptation__store="trained", loop__steps=1)  # fmt: skip
    return tmp_path / "base", configs.run(config, "finetune", tmp_path / "run").path


def test_a_start_brings_its_choose_tokenizer(tmp_path, pretrained):
    config = configs.following(pretrained, tmp_path)
    start = open_start(config.init_from, None, ())
    assert choose_tokenizer(config.tokenizer, start) is start.tokenizer

    config.tokenizer = {"_target_": "transfer_cli.data.tokenizer_recipes.FromFile",
                        "path": str(pretrained / "model" / "tokenizer.json")}  # fmt: skip
    assert choose_tokenizer(config.tokenizer, start) is start.tokenizer


def test_a_model_that_refers_to_another_has_the_weights_of_both(apart):
    base, run = apart
    start = open_pretrained(str(run))
    assert start.base_folder().resolve() == (base / "model").resolve()

    tensors = start.tensors()

    weights = read_weights(run / "model")
    assert tiny.same({name: tensors[name] for name in weights}, weights)
    under = read_weights(base / "model")
    assert tiny.same({n: tensors[n] for n in under if n not in weights},
                     {n: t for n, t in under.items() if n not in weights})  # fmt: skip
    assert {n: t.shape for n, t in start.tensors(values=False).items()} == {
        n: t.shape for n, t in tensors.items()
    }


def test_folders_that_moved_together_still_find_each_other(apart, tmp_path):
    for path in apart:
        (tmp_path / "moved").mkdir(exist_ok=True)
        shutil.move(path, tmp_path / "moved" / path.name)

    assert open_pretrained(str(tmp_path / "moved" / "run")).tensors()


def test_a_base_that_is_gone_is_asked_for_and_may_be_named(apart, tmp_path):
    base, run = apart
    shutil.move(base, tmp_path / "elsewhere")

    with pytest.raises(CheckpointError, match="say where it is with base=RUN"):
        open_pretrained(str(run)).tensors()
    with pytest.raises(CheckpointError, match="base: there is no folder"):
        open_pretrained(str(run), base=str(tmp_path / "nowhere")).tensors()

    assert open_pretrained(str(run), base=str(tmp_path / "elsewhere")).tensors()


# --- finished runs -----------------------------------------------------------------------------


def test_a_finished_run_answers_as_it_did_when_it_was_scored(apart):
    _, run = apart

    trained = open_trained(str(run), tiny.FP32)

    assert not trained.model.training
    assert trained.objective.info.labels == ("number", "place")
    stored = read_weights(run / "model")
    assert tiny.same({n: trained.model.state_dict()[n] for n in stored}, stored)
    assert sum(p.numel() for n, p in trained.model.named_parameters() if ".lora." in n)
