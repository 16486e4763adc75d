"""What a run that goes back to its pretraining finds there."""

import dataclasses
import logging

import pytest
import torch

from tests import configs, tiny
from transfer_cli.assembly.datasets import DataPlace
from transfer_cli.assembly.init_from import open_pretrained
from transfer_cli.assembly.origins import Origins
from transfer_cli.assembly.pretraining_task import (
    PretrainingSource,
    pretraining_fisher,
)
from transfer_cli.assembly.run import build_run
from transfer_cli.config.build import build
from transfer_cli.data.text import TextData
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.model.weights import read_weights
from transfer_cli.objectives.causal_lm import CausalLM


@pytest.fixture
def source(tmp_path):
    """Return how to get the pretraining of a run."""

    def make(run, named=None):
        start = open_pretrained(str(run))
        return PretrainingSource(
            start, start.description.shape, DataPlace(str(tmp_path), 0), Origins(), named
        )

    return make


@pytest.fixture
def adapted(tmp_path):
    """Return how to build a run that adapts another one."""
    return lambda run, **changes: build_run(configs.following(run, tmp_path, **changes), "finetune")


def test_the_pretraining_of_a_model_is_the_language_model_at_its_root(
    source, pretrained, classifier
):
    for run in (pretrained, classifier):
        task = source(run)

        assert task.pretraining[0].folder == pretrained / "model"
        assert isinstance(task.objective, CausalLM)
        assert task.objective.info.vocabulary.hash == task.start.tokenizer.hash
        assert task.length == 12  # a block of its text, and not the model's 24 positions


def test_its_text_is_read_where_it_was_read(source, classifier):
    task = source(classifier)

    train, validation = task.text("train"), task.text("validation")

    assert (train.text.words, validation.text.words) == (320, 312)
    with pytest.raises(ConfigError, match=r"^source\.data: this text has no test split; name"):
        task.text("test")


def test_another_text_may_be_named(source, classifier, tmp_path):
    other = build(configs.text(tmp_path, lines=10, name="other"), "source.data", TextData)

    assert source(classifier, other).text("train").text.words == 80


def test_one_stack_that_began_an_encoder_and_a_decoder_is_not_asked_what_it_was(source, pretrained):
    task = source(pretrained)
    both = dataclasses.replace(task.shape, direction="encoder_decoder")

    with pytest.raises(ConfigError, match=r"^init_from: .* causal one, .*adaptation/penalty=l2_sp"):
        _ = dataclasses.replace(task, shape=both).objective


def test_a_classifier_from_scratch_has_no_pretraining(source, tmp_path):
    alone = configs.run(configs.config("finetune", tmp_path), "finetune", tmp_path / "alone").path

    with pytest.raises(CheckpointError, match="does not come from a language model"):
        _ = source(alone).pretraining


def test_the_model_that_is_asked_has_the_run_s_backbone_and_the_pretrained_head(
    source, adapted, classifier
):
    task = source(classifier)
    tensors = task.start.tensors()
    trained = tiny.model(CausalLM())  # any backbone will do
    trained.heads = torch.nn.ModuleDict()
    trained.backbone = adapted(classifier).model.backbone

    model = task.model(trained, tensors)

    assert model.backbone is trained.backbone
    pretrained = read_weights(task.pretraining[0].folder)
    head = {f"heads.lm.{name}": tensor for name, tensor in model.heads["lm"].state_dict().items()}
    assert tiny.same(head, {name: pretrained[name] for name in head})
    assert not any(parameter.requires_grad for parameter in model.heads["lm"].parameters())


def test_a_head_that_trains_in_the_run_is_the_one_that_is_asked(source, adapted, pretrained):
    task = source(pretrained)
    run = adapted(pretrained, losses={"words": configs.CLM})

    model = task.model(run.model, task.start.tensors())

    assert model.heads["lm"] is run.model.heads["lm"]
    assert all(parameter.requires_grad for parameter in model.heads["lm"].parameters())


# --- forgetting --------------------------------------------------------------------------------


def test_what_is_forgotten_is_measured_before_training_and_when_asked(adapted, pretrained):
    run = adapted(pretrained, forgetting__data="source")
    before = dict(run.forgetting.before)
    assert run.forgetting.measure() == before

    tiny.lively(run.model)

    assert run.forgetting.measure()["loss"] > before["loss"]
    assert run.forgetting.before == before


# --- Fisher information ------------------------------------------------------------------------


@pytest.fixture
def fisher(source, adapted, pretrained, caplog):
    """Return how to estimate; and of what an earlier estimate was taken."""
    caplog.set_level(logging.INFO)

    def estimate(sequences=3, kind="true", disturb=False, named=None):
        task = source(pretrained, named)
        trained = adapted(pretrained).model
        if disturb:
            tiny.lively(trained)
        caplog.clear()
        estimated = pretraining_fisher(task, trained, task.start.tensors(), sequences, kind)
        return estimated, "of an earlier run" in caplog.text

    return estimate


def test_it_is_estimated_once_for_the_same_weights_text_and_settings(fisher):
    first, known = fisher()
    again, known_again = fisher()

    assert (known, known_again) == (False, True)
    assert tiny.same(first, again)
    assert all(bool((value >= 0).all()) for value in first.values())
    assert not any(name.startswith("heads.class") for name in first)


@pytest.mark.parametrize(
    "other",
    [{"sequences": 2}, {"kind": "empirical"}, {"disturb": True}, {"named": "another"}],
    ids=str,
)
def test_for_anything_else_it_is_estimated_anew(fisher, tmp_path, other):
    first, _ = fisher()
    if "named" in other:
        # Its blocks differ from the first word on.
        node = configs.text(tmp_path, lines=20, name="another")
        path = tmp_path / "another-train.txt"
        path.write_text("".join(reversed(path.read_text().splitlines(keepends=True))))
        other = {"named": build(node, "source.data", TextData)}

    second, known = fisher(**other)

    assert not known
    assert not tiny.same(first, second)


def test_a_damaged_estimate_is_made_anew(fisher, tmp_path):
    first, _ = fisher()
    (kept,) = (tmp_path / "cache" / "fisher").glob("*/fisher.safetensors")
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))

    again, known = fisher()

    assert not known
    assert tiny.same(first, again)


def test_fresh_weights_have_none():
    assert pretraining_fisher(None, tiny.model(), None, 4, "true") == {}
