"""Every file in `conf/` says what it is, composes and builds."""

from collections import Counter, defaultdict
from dataclasses import fields
from functools import cache

import pytest
from omegaconf import OmegaConf

from transfer_cli.adaptation.adaptation import Adaptation
from transfer_cli.adaptation.plans import (
    AllAtOnce,
    Biases,
    ChainThaw,
    GradualUnfreezing,
    NewWeights,
    Only,
    SequentialUnfreezing,
    TopBlocks,
)
from transfer_cli.assembly.losses import objective_options
from transfer_cli.config import commands, compose
from transfer_cli.config.build import build
from transfer_cli.config.check import check_config
from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.config.decided import base_lr
from transfer_cli.config.describe import description, options
from transfer_cli.config.flags import Request
from transfer_cli.model.backbone import BackboneShape
from transfer_cli.objectives.base import Objective
from transfer_cli.optim.layer_scale import Geometric, Uniform

FILES = sorted(conf_dir().rglob("*.yaml"))
OPTIONS = [option for option in options() if option.group not in ("experiment", "sweep")]
SWEEPS = [option.name for option in options() if option.group == "sweep"]
EXPERIMENTS = [option.name for option in options() if option.group == "experiment"]
COMPOSING = [name for name, command in commands.ALL.items() if command.composes]

PRESETS = [option.name for option in OPTIONS if option.group == "adaptation"]

NEEDS = {
    ("data", "text"): ["data.train=a.txt"],
    ("data", "table"): ["data.train=a.csv"],
    ("data", "numbers"): ["data.train=a.csv"],
    ("data", "pairs"): ["data.train=a.csv"],
    ("data", "nli"): ["data.train=a.csv"],
    ("data", "minimal_pairs"): ["data.files=a.jsonl"],
    ("data", "cloze"): ["data.files=a.jsonl"],
    ("data", "choices"): ["data.train=a.jsonl"],
    ("data", "squad"): ["data.train=a.json"],
    ("data", "glue"): ["data.task=cola", "data.folder=CoLA"],
    ("data", "labels"): ["data.train=a.csv"],
    ("data", "hub"): ["data.name=owner/name"],
    ("data", "chat"): ["data.train=a.jsonl"],
    ("data", "dialog"): ["data.train=a.json"],
    ("data", "conll"): ["data.train=a.conll"],
    ("data", "conllu"): ["data.train=a.conllu"],
    ("data", "text_pairs"): ["data.train=a.csv"],
    ("data", "table_text"): ["data.task.train=a.csv"],
    ("tokenizer", "bpe"): ["tokenizer.size=300"],
    ("tokenizer", "wordpiece"): ["tokenizer.size=300"],
    ("tokenizer", "file"): ["tokenizer.path=tokenizer.json"],
    ("adaptation", "distil"): ["adaptation.teachers=[RUN]"],
    ("adaptation", "self_training"): ["adaptation.teachers=[RUN]"],
    ("objective", "distillation"): ["objective.teachers=[RUN]"],
    ("objective", "distil_lm"): ["objective.teachers=[RUN]"],
    ("objective", "relation_distillation"): ["objective.teachers=[RUN]"],
    ("analysis", "edges"): [
        f"analysis.edges.{part}=a.jsonl" for part in ("train", "validation", "test")
    ],
    ("adaptation/plan", "pattern"): ["adaptation.plan.train=[head.*]"],
    ("adaptation/layer_scale", "per_group"): ["adaptation.layer_scale.rates={block.*:0.5}"],
}
"""What a user has to add to an option."""

GIVEN = {
    "evaluate": ["run=RUN"],
    "predict": ["run=RUN"],
    "embed": ["run=RUN"],
    "export": ["run=RUN", "to=FOLDER"],
    "push": ["run=RUN", "repository=owner/name"],
    "generate": ["run=RUN", "prompt=PROMPT"],
    "serve": ["run=RUN"],
    "chat": ["run=RUN"],
    "fill": ["run=RUN", "text=TEXT"],
    "score": ["run=RUN", "data=agreement"],
    "analyze": ["run=RUN"],
}


@cache
def composed(command, *overrides):
    words = (*GIVEN.get(command, []), *overrides)
    return compose.load_config(command, Request(overrides=words))


def name_of(file):
    return file.relative_to(conf_dir()).as_posix()


def test_a_config_says_in_one_line_what_it_is():
    lines = {file: description(file) for file in FILES}

    assert FILES
    assert {name_of(file): line for file, line in lines.items() if not 10 <= len(line) <= 100} == {}
    # Those of commands are sentences.
    ended = {file: line for file, line in lines.items() if line.endswith(".")}
    assert [name_of(file) for file in ended if file.parent != conf_dir()] == []


