import logging
import os
import sys

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from transfer_cli.config.budgets import with_budget
from transfer_cli.config.check import check_config
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.compose import compose, config_page
from transfer_cli.config.decided import with_values
from transfer_cli.config.flags import parse_request
from transfer_cli.errors import ConfigError


def made(words, command="pretrain"):
    return compose(command, parse_request(words)).config


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSFER_DATA", raising=False)


def test_a_command_gets_the_config_with_overrides_and_interpolations(monkeypatch):
    config = made(["loop.batch=3", "run.dir=runs/${seed}", "seed=7"])

    assert config.loop.batch == 3
    assert config.run.dir == "runs/7"
    assert config.data_dir == "~/.cache/transfer"
    monkeypatch.setenv("TRANSFER_DATA", "/some/where")
    assert made([]).data_dir == "/some/where"


@pytest.mark.parametrize("words", [[], ["--cfg", "job"], ["--info", "defaults"]])
def test_nothing_is_written_and_nothing_of_the_process_is_changed(tmp_path, words):
    handlers, level = list(logging.getLogger().handlers), logging.getLogger().level
    before = dict(os.environ), list(sys.argv), handlers, level

    (config_page if words else compose)("pretrain", parse_request(words))

    root = logging.getLogger()
    assert (dict(os.environ), list(sys.argv), list(root.handlers), root.level) == before
    assert not HydraConfig.initialized()
    assert list(tmp_path.iterdir()) == []


def test_own_configs_in_a_folder_of_any_name_extend_ours(tmp_path):
    folder = tmp_path / "it's, [my] ${own}"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "mine.yaml").write_text("# Mine\ndefaults:\n  - tiny\nwidth: 64\n")
    (folder / "start.yaml").write_text(
        "# Mine\ndefaults:\n  - pretrain\n  - override model: mine\n  - _self_\nloop: {batch: 5}\n"
    )

    by_option = made(["--config-dir", str(folder), "model=mine"])
    by_primary = made(["--config-dir", str(folder), "--config-name", "start"])

    assert by_option.model.width == 64
    assert (by_primary.model.width, by_primary.loop.batch) == (64, 5)


def test_further_losses_are_added_under_their_name():
    config = made(["+objective@losses.lm=clm", "losses.lm.weight=0.5"], "finetune")

    assert OmegaConf.to_container(config.losses) == {
        "lm": {"_target_": "transfer_cli.objectives.causal_lm.CausalLM", "weight": 0.5}
    }


def test_a_config_is_shown_as_it_stands_or_filled_in():
    words = ["--cfg", "job", "--package", "run", "run.dir=runs/${seed}"]

    assert "dir: runs/${seed}\n" in str(config_page("pretrain", parse_request(words)))
    assert "dir: runs/0\n" in str(config_page("pretrain", parse_request([*words, "--resolve"])))


def test_a_part_that_there_is_not_cannot_be_shown():
    with pytest.raises(ConfigError, match="--package lop: there is no such part"):
        config_page("pretrain", parse_request(["--cfg", "job", "--package", "lop"]))


def test_the_files_of_a_config_are_listed_in_their_order_with_where_they_go():
    request = parse_request(["--info", "defaults", "adaptation=lora"])
    lines = str(config_page("pretrain", request)).splitlines()

    assert lines[0].split() == ["Config", "path", "Package", "_self_", "Parent"]
    assert any(line.split() == ["model/base", "model", "False", "pretrain"] for line in lines)
    assert any(line.split()[0] == "adaptation/edits/lora" for line in lines)


@pytest.mark.parametrize("word", ["hydra.run.dir=x", "+hydra.job.chdir=true", "hydra/sweeper=x"])
def test_keys_of_hydras_own_that_do_nothing_are_refused(word):
    with pytest.raises(ConfigError, match="Hydra composes configs here"):
        made([word])


@pytest.mark.parametrize("betas", ["null", "0.9", "a", "[a,b]", "[0.9,1]", "[0.9,null]"])
def test_betas_that_cannot_be_end_in_a_line(betas):
    config = made(["init_from=RUN", f"optimizer.betas={betas}"], "finetune")

    with pytest.raises(ConfigError, match=r"^optimizer\.betas: must be numbers"):
        check_config(config, "finetune")


def test_no_budget_is_none():
    words = ("budget=null", "loop.steps=5", "adaptation=lora")

    assert with_budget("pretrain", words) == with_budget("finetune", words) == words


def test_the_command_line_at_work_is_known_while_it_is():
    typed = compose("pretrain", parse_request(["seed=3", "model=tiny", "hydra.mode=RUN"])).typed

    with typed.as_current():
        assert CommandLine.current() == typed
    assert typed.overrides == ("seed=3", "model=tiny")
    assert (typed.presets["model"], typed.presets["data"]) == ("tiny", "wikitext103")
    assert CommandLine.current() == CommandLine()


@pytest.mark.parametrize(
    ("typed", "flags"),
    [
        ("predict run=a", " --plugin lab --config-dir 'my configs'"),
        ("report a", " --plugin lab"),
    ],
)
def test_a_line_to_type_next_has_the_packages_and_configs_of_this_one(tmp_path, typed, flags):
    (tmp_path / "my configs").mkdir()
    request = parse_request(["--plugin", "lab", "--config-dir", "my configs", "seed=1"], "finetune")

    assert compose("finetune", request).typed.next_command(typed) == f"transfer {typed}{flags}"
    assert CommandLine().next_command(typed) == f"transfer {typed}"


def test_a_checked_config_is_frozen_and_what_is_decided_goes_into_a_copy():
    config = made(["init_from=RUN"], "finetune")
    check_config(config, "finetune")

    decided = with_values(config, {"optimizer.lr": 0.5, "forgetting.data": {"a": 1}})

    assert (decided.optimizer.lr, decided.forgetting.data) == (0.5, {"a": 1})
    assert config.optimizer.lr == "1.0e-4*384/width"
    assert config.forgetting.data is None
    for frozen in (config, decided):
        with pytest.raises(ReadonlyConfigError):
            frozen.seed = 1


def test_a_config_of_ones_own_may_set_what_hydra_elsewhere_reads(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.yaml").write_text(
        "defaults: [pretrain, {override hydra/job_logging: disabled}, _self_]\n"
        "hydra: {run: {dir: elsewhere}}\nseed: 5\n"
    )

    assert made(["--config-dir", "own", "--config-name", "mine"]).seed == 5


def test_a_config_that_is_not_utf8_is_named_beside_a_link_to_nowhere(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "a.yaml").symlink_to(tmp_path / "gone.yaml")
    (tmp_path / "model" / "mine.yaml").write_bytes(b"# \xff\n")

    with pytest.raises(ConfigError, match=r"mine\.yaml: .*UTF-8"):
        made(["--config-dir", str(tmp_path), "model=mine"])
