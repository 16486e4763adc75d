"""Tests of files of keys: what they say, as words of a shell."""

import json
import shlex

import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

from transfer_cli.commands.presets import init, presets
from transfer_cli.config.check import check_config
from transfer_cli.config.commands import ALL
from transfer_cli.config.compose import compose
from transfer_cli.config.describe import options
from transfer_cli.config.editor_schema import editor_schema
from transfer_cli.config.flags import parse_request
from transfer_cli.config.key_files import for_hydra, swept_words, with_key_files
from transfer_cli.config.plain_yaml import read_mapping, scalar
from transfer_cli.errors import ConfigError


def request_of(*typed, command="finetune"):
    return with_key_files(command, ALL[command], parse_request(list(map(str, typed)), command))


def config_of(*typed, command="finetune"):
    return compose(command, request_of(*typed, command=command)).config


@pytest.fixture
def write(tmp_path):
    def written(text, name="my.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return written


SAME = {
    "adaptation: {edits: [lora], plan: gradual_unfreezing}\nloop.steps: 7\noptimizer: {lr: 1e-3}": (
        "adaptation/edits=[lora]", "adaptation/plan=gradual_unfreezing", "loop.steps=7",
        "optimizer.lr=1e-3",
    ),
    "adaptation: {edits: {lora: {rank: 4}, scalar_mix: {}}}": (
        "adaptation/edits=[lora,scalar_mix]", "adaptation.edits.lora.rank=4",
    ),
    "experiment: sample/finetune\nadaptation: lora\nadaptation.edits.lora.rank: 4": (
        "experiment=sample/finetune", "adaptation=lora", "adaptation.edits.lora.rank=4",
    ),
    "data: {train: 'a, b.csv', label: \"it's\"}": (
        "data=table", "data.train='a, b.csv'", "data.label='it\\'s'",
    ),
    "data: {conll: {train: a.conll}}\nobjective: {tagging: {dropout: 0.0}}": (
        "data=conll", "data.train=a.conll", "objective=tagging", "objective.dropout=0.0",
    ),
    "losses: {lm: clm, two: {objective: mlm, weight: 0.2, stream: w}}\n"
    "streams: {w: {data: {text: {train: a.txt}}, batch: 8}}": (
        "+objective@losses.lm=clm", "+objective@losses.two=mlm", "losses.two.weight=0.2",
        "+losses.two.stream=w", "+data@streams.w.data=text", "streams.w.data.train=a.txt",
        "+streams.w.batch=8",
    ),
    "adaptation: siatl\nlosses: {lm: mlm}\nforgetting: {data: source}": (
        "adaptation=siatl", "objective@losses.lm=mlm", "forgetting.data=source",
    ),
    "schedule: {linear: {warmup: 0.2}}\nadaptation: {penalty: l2_sp}\nsource: {data: wikitext2}": (
        "schedule=linear", "schedule.warmup=0.2", "adaptation/penalty=l2_sp",
        "data@source.data=wikitext2",
    ),
    "adaptation: {full: {penalty: null}}": ("adaptation=full", "~adaptation/penalty"),
    "tokenizer: {add: ['<a>', 'b c']}\ndata: table\ndata.train: a.csv": (
        "tokenizer.add=['<a>','b c']", "data=table", "data.train=a.csv",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), SAME.items())
def test_a_file_means_the_same_as_the_words(write, text, words):
    assert config_of(write(text)) == config_of(*words)


def test_names_in_a_mapping_are_texts_and_numbers_may_be_those_of_numpy():
    given = {"objective": {"class_weight": {0: np.float64(2), 1.5: 1, True: 3}}}
    request = with_key_files("finetune", ALL["finetune"], parse_request([], "finetune"), given)

    config = compose("finetune", request).config
    assert config.objective.class_weight == {"0": 2, "1.5": 1, "true": 3}
    assert swept_words("finetune", {"seed": np.arange(2)}) == ["seed=0,1"]


def test_a_text_may_say_true_or_false_where_a_key_takes_other_words(write):
    config = config_of(write("loop: {compile: 'false', cuda_graphs: off}"))
    check_config(config, "finetune")
    assert (config.loop.compile, config.loop.cuda_graphs) == (False, False)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["adaptation.plan=gradual_unfreezing"], ["adaptation/plan=gradual_unfreezing"]),
        (["adaptation.edits=lora"], ["adaptation/edits=[lora]"]),
        (["edits=[lora,scalar_mix]"], ["adaptation/edits=[lora,scalar_mix]"]),
        (["losses.lm=clm"], ["+objective@losses.lm=clm"]),
        (["adaptation=siatl", "losses.lm=mlm"], ["adaptation=siatl", "objective@losses.lm=mlm"]),
        (["forgetting.data=wikitext2"], ["data@forgetting.data=wikitext2"]),
    ],
)
def test_a_dot_is_a_slash_where_it_can_mean_nothing_else(typed, words):
    assert config_of(*typed) == config_of(*words)


