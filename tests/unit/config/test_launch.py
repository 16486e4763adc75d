import pytest
from omegaconf import OmegaConf

from transfer_cli.config.flags import parse
from transfer_cli.config.launch import compose, launch


def run(words, command="pretrain"):
    configs = []
    launch(command, parse(words), configs.append)
    return configs


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRANSFER_DATA", raising=False)


def test_a_command_gets_the_config_with_overrides_and_interpolations():
    [config] = run(["loop.batch=3", "run.dir=runs/${seed}", "seed=7"])

    assert config.loop.batch == 3
    assert config.run.dir == "runs/7"
    assert config.data_dir == "~/.cache/transfer"


def test_the_data_folder_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", "/some/where")

    [config] = run([])

    assert config.data_dir == "/some/where"


def test_a_run_writes_nothing_of_hydras(tmp_path):
    run([])

    assert list(tmp_path.iterdir()) == []


def test_process_settings_are_as_before(monkeypatch):
    import os
    import sys

    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    before = list(sys.argv)

    run([])

    assert sys.argv == before
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_own_configs_extend_ours(tmp_path):
    own = tmp_path / "own"
    (own / "model").mkdir(parents=True)
    (own / "model" / "mine.yaml").write_text("# Mine\ndefaults:\n  - tiny\nwidth: 64\n")
    (own / "start.yaml").write_text(
        "# Mine\ndefaults:\n  - pretrain\n  - override model: mine\n  - _self_\nloop: {batch: 5}\n"
    )

    [by_option] = run(["--config-dir", str(own), "model=mine"])
    [by_primary] = run(["--config-dir", str(own), "--config-name", "start"])

    assert by_option.model.width == 64
    assert (by_primary.model.width, by_primary.loop.batch) == (64, 5)


def test_further_losses_are_added_under_their_name():
    [config] = run(["+objective@losses.lm=clm", "losses.lm.weight=0.5"], "finetune")

    assert OmegaConf.to_container(config.losses) == {
        "lm": {"_target_": "transfer_cli.objectives.causal_lm.CausalLM", "weight": 0.5}
    }


def test_composing_to_look_leaves_open_values_open():
    config = compose("evaluate", parse([]))

    assert OmegaConf.is_missing(config, "run")


def test_what_was_looked_at_is_forgotten(capsys):
    from hydra.core.hydra_config import HydraConfig

    launch("pretrain", parse(["--cfg", "job", "--package", "loop", "loop.batch=7"]), print)

    assert "batch: 7" in capsys.readouterr().out
    assert not HydraConfig.initialized()
