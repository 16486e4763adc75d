"""`resume=auto` compares whole configs: what was stored has to be what was typed."""

import pytest

from transfer_cli.assembly.resumed_config import AUTO, config_to_resume, find_run
from transfer_cli.config import compose
from transfer_cli.config.check import check
from transfer_cli.config.command_line import CommandLine
from transfer_cli.config.describe import options
from transfer_cli.config.flags import Request
from transfer_cli.config.plain_yaml import read_plain
from transfer_cli.config.stored import as_yaml
from transfer_cli.errors import ConfigError
from transfer_cli.runs.directory import RunDirectory

QUICK = (
    "experiment=sample/labels", "experiment=tutorial/multitask", "experiment=recipe/clm",
    *(f"adaptation={name}" for name in ("ulmfit", "ewc", "chain_thaw", "lora")),
)  # fmt: skip
EXPERIMENTS = [f"experiment={each.name}" for each in options() if each.group == "experiment"]


def composed(folder, *words, resume=AUTO):
    command = "pretrain" if any("pretrain" in word for word in words) else "finetune"
    request = Request(overrides=(*words, f"run.dir={folder}", f"resume={resume}"))
    config = compose.compose(command, request)
    check(config, command)
    return config, command


def begun(folder, *words):
    """Return a run directory in which a command has begun."""
    config, command = composed(folder, *words)
    run = RunDirectory.create(folder)
    run.start(command, as_yaml(config), words, {}, {})
    run.unlock()
    return run


@pytest.mark.parametrize(
    "word",
    [*QUICK, *(pytest.param(e, marks=pytest.mark.slow) for e in EXPERIMENTS if e not in QUICK)],
)
def test_what_was_typed_is_what_was_stored(tmp_path, word):
    run = begun(tmp_path / "run", word, "init_from=RUN")
    config, command = composed(run.path, word, "init_from=RUN")

    found = config_to_resume(
        config,
        find_run(config.resume, config.run.dir),
        command,
        CommandLine.of_this_command().overrides,
    )

    assert as_yaml(found) == run.config.read_text()


def test_a_run_that_was_begun_before_a_model_had_an_option_is_the_same_run(tmp_path):
    word = "experiment=tutorial/pretrain_clm"
    run = begun(tmp_path / "run", word)
    later = ("  norm:", "  feedforward_kind:", "  attention:")
    lines = run.config.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(later)]
    assert len(older) == len(lines) - 3
    run.config.write_text("".join(older[:-1]))  # nor had it a hash
    config, command = composed(run.path, word)

    found = config_to_resume(
        config,
        find_run(config.resume, config.run.dir),
        command,
        CommandLine.of_this_command().overrides,
    )

    assert found.model == config.model
    assert read_plain(run.config)["model"]["norm"] == "layer"


TABLE = ("data=table", "data.train=FILE", "init_from=RUN")


def begun_before_tables_were_looked_at(folder, *words):
    run = begun(folder, *TABLE, "data.text=text", "data.label=label", "data.header=true", *words)
    lines = run.config.read_text().splitlines(keepends=True)
    later = ("  delimiter:", "  encoding:", "  errors:")
    run.config.write_text("".join(line for line in lines[:-1] if not line.startswith(later)))
    return run


def test_a_run_that_was_begun_before_tables_were_looked_at_is_the_same_run(tmp_path):
    run = begun_before_tables_were_looked_at(tmp_path / "run")
    config, command = composed(run.path, *TABLE)

    found = config_to_resume(config, run, command, TABLE)

    assert (found.data.text, found.data.header, "errors" in found.data) == ("text", True, False)


def test_a_run_keeps_the_size_of_its_vocabulary_where_none_is_typed(tmp_path):
    fresh = ("init=scratch", "model=tiny", "tokenizer=wordpiece")
    run = begun(tmp_path / "run", *fresh, "tokenizer.size=28996")  # the default of earlier versions
    config, command = composed(run.path, *fresh)

    found = config_to_resume(config, run, command, fresh)

    assert (config.tokenizer.size, found.tokenizer.size) == ("auto", 28996)


def test_an_option_that_is_newer_than_a_run_cannot_be_added_to_it(tmp_path):
    run = begun_before_tables_were_looked_at(tmp_path / "run")
    config, command = composed(run.path, *TABLE, "data.errors=skip")

    with pytest.raises(ConfigError, match=r"^resume: data\.errors=skip contradicts"):
        config_to_resume(config, run, command, (*TABLE, "data.errors=skip"))


def test_a_run_whose_weights_were_kept_by_the_default_of_an_earlier_version_goes_on_so(tmp_path):
    run = begun(tmp_path / "run", *TABLE, "loop.monitor=loss")
    config, command = composed(run.path, *TABLE)

    assert config.loop.monitor == "auto"
    assert config_to_resume(config, run, command, TABLE).loop.monitor == "loss"


def test_where_no_run_was_begun_auto_finds_none(tmp_path):
    config, _ = composed(tmp_path / "run", "init_from=RUN")

    assert find_run(config.resume, config.run.dir) is None