@pytest.mark.parametrize("words", [["plan.steps=3"], ["adaptation.plan=nonsense"], ["seed=1"]])
def test_other_words_stay_as_they_are(words):
    assert request_of(*words).overrides == tuple(words)


def test_a_preset_of_a_sweep_in_a_file_sweeps(write):
    file = write("sweep: lr")

    assert request_of(file).multirun
    assert request_of(write("sweep: {over: {seed: '0,1'}}", "over.yaml")).multirun
    assert not request_of(file, "--job", "reason").multirun


def test_what_is_typed_wins(write):
    file = write(
        "adaptation: {edits: {lora: {rank: 4}}}\nloop.steps: 7\nseed: 1\n"
        "schedule: {cosine: {floor: 0.1}}"
    )

    typed = ("seed=2", "schedule=linear", "adaptation.edits.lora.rank=2")
    assert config_of(*typed, file) == config_of("adaptation/edits=[lora]", "loop.steps=7", *typed)
    assert config_of("--config", file, "seed=2").seed == 2
    assert config_of(file, "adaptation=full") == config_of(
        "adaptation=full", "loop.steps=7", "seed=1", "schedule=cosine", "schedule.floor=0.1"
    )


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "my.yaml"),
        ("- a", "my.yaml"),
        ("a: [1", "line 2"),
        ("seed: 1\nseed: 2", "duplicate"),
        ("lopp: {steps: 1}", "lopp.steps"),
        ("adaptation: lorra", "adaptation=lorra"),
        *((text, f"^{text[:5]}") for text in ("model: {}", "sweep: {}", "optimizer:", "loop:")),
        ("adaptation: {lora: {}, store: trained}", r"'adaptation=lora'"),
        ("data: {_target_: os.system}", "my.yaml"),
    ],
)
def test_a_file_that_is_none_ends_in_a_line(write, text, key):
    with pytest.raises(ConfigError, match=key):
        config_of(write(text))


def test_what_was_typed_for_a_run_and_is_wrong_by_now_ends_in_a_line(write):
    write("nonsense.key=3\n", "run/overrides.txt")

    with pytest.raises(ConfigError, match=r"overrides\.txt: nonsense\.key"):
        request_of(write("seed: 1", "run/config.yaml"))


def test_a_job_of_a_sweep_is_repeated_alone_whoever_typed_its_words(write):
    write("sweep=ladder\nmodel.depth=3\nsweep.workers=2\nhydra/launcher=submitit_slurm\n"
          "hydra.launcher.setup=[touch]\nhydra={mode:MULTIRUN}\n", "run/overrides.txt")  # fmt: skip
    request = request_of(write("sweep: {workers: 2}", "run/config.yaml"), command="pretrain")

    assert (request.overrides, request.multirun) == (("model=dial", "model.depth=3"), False)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        request_of("gone.yaml")


