import logging
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

import conf
from tests.sweeping import run
from transfer_cli.errors import ConfigError
from transfer_cli.sweeps.grid import say_what_changes_the_data


def said_of(caplog, *configs):
    with caplog.at_level(logging.INFO):
        say_what_changes_the_data([OmegaConf.create(config) for config in configs])
    return caplog.messages


def test_a_sweep_that_leaves_the_data_alone_says_nothing(caplog):
    same = {"data": {"length": 64}, "tokenizer": None}

    assert said_of(caplog, {**same, "seed": 0}, {**same, "seed": 1}) == []


def test_what_has_the_data_prepared_again_is_said_with_how_often(caplog):
    configs = [
        {"data": {"length": length}, "tokenizer": {"size": size}}
        for length in (32, 64)
        for size in (600, 700, 800)
    ]

    assert said_of(caplog, *configs) == [
        "data.length, tokenizer.size change the data: it is prepared 6 times, once for all jobs "
        "that agree in this"
    ]


def refuse_ewc(config, command):
    """Refuse one scheme, as where a model's pretraining text is not known."""
    if "ewc" in str(config.adaptation.get("penalty")).lower():
        raise ConfigError("source: no text")


PRESETS = {path.stem for path in Path(conf.__file__).parent.glob("adaptation/*.yaml")}


def test_the_sweep_over_schemes_has_every_preset():
    text = (Path(conf.__file__).parent / "sweep" / "schemes.yaml").read_text(encoding="utf-8")

    listed = yaml.safe_load(text)["sweep"]["over"]["adaptation"]
    assert sorted(listed.split(",")) == sorted(PRESETS)


@pytest.mark.slow
def test_schemes_that_cannot_run_are_left_out_by_name(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    words = ["init_from=model", "data=sample_questions", "run.dir=all"]

    configs, _, _ = run(["sweep=schemes", *words], "finetune", try_out=refuse_ewc)

    named = {message.split()[0] for message in caplog.messages if "is left out" in message}
    assert len(configs) + len(named) == len(PRESETS)
    # These have no teachers, and ewc no text.
    assert named == {f"adaptation={name}" for name in ("distil", "ewc", "self_training")}


def test_a_scheme_that_was_typed_is_not_left_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    configs, _, _ = run(
        ["sweep=schemes", "adaptation=full,ewc", "init_from=model", "run.dir=two"], "finetune",
        try_out=refuse_ewc,
    )  # fmt: skip

    assert len(configs) == 2