def test_the_name_of_a_config_needs_no_quotes():
    words = ("on", "off", "yes", "no", "true", "false", "null")
    plain = {file: file.stem.replace("_", "").replace("-", "") for file in FILES}

    assert [name_of(file) for file, stem in plain.items() if not stem.isalnum()] == []
    assert [name_of(file) for file in FILES if file.stem in words] == []


@pytest.mark.parametrize("command", COMPOSING)
def test_a_command_composes_as_it_is(command):
    check_config(composed(command), command)


def command_of(option):
    """Return a command that takes the option."""
    if option.group == "analysis":
        return "analyze"
    adapts = option.group.startswith("adaptation")
    return "finetune" if ".tasks." in option.target or adapts else "pretrain"


def together():
    """Return options by command, as many of different groups at once as there are."""
    numbers, rows = Counter(), defaultdict(list)
    for option in OPTIONS:
        place = (command_of(option), option.group)
        # What stands in place of others in a list, or brings others along, comes alone.
        is_alone = option.group in ("adaptation", "experiment")
        rows[place if is_alone else place[:1], numbers[place]].append(option)
        numbers[place] += option.group not in ("adaptation/edits", "analysis")
    return [(command, options) for ((command, *_), _), options in rows.items()]


@pytest.mark.parametrize(("command", "options"), together())
def test_an_option_composes_and_builds(command, options):
    chosen = defaultdict(list)
    for option in options:
        chosen[option.group].append(option.name)
    needs = [word for option in options for word in NEEDS.get((option.group, option.name), [])]
    words = [
        f"{group}=[{','.join(n)}]" if n[1:] else f"{group}={n[0]}" for group, n in chosen.items()
    ]
    config = composed(command, *words, *needs)
    check_config(config, command)
    for option in options:
        check_builds(option, config)


def check_builds(option, config):
    key = option.group.replace("/", ".")
    if option.group in ("adaptation/edits", "analysis"):
        key = f"{key}.{option.name}"
    node = OmegaConf.select(config, key)
    extra = {}
    if option.group == "optimizer":
        torch = pytest.importorskip("torch")
        extra = {"params": [torch.nn.Parameter(torch.zeros(2, 2))]}
    if option.group == "objective":
        node = objective_options(node, key)
    build(node, key, object, **extra)


@pytest.mark.parametrize("name", [option.name for option in OPTIONS if option.group == "model"])
def test_a_model_names_every_option_of_its_shape(name):
    model = composed("pretrain", f"model={name}").model

    assert model.keys() - {"_target_", "embeddings"} == {
        field.name for field in fields(BackboneShape)
    }


@cache
def preset(name):
    """Return the config of `finetune` with a preset of `adaptation`, and what is built of it."""
    config = composed(
        "finetune", f"adaptation={name}", *NEEDS.get(("adaptation", name), [])
    )  # fmt: skip
    check_config(config, "finetune")
    return config, build(config.adaptation, "adaptation", Adaptation)


AS_IN_FULL = (
    "discriminative", "l2_sp", "ewc", "source_distillation", "lm_auxiliary", "multitask", "distil",
    "self_training", "uda", "cvt", "slices", "pet",
)  # fmt: skip


