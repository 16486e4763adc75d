"""Tests of files of keys: what they say, as words of a shell."""

import pytest
from omegaconf import OmegaConf

from transfer_cli.config.commands import ALL
from transfer_cli.config.compose import composed
from transfer_cli.config.flags import parse
from transfer_cli.config.key_files import with_files
from transfer_cli.errors import ConfigError


def request_of(*typed, command="finetune"):
    return with_files(command, ALL[command], parse(list(map(str, typed)), command))


def config_of(*typed, command="finetune"):
    return composed(command, request_of(*typed, command=command)).config


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


def test_what_is_typed_wins(write):
    file = write(
        "adaptation: {edits: {lora: {rank: 4}}}\nloop.steps: 7\nseed: 1\n"
        "schedule: {cosine: {floor: 0.1}}"
    )

    typed = ("seed=2", "schedule=linear", "adaptation.edits.lora.rank=2")
    assert config_of(*typed, file) == config_of("adaptation/edits=[lora]", "loop.steps=7", *typed)
    assert config_of("--config", file, "seed=2").seed == 2


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "my.yaml"),
        ("- a", "my.yaml"),
        ("a: [1", "line 2"),
        ("seed: 1\nseed: 2", "duplicate"),
        ("lopp: {steps: 1}", "lopp.steps"),
        ("adaptation: lorra", "adaptation=lorra"),
        ("data: {_target_: os.system}", "my.yaml"),
    ],
)
def test_a_file_that_is_none_ends_in_a_line(write, text, key):
    with pytest.raises(ConfigError, match=key):
        config_of(write(text))


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match=r"gone\.yaml"):
        request_of("gone.yaml")


OWN = {
    "edits: [lora]\nplan: gradual_unfreezing\npenalty: l2_sp": (),
    "edits: {lora: {rank: 4}}\nplan: gradual_unfreezing\npenalty: l2_sp\noptimizer: {lr: 1e-3}\n"
    "losses: {lm: {objective: clm, weight: 0.2}}": (
        "adaptation.edits.lora.rank=4", "optimizer.lr=1e-3", "+objective@losses.lm=clm",
        "losses.lm.weight=0.2",
    ),
    "defaults:\n- full\n- override /adaptation/edits: [lora]\n"
    "- override /adaptation/plan: gradual_unfreezing\n- override /adaptation/penalty: l2_sp": (),
}  # fmt: skip


@pytest.mark.parametrize(("text", "words"), OWN.items())
def test_a_scheme_of_ones_own_is_plain(write, text, words):
    folder = write(text, "own/adaptation/mix.yaml").parents[1]

    mixed = config_of("--config-dir", folder, "adaptation=mix")

    assert mixed == config_of(
        "adaptation/edits=[lora]", "adaptation/plan=gradual_unfreezing",
        "adaptation/penalty=l2_sp", *words,
    )  # fmt: skip


def test_an_experiment_of_ones_own_is_plain(write):
    text = "adaptation: lora\ndata: sample_questions\nloop: {steps: 7}\n"
    text += "schedule: {linear: {warmup: 0.2}}"
    folder = write(text, "own/experiment/mine.yaml").parents[1]

    mine = config_of("--config-dir", folder, "experiment=mine")

    words = ("adaptation=lora", "data=sample_questions", "loop.steps=7", "schedule=linear")
    assert OmegaConf.merge(mine, {"experiment": None}) == config_of(*words, "schedule.warmup=0.2")
