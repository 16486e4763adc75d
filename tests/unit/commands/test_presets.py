import json

from transfer_cli.commands.presets import presets
from transfer_cli.config.describe import options


def test_every_option_is_listed_with_its_line(capsys):
    presets([])

    out = capsys.readouterr().out
    for option in options():
        assert option.line in out


def test_groups_can_be_named(capsys):
    presets(["adaptation"])

    out = capsys.readouterr().out
    assert "adaptation=" in out
    assert "adaptation/plan=" in out
    assert "optimizer=" not in out


def test_a_program_can_read_the_list(capsys):
    presets(["--json"])

    records = json.loads(capsys.readouterr().out)
    assert len(records) == len(options())
    base = next(each for each in records if (each["group"], each["option"]) == ("model", "base"))
    assert base["origin"] == "packaged"
    assert base["target"] == "transfer_cli.model.backbone.BackboneShape"


def test_own_options_say_where_they_lie(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# My own\nwidth: 1\n")
    (tmp_path / "model" / "tiny.yaml").write_text("# Hidden by ours\nwidth: 1\n")

    presets(["model", "--config-dir", str(tmp_path)])

    out = capsys.readouterr().out
    assert f"My own  ({tmp_path}/model/mine.yaml)" in out
    assert "not used: a packaged option has this name" in out
