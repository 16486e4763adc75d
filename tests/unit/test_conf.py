"""Every file in `conf/` says what it is, composes and builds."""

import pytest
from omegaconf import OmegaConf

from transfer_cli.commands.compose import options_of
from transfer_cli.config import commands, launch
from transfer_cli.config.build import build
from transfer_cli.config.check import check
from transfer_cli.config.describe import description, options
from transfer_cli.config.flags import Request
from transfer_cli.config.locate import conf_dir

FILES = sorted(conf_dir().rglob("*.yaml"))
OPTIONS = [option for option in options() if option.group != "experiment"]
EXPERIMENTS = [option.name for option in options() if option.group == "experiment"]
COMPOSING = [name for name, command in commands.ALL.items() if command.composes]

NEEDS = {
    ("data", "text"): ["data.train=a.txt"],
    ("data", "table"): ["data.train=a.csv"],
    ("tokenizer", "file"): ["tokenizer.path=tokenizer.json"],
}
"""What a user has to add to an option."""

GIVEN = {"evaluate": ["run=RUN"], "predict": ["run=RUN"]}


def composed(command, *overrides):
    words = (*GIVEN.get(command, []), *overrides)
    return launch.compose(command, Request(overrides=words))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(conf_dir()).as_posix())
def test_a_config_says_in_one_line_what_it_is(file):
    line = description(file)

    assert 10 <= len(line) <= 100
    assert not line.endswith(".") or file.parent == conf_dir()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(conf_dir()).as_posix())
def test_the_name_of_a_config_needs_no_quotes(file):
    assert file.stem.replace("_", "").replace("-", "").isalnum()
    assert file.stem not in ("on", "off", "yes", "no", "true", "false", "null")


@pytest.mark.parametrize("command", COMPOSING)
def test_a_command_composes_as_it_is(command):
    check(composed(command), command)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: f"{option.group}-{option.name}")
def test_an_option_composes_and_builds(option):
    command = "finetune" if ".tasks." in option.target else "pretrain"
    key = option.group.replace("/", ".")

    config = composed(
        command,
        f"{option.group}={option.name}",
        *NEEDS.get((option.group, option.name), []),
    )
    check(config, command)

    extra = {}
    if option.group == "optimizer":
        torch = pytest.importorskip("torch")
        extra = {"params": [torch.nn.Parameter(torch.zeros(2, 2))]}
    node = OmegaConf.select(config, key)
    if option.group == "objective":
        node = options_of(node, key)
    assert build(node, key, object, **extra) is not None


def test_an_experiment_composes_with_the_command_in_its_name():
    for name in EXPERIMENTS:
        last = name.rpartition("/")[2]
        command = "pretrain" if last.startswith("pretrain") else "finetune"
        check(composed(command, f"experiment={name}"), command)


def test_the_defaults_are_the_real_job():
    pretrain, finetune = composed("pretrain"), composed("finetune")

    assert pretrain.data.name == "wikitext-103"
    assert pretrain.objective._target_.endswith(".CausalLM")
    assert finetune.data._target_.endswith(".Trec")
    assert not finetune.data.fine
    assert finetune.adaptation.plan._target_.endswith(".AllAtOnce")
    assert (finetune.model, finetune.tokenizer) == (None, None)


@pytest.mark.parametrize(
    ("name", "width", "feedforward", "depth", "positions", "parameters"),
    [
        ("tiny", 128, 512, 4, 128, 809_728),
        ("small", 256, 1024, 6, 256, 4_804_608),
    ],
)
def test_the_sizes_of_small_models_stay_as_they_are(
    name, width, feedforward, depth, positions, parameters
):
    model = composed("pretrain", f"model={name}").model

    found = (model.width, model.feedforward, model.depth, model.positions)
    assert found == (width, feedforward, depth, positions)
    block = 4 * width**2 + 2 * width * feedforward + 9 * width + feedforward
    assert depth * block + positions * width + 2 * width == parameters


def test_the_default_model_has_about_fifty_million_parameters_and_heads_of_64():
    model = composed("pretrain").model
    vocabulary = composed("pretrain").tokenizer.size

    block = 4 * model.width**2 + 2 * model.width * model.feedforward
    total = model.depth * block + (vocabulary + model.positions) * model.width

    assert model.width == 64 * model.heads
    assert model.residual == "pre"
    assert 45e6 < total < 55e6