def test_presets_are_what_their_papers_say():
    presets = {name: preset(name)[1] for name in PRESETS}

    assert {name: made.plan for name, made in presets.items()} == {
        "full": AllAtOnce(),
        "frozen": Only(("head.*",)),
        "feature_extraction": Only(("head.*",)),
        "top_k": TopBlocks(2),
        "bias_only": Biases(),
        "adapters": NewWeights(norms=True),
        "adapters_tutorial": NewWeights(also=("embeddings",)),
        "lora": NewWeights(),
        "parallel_adapters": NewWeights(),
        "ia3": NewWeights(),
        "gated_prefix": NewWeights(),
        "pals": NewWeights(),
        "dora": NewWeights(),
        "gradual_unfreezing": GradualUnfreezing("auto"),
        "gradual_unfreezing_tutorial": GradualUnfreezing("auto", always=("embeddings",)),
        "chain_thaw": ChainThaw("auto", patience=3, with_new=False, later_rate=0.1),
        "sequential_unfreezing": SequentialUnfreezing("20%", "60%"),
        "siatl": SequentialUnfreezing("20%", "60%"),
        "ulmfit": GradualUnfreezing("auto"),
        **dict.fromkeys(AS_IN_FULL, AllAtOnce()),
    }
    scales = {name: made.layer_scale for name, made in presets.items()}
    assert {name: s for name, s in scales.items() if s != Uniform()} == {
        "discriminative": Geometric(1.2), "ulmfit": Geometric(2.6),
    }  # fmt: skip
    penalties = {name: made.penalty for name, made in presets.items() if made.penalty}
    assert {name: type(penalty).__name__ for name, penalty in penalties.items()} == {
        "l2_sp": "L2SP", "ewc": "EWC",
    }  # fmt: skip
    assert {name: [*map(str, made.edits)] for name, made in presets.items() if made.edits} == {
        "feature_extraction": ["scalar_mix"], "adapters": ["adapters_houlsby"],
        "adapters_tutorial": ["adapters"], "lora": ["lora"], "ia3": ["ia3"],
        "parallel_adapters": ["parallel_adapters"], "gated_prefix": ["gated_prefix"],
        "pals": ["pals"],
        "dora": ["dora"],
    }  # fmt: skip
    assert {name for name, made in presets.items() if made.frozen_eval} == {
        "frozen", "feature_extraction",
    }  # fmt: skip
    assert {name for name, made in presets.items() if made.store == "trained"} == {
        "frozen", "feature_extraction", "bias_only", "adapters", "adapters_tutorial", "lora",
        "ia3", "dora", "parallel_adapters", "gated_prefix", "pals",
    }  # fmt: skip


def test_each_preset_brings_its_own_rate():
    # At width 384, where they were settled.
    rates = {name: round(base_lr(preset(name)[0].optimizer.lr, 384), 9) for name in PRESETS}

    assert {name: rate for name, rate in rates.items() if rate != 1e-4} == {
        "adapters": 2e-3,
        "adapters_tutorial": 1e-3,
        "bias_only": 3e-3,
        "chain_thaw": 1e-3,
        "discriminative": 3e-4,
        "dora": 2e-3,
        "feature_extraction": 3e-3,
        "frozen": 3e-3,
        "gated_prefix": 3e-2,
        "gradual_unfreezing": 3e-4,
        "gradual_unfreezing_tutorial": 3e-4,
        "ia3": 3e-2,
        "lora": 2e-3,
        "pals": 1e-3,
        "parallel_adapters": 2e-3,
        "sequential_unfreezing": 3e-4,
        "siatl": 3e-4,
        "top_k": 3e-4,
        "ulmfit": 3e-3,
    }  # fmt: skip


def rate(*overrides, command="finetune"):
    return composed(command, *overrides).optimizer.lr


def test_a_rate_that_is_typed_or_of_an_experiment_wins_over_that_of_the_preset():
    assert rate("adaptation=lora", "optimizer.lr=2e-5") == 2e-5
    assert rate("optimizer.lr=2e-5", "adaptation=lora") == 2e-5
    assert rate("experiment=sample/finetune", "adaptation=lora") == 1e-3
    assert rate("experiment=tutorial/adapters") == 6.5e-4
    assert rate("experiment=tutorial/unfreezing") == 6.5e-5


def test_the_rate_of_a_preset_does_not_depend_on_what_replaces_its_parts():
    expected = rate("adaptation=lora")

    assert rate("adaptation=lora", "adaptation/plan=gradual_unfreezing") == expected
    assert rate("adaptation=lora", "adaptation/edits=[adapters]") == expected
    assert rate("adaptation=lora", "optimizer=muon") == expected


def test_pretraining_has_the_rate_of_its_optimizer_under_every_preset():
    for name in ("full", "lora", "ulmfit"):
        assert rate(f"adaptation={name}", command="pretrain") == 2.5e-4
        assert rate(f"adaptation={name}", "optimizer=muon", command="pretrain") == 4e-3


def test_a_preset_of_ones_own_has_the_rate_of_what_it_extends_or_its_own(tmp_path):
    (tmp_path / "adaptation").mkdir()
    extends = "defaults: [lora, {override plan: top_k}, _self_]\nfrozen_eval: true\n"
    (tmp_path / "adaptation" / "extends.yaml").write_text(extends)
    brings = "# @package _global_\ndefaults: [full@adaptation, _self_]\noptimizer: {lr: 0.5}\n"
    (tmp_path / "adaptation" / "brings.yaml").write_text(brings)

    def of(name):
        request = Request(overrides=(f"adaptation={name}",), config_dir=tmp_path)
        return compose.load_config("finetune", request)

    assert of("extends").optimizer.lr == rate("adaptation=lora")
    assert of("extends").adaptation.frozen_eval
    assert [*of("extends").adaptation.edits] == ["lora"]
    assert of("extends").adaptation.plan._target_.endswith(".TopBlocks")
    assert of("brings").optimizer.lr == 0.5