MIXED = (
    "adaptation/edits=[lora]",
    "adaptation/plan=gradual_unfreezing",
    "adaptation/penalty=l2_sp",
)
OWN = {
    "edits: [lora]\nplan: gradual_unfreezing\npenalty: l2_sp": MIXED,
    "edits: {lora: {rank: 4}}\nplan: gradual_unfreezing\npenalty: l2_sp\noptimizer: {lr: 1e-3}\n"
    "losses: {lm: {objective: clm, weight: 0.2}}": (
        *MIXED, "adaptation.edits.lora.rank=4", "optimizer.lr=1e-3", "+objective@losses.lm=clm",
        "losses.lm.weight=0.2",
    ),
    "defaults:\n- full\n- override /adaptation/edits: [lora]\n"
    "- override /adaptation/plan: gradual_unfreezing\n- override /adaptation/penalty: l2_sp": MIXED,
    **dict.fromkeys(
        [f"plan: all\n{left_out}"
         for left_out in ("penalty: null", "penalty: {}", "edits: null", "edits: {}")],
        ("adaptation=full", "adaptation/plan=all"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), OWN.items())
def test_a_scheme_of_ones_own_is_plain(write, text, words):
    folder = write(text, "own/adaptation/mix.yaml").parents[1]

    assert config_of("--config-dir", folder, "adaptation=mix") == config_of(*words)


def test_an_experiment_of_ones_own_is_plain(write):
    text = "adaptation: lora\ndata: sample_questions\nloop: {steps: 7}\n"
    text += "schedule: {linear: {warmup: 0.2}}"
    folder = write(text, "own/experiment/mine.yaml").parents[1]

    mine = config_of("--config-dir", folder, "experiment=mine")

    words = ("adaptation=lora", "data=sample_questions", "loop.steps=7", "schedule=linear")
    assert OmegaConf.merge(mine, {"experiment": None}) == config_of(*words, "schedule.warmup=0.2")


# --- what was typed, as a file -----------------------------------------------------------------

TYPED = (
    "finetune experiment=quick data=table data.train=a.csv init_from=minilm optimizer.lr=1e-3",
    "transfer finetune init_from=hf:owner/name seed=3 run.dir='runs/a b' loop.epochs=null",
    "finetune adaptation=lora adaptation.edits.lora.rank=4 adaptation/penalty=l2_sp",
    "finetune 'adaptation/edits=[lora,scalar_mix]' adaptation.edits.scalar_mix.norm=true",
    "finetune 'adaptation/edits=[lora]' adaptation/plan=gradual_unfreezing adaptation.store=all",
    "finetune adaptation=full '~adaptation/penalty' schedule=linear schedule.warmup=0.2",
    "finetune +objective@losses.lm=clm losses.lm.weight=0.2 +losses.lm.stream=w"
    " +data@streams.w.data=text streams.w.data.train=a.txt +streams.w.batch=8",
    "finetune adaptation=siatl objective@losses.lm=mlm data@source.data=wikitext2",
    "finetune forgetting.data=source data=conll data.train=a.conll objective=tagging",
    "finetune data=table data.train=[a.csv,b.csv] 'data.text=[a b,null]' data.label=2",
    "finetune \"data.label='it\\'s: #1'\" data=table data.train=yes init_from='1e-3'",
    "finetune tokenizer.add='[<a>,b]' data=sample_questions init_from=on",
    "finetune data.changed=accept resume=auto resume.strict=true run.dir=x",
    "finetune optimizer=sgd optimizer.lr=0.1 optimizer.momentum=0.9 objective.dropout=0.0",
    "pretrain model=tiny model.depth=6 tokenizer=bpe tokenizer.size=3 data=text data.train=a/*.txt",
    "finetune sweep=lr sweep.workers=2 data=sample_questions",
    "finetune edits=lora adaptation.plan=gradual_unfreezing losses.lm=clm",
    "finetune 'optimizer.lr=1e-4*384/width'",
    "evaluate RUN new.csv slices.short.length=[0,6]",
    "generate RUN 'Once, upon {a} ${time}' temperature=0 stop=[x,y]",
)  # fmt: skip


@pytest.mark.parametrize("line", TYPED)
def test_what_was_typed_is_read_back_as_the_same(line, tmp_path, monkeypatch, capsys, mistakes_in):
    monkeypatch.chdir(tmp_path)
    name, *words = shlex.split(line.removeprefix("transfer "))

    init(["my.yaml", "--save", line])

    text = (tmp_path / "my.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=transfer.schema.json\n")
    assert f"next: transfer {name} " in capsys.readouterr().out
    again, once = (
        compose(name, for_hydra(request_of(*typed, command=name), ALL[name])).config
        for typed in (["--config", "my.yaml"], words)
    )
    assert again == once
    assert mistakes_in(read_mapping(tmp_path / "my.yaml")) == []


def test_each_key_of_a_file_has_its_comment(tmp_path):
    init([str(tmp_path / "my.yaml"), "--save", TYPED[0]])

    lines = (tmp_path / "my.yaml").read_text().splitlines()[2:]
    assert "    train: a.csv                 # a file, folder, glob or hf:owner/name/split" in (
        line.partition(", or a list")[0] for line in lines
    )
    keys = [n for n, line in enumerate(lines) if ": " in line and not line.strip().startswith("#")]
    assert len(keys) == 4
    assert all("#" in lines[n] or lines[n - 1].lstrip().startswith("#") for n in keys)


@pytest.mark.parametrize(
    ("place", "line", "key"),
    [
        ("my.yaml", "finetune lopp.steps=1", "lopp.steps"),
        ("my.yaml", "finetune loop.steps=ten", "loop.steps"),
        ("my.yaml", "finetune seed=0,1 -m", "seed=0,1"),
        ("my.yaml", "finetune ~run.root", "~run.root"),
        ("my.yaml", "finetun seed=1", "finetun"),
        ("my.yaml", "report runs", "report"),
        ("my.yaml", "", "--save"),
        ("my.yaml", "finetune 'seed=1", "--save"),
        ("configs", "finetune seed=1", "my.yaml"),
        ("there.yaml", "finetune seed=1", "there.yaml"),
    ],
)
def test_what_no_file_can_say_writes_none(write, tmp_path, monkeypatch, place, line, key):
    write("seed: 1", "there.yaml")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match=key):
        init([place, "--save", line])

    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]


