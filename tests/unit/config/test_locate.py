from transfer_cli.config.locate import conf_dir


def test_the_configs_are_found():
    assert conf_dir().is_absolute()
    assert (conf_dir() / "pretrain.yaml").is_file()