def test_presets_that_need_another_schedule_choose_it():
    kinds = {name: preset(name)[0].schedule._target_.rpartition(".")[2] for name in PRESETS}
    assert {name: kind for name, kind in kinds.items() if kind != "Linear"} == {
        "ulmfit": "Slanted", "chain_thaw": "Constant",
    }  # fmt: skip


def test_presets_that_add_losses_name_and_weigh_them():
    def losses(name):
        return preset(name)[0].losses

    assert losses("lm_auxiliary").lm.weight == 0.5
    assert losses("siatl").lm.weight == {
        "_target_": "transfer_cli.optim.loss_weight.Annealed",
        "start": 0.2, "end": 0.1, "over": "15 epochs",
    }  # fmt: skip
    assert losses("source_distillation").source._target_.endswith(".SourceDistillation")
    assert losses("multitask").second.stream == "second"
    assert not any(losses(name) for name in ("full", "ulmfit", "l2_sp", "ewc"))
    for name in PRESETS:
        for loss, node in losses(name).items():
            assert build(objective_options(node, loss), loss, Objective) is not None


def test_presets_of_unlabelled_texts_read_them_in_each_step_of_the_main_stream():
    for name in ("distil", "self_training", "uda", "cvt"):
        config, made = preset(name)

        assert config.streams.rest["with"] == "main"
        assert config.streams.rest.data._target_.endswith(".Rest")
        assert config.losses.rest.stream == "rest"
        assert made.teachers == (("RUN",) if name in ("distil", "self_training") else ())
    assert preset("distil")[0].losses.teacher.teachers == ["RUN"]
    assert preset("distil")[0].objective.weight == preset("distil")[0].losses.teacher.weight == 0.5


def test_multi_task_brings_a_stream_of_text():
    config, _ = preset("multitask")

    assert config.streams.second.data.name == "wikitext-2"
    assert config.mixing.power == 0.5


def test_the_tutorials_runs_have_their_published_settings():
    def settings(name):
        config = composed("finetune", f"experiment=tutorial/{name}")
        loop = config.loop
        return config.optimizer.lr, loop.epochs, loop.batch, loop.clip, config.schedule.warmup

    assert settings("full") == (6.5e-5, 3, 16, 1.0, 10)
    assert settings("adapters") == (6.5e-4, 3, 16, 1.0, 10)
    assert settings("unfreezing") == (6.5e-5, 3, 16, 1.0, 10)
    assert settings("discriminative") == (6.5e-5, 3, 16, 1.0, 10)
    assert settings("multitask") == (6.5e-5, 6, 16, 1.0, 10)
    for objective in ("clm", "mlm"):
        config = composed("pretrain", f"experiment=tutorial/pretrain_{objective}")
        assert (config.optimizer.lr, config.schedule.warmup, config.loop.batch) == (
            2.5e-4,
            1000,
            64,
        )
        assert (config.model.width, config.model.depth) == (410, 16)


def test_an_experiment_composes_with_the_command_in_its_name():
    for name in EXPERIMENTS:
        last = name.rpartition("/")[2]
        command = "pretrain" if last.startswith("pretrain") else "finetune"
        check_config(composed(command, f"experiment={name}"), command)


def test_the_defaults_are_the_real_job():
    pretrain, finetune = composed("pretrain"), composed("finetune")

    assert pretrain.data.name == "wikitext-103"
    assert pretrain.objective._target_.endswith(".CausalLM")
    assert finetune.data._target_.endswith(".Trec")
    assert not finetune.data.fine
    assert finetune.adaptation.plan._target_.endswith(".AllAtOnce")
    assert finetune.model is None
    assert finetune.tokenizer._target_.endswith(".Inherited")


@pytest.mark.parametrize("preset", SWEEPS)
def test_a_sweep_composes_and_sweeps_keys_that_there_are(preset):
    command = "pretrain" if preset == "ladder" else "finetune"
    config = composed(command, f"sweep={preset}")
    check_config(config, command)

    file = conf_dir() / "sweep" / f"{preset}.yaml"
    swept = OmegaConf.load(file).sweep.over
    assert swept
    for key in swept:
        assert OmegaConf.select(config, key, default="none") != "none", key
    for word in config.sweep.published:
        key, _, value = word.partition("=")
        assert value in swept[key].split(","), word