# --- the schema for an editor --------------------------------------------------------------------


TICKETS = """\
# what people write first: keys as they would be typed
experiment: sample/finetune
adaptation: lora
loop.steps: 20
"""


def plain(option):
    """Return one of our experiments and schemes as a plain file."""
    values = yaml.safe_load(option.text) or {}
    values.pop("defaults", None)
    values = {option.package: values} if option.package else values
    for group, place, names in option.choices():
        *above, last = (place or group).replace("/", ".").split(".")
        if group == option.group or place == option.group:
            continue
        inside = values
        for name in above:
            inside = inside.setdefault(name, {})
        if group == "objective" and above:
            inside, last = inside.setdefault(last, {}), "objective"
        inside[last] = list(names) if group == "adaptation/edits" else names[0]
    return read(values)


def read(values):
    """Return values as a file of keys is read: 1e-4 is a number."""
    if isinstance(values, dict):
        return {str(key): read(value) for key, value in values.items() if key != "_target_"}
    return scalar(values) if isinstance(values, str) else values


OURS = [o for o in options() if o.group in ("experiment", "adaptation", "sweep")]


@pytest.mark.parametrize("option", OURS, ids=lambda option: f"{option.group}={option.name}")
def test_what_comes_along_is_right_as_a_plain_file(option, mistakes_in):
    assert mistakes_in(plain(option)) == []


@pytest.mark.parametrize(
    "text",
    [
        TICKETS,
        "adaptation: {edits: [lora], plan: gradual_unfreezing}\noptimizer: {lr: 1.0e-3}",
        "data: {train: questions.csv}\nadaptation: {edits: {lora: {rank: 4}}, plan: new_weights}",
        "losses: {lm: {objective: clm, weight: 0.2}}\nstreams.w.data.train: a.txt",
        "losses.lm: clm\nlosses.lm.weight: {start: 0, end: 1, over: 5 epochs}\nsource: {}",
        "data: {text: a, changed: accept}\nforgetting: {data: held.txt}\nresume.strict: true",
        "optimizer: {muon: {lr: 1.0e-4*384/width}}\nadaptation.penalty: null",
        "data: {text: {train: [a.txt, b.txt]}}\nsweep: {lr: {}}\nloop.clip: null",
    ],
)
def test_what_people_write_is_right(text, mistakes_in):
    assert mistakes_in(yaml.safe_load(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "lopp: {steps: 1}",
        "loop: {stepz: 1}",
        "loop.stepz: 1",
        "loop: {steps: ten}",
        "adaptation: lorra",
        "adaptation: {edits: [lorra]}",
        "adaptation: {edits: {lora: {rnak: 4}}}",
        "data: {table: {trian: a.csv}}",
        "data: {table: {field: text}}",
        "losses: {lm: {weigth: 1}}",
        "precision: fp8",
        "optimizer: {lr: [1]}",
        "- a",
    ],
)
def test_a_mistake_is_marked(text, mistakes_in):
    assert mistakes_in(yaml.safe_load(text)) != []


def test_a_key_has_its_meaning_its_default_and_its_words(schema):
    known = schema["definitions"]

    assert known["loop.batch"] == {
        "type": "integer", "default": 32,
        "description": "Sequences that one optimizer step takes in all.",
    }  # fmt: skip
    assert known["parallel"]["enum"] == ["ddp", "fsdp"]
    names = known["adaptation"]["anyOf"][0]
    line = names["enumDescriptions"][names["enum"].index("lora")]
    assert line.startswith("LoRA: low-rank updates")


def test_presets_print_it_with_options_of_ones_own(own_folder, capsys):
    presets(["--schema", "--config-dir", str(own_folder)])

    printed = json.loads(capsys.readouterr().out)
    assert printed == editor_schema(own_folder)
    assert "huge" in printed["definitions"]["model"]["anyOf"][0]["enum"]


def test_a_class_of_a_package_may_take_more(own_folder):
    (own_folder / "data").mkdir()
    (own_folder / "data" / "mine.yaml").write_text(
        "# Mine\n_target_: mylab.data.Mine\ntrain: null\n"
    )

    made = editor_schema(own_folder)

    mine = made["definitions"]["data"]["anyOf"][-1]["properties"]["mine"]
    assert mine == {"type": "object", "description": "Mine"}
