"""The JSON schema by which an editor checks files of keys."""

import json

import pytest
import yaml

from transfer_cli.commands.presets import presets
from transfer_cli.config.describe import options
from transfer_cli.config.editor_schema import editor_schema
from transfer_cli.config.plain_yaml import scalar

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


def test_presets_print_it_with_options_of_ones_own(own, capsys):
    presets(["--schema", "--config-dir", str(own)])

    printed = json.loads(capsys.readouterr().out)
    assert printed == editor_schema(own)
    assert "huge" in printed["definitions"]["model"]["anyOf"][0]["enum"]


def test_a_class_of_a_package_may_take_more(own):
    (own / "data").mkdir()
    (own / "data" / "mine.yaml").write_text("# Mine\n_target_: mylab.data.Mine\ntrain: null\n")

    made = editor_schema(own)

    mine = made["definitions"]["data"]["anyOf"][-1]["properties"]["mine"]
    assert mine == {"type": "object", "description": "Mine"}
