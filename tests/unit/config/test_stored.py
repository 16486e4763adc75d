"""The config of a run directory, which may come from a stranger."""

import copy
import json
import os

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.fuzzing import ODD_VALUES, altered, damaged, fuzz, memory_up_to, tried
from transfer_cli.config.bounded_yaml import MAX_CONFIG_BYTES, check_file_sizes, check_size
from transfer_cli.config.flat import flat_items
from transfer_cli.config.plain_yaml import read_plain, scalar
from transfer_cli.config.schema import COMMANDS
from transfer_cli.config.stored import _escaped, as_yaml, read_stored
from transfer_cli.errors import CheckpointError, ConfigError
from transfer_cli.safe_files import UnreadableError

PLAIN = {
    "seed": 3,
    "data": {"_target_": "transfer_cli.data.known_texts.SampleText", "length": 32},
    "objective": {"_target_": "transfer_cli.objectives.causal_lm.CausalLM"},
    "optimizer": {"_target_": "torch.optim.AdamW", "lr": 1e-4},
    "schedule": {"_target_": "transfer_cli.optim.schedules.Constant"},
    "adaptation": {"_target_": "transfer_cli.adaptation.adaptation.Adaptation", "edits": {}},
    "loop": {"epochs": 0.5, "evaluate_every": "3 steps"},
    "streams": {"second": {"data": {"_target_": "transfer_cli.data.known_texts.SampleText"}}},
}

LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
"""Some hundred characters that stand for 10^11 values."""


@pytest.fixture
def stored(tmp_path):
    """Return how to store a text, or values, as the config of a run, and read it."""

    def read(content, command="pretrain"):
        path = tmp_path / "config.yaml"
        text = content if isinstance(content, str) else yaml.safe_dump(content)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return read_stored(path, command, "run")

    return read


def changed(key, value):
    """Return the plain config with another value at `key`."""
    plain = copy.deepcopy(PLAIN)
    *parents, name = key.split(".")
    node = plain
    for parent in parents:
        node = node.setdefault(parent, {})
    node[name] = value
    return plain


# ------------------------------------------------------------------------------- as written


def written():
    return as_yaml(OmegaConf.merge(OmegaConf.structured(COMMANDS["pretrain"]), PLAIN))


def test_a_config_is_read_as_it_was_written(stored):
    again = stored(written())

    assert as_yaml(again) == written()
    assert again.optimizer.lr == 1e-4
    assert isinstance(again.optimizer.lr, float)


@settings(max_examples=50)
@example("\x85")
@example("a\u2028 b")
@given(
    (st.text(st.characters(codec="utf-8", exclude_characters="\0")) | st.text("\\${}:a.,'\"\n "))
    .filter(lambda text: text != "???")  # which stands for a value that has to be given
)  # fmt: skip
def test_no_text_means_anything_but_itself(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("stored") / "config.yaml"
    config = OmegaConf.create(changed("run.root", ""))
    config.run.root = _escaped(text)
    assert config.run.root == text

    path.write_text(as_yaml(config), newline="")

    assert read_stored(path, "pretrain", "run").run.root == text


def test_a_flipped_bit_is_noticed_whatever_it_makes_of_a_value(stored):
    whole = written()

    for place in range(len(whole)):
        text = f"{whole[:place]}{chr(ord(whole[place]) ^ 1 << place % 4)}{whole[place + 1 :]}"
        try:
            restored = stored(text)
        except CheckpointError:
            continue
        assert as_yaml(restored) == whole, place  # of the word that says what the hash is


def test_a_config_that_was_changed_on_purpose_is_read_without_its_hash(stored):
    text = written().replace("batch: 32", "batch: 33")

    with pytest.raises(CheckpointError, match=r"not what was written.* remove its last line"):
        stored(text)
    assert stored(text.rpartition("# hash")[0]).loop.batch == 33


def test_an_interpolation_is_text(stored, monkeypatch):
    monkeypatch.setenv("SECRET", "of this machine")
    opened = []
    OmegaConf.register_new_resolver("opens", lambda name: opened.append(name) or "", replace=True)

    config = stored(changed("data.train", ["${oc.env:SECRET}", "${opens:x}", "${seed}", "${"]))

    assert OmegaConf.to_container(config.data.train, resolve=True) == [
        "${oc.env:SECRET}", "${opens:x}", "${seed}", "${",
    ]  # fmt: skip
    assert "of this machine" not in as_yaml(config)
    assert opened == []


def test_what_is_new_has_its_default_and_an_unknown_command_all_keys(stored):
    assert stored(PLAIN).loop.batch == 32
    assert stored(changed("init", "scratch"), "an unknown command").init == "scratch"


def test_a_config_that_lacks_a_part_is_refused(stored):
    without = {name: node for name, node in PLAIN.items() if name != "objective"}

    with pytest.raises(CheckpointError, match="objective has no value"):
        stored(without)


# ---------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "it is no mapping"),
        ("- a", "it is no mapping"),
        ("a: [1\nb: 2", "line 2: broken YAML: "),
        ("a: 1\nb: '\0'", "line 2 holds a NUL byte"),
        ("a: 1\nb: \udcff", "line 2 is not UTF-8"),
        ("a: \x07", "unacceptable character"),
        ("a: 1\na: 2", "line 2: broken YAML: found duplicate key a"),
        ("a: &x 1\nb: 1", "line 1: an anchor or an alias; write the values out"),
        ("a: *x", "line 1: an anchor or an alias"),
        (LAUGHS, "an anchor or an alias"),
        ("a: &x [*x]", "an anchor or an alias"),
        ("a: " + "[" * 100_000, "nested deeper than 50 levels"),
        ("{" * 100_000, "nested deeper than 50 levels"),
        ("a: !!python/object/apply:os.system [true]", "the tag 'tag:yaml.org,2002:python/object/"),
        ("a: !!binary aGVsbG8=", "the tag"),
        ("1: a", "the name 1 is no text"),
        ("? [a]\n: b", "the name ['a'] is no text"),
        (f"seed: 0x{'F' * 5000}", "could not be converted to Integer"),
        (f"seed: {'9' * 5000}", "could not be converted to Integer"),
        ("seed: 1\n---\nseed: 2", "a second document"),
        ("a: 1\n" * 300_000, "larger than 1,024 KiB"),
        ("a: [" + "1," * 150_000 + "]", "more than 100,000 values"),
    ],
)
def test_what_no_run_writes_is_refused(stored, content, message):
    with memory_up_to(2**24), pytest.raises(CheckpointError) as caught:
        stored(content)

    assert str(caught.value).startswith("run: ")
    assert "config.yaml is no config of pretrain: " in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", "a", "Value 'a' of type 'str' could not be converted to Integer"),
        ("seed", "???", "which stands for none"),
        ("data", ["a"], "data is no mapping"),
        ("adaptation", None, "adaptation is no mapping"),
        ("adaptation.edits", "lora", "adaptation.edits is no mapping"),
        ("adaptation.edits", {"lora": 3}, "adaptation.edits.lora is no mapping"),
        ("streams.second", 3, "streams.second is no mapping"),
        ("streams", "${oc.env:HOME}", "streams is no mapping"),
        ("loop", "${oc.env:HOME}", "not a subclass of LoopConfig"),
        ("seed", "${oc.env:HOME}", "could not be converted to Integer"),
        ("loop.epochs", "${oc.env:HOME}", "could not be converted to Float"),
        ("lop", {}, "Key 'lop' not in 'PretrainConfig'"),
    ],
)
def test_a_value_of_another_kind_is_refused(stored, key, value, message):
    with pytest.raises(CheckpointError, match=message):
        stored(changed(key, value))


def test_an_enormous_config_is_refused_without_being_read_whole(stored, tmp_path):
    path = tmp_path / "config.yaml"
    with path.open("wb") as file:
        file.truncate(2**31)

    with memory_up_to(4 * MAX_CONFIG_BYTES), pytest.raises(CheckpointError, match="larger than"):
        read_stored(path, "pretrain", "run")


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_refused_instead_of_waited_for(tmp_path, make):
    make(tmp_path / "config.yaml")

    with pytest.raises(CheckpointError, match="expected a plain file"):
        read_stored(tmp_path / "config.yaml", "pretrain", "run")


@pytest.mark.slow
@fuzz(150)
@given(data=st.data())
def test_fuzz_stored_configs(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fuzz") / "config.yaml"
    text = yaml.safe_dump(PLAIN).encode()
    values = altered(PLAIN).map(lambda config: yaml.safe_dump(config).encode("utf-8", "replace"))
    path.write_bytes(data.draw(values | damaged(text)))
    tried(lambda: as_yaml(read_stored(path, "pretrain", "run")), CheckpointError)


# ------------------------------------------------------------------------ the user's own YAML


def test_aliases_are_welcome_in_configs_of_ones_own():
    check_size("a: &x {b: 1, c: [1, 2]}\nd: *x\ne: {<<: *x, b: 2}\nf: [*x, *x]")


def test_a_folder_with_an_explosive_config_is_refused_by_its_name(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "bomb.yaml").write_text(LAUGHS)

    with memory_up_to(2**24), pytest.raises(ConfigError) as caught:
        check_file_sizes(tmp_path)

    assert str(caught.value) == (
        f"--config-dir: {tmp_path}/model/bomb.yaml cannot be a config: line 6: more than 100,000 "
        "values, its aliases written out. Take it out of the folder"
    )


def test_a_folder_with_other_mistakes_is_left_to_whoever_uses_them(tmp_path):
    (tmp_path / "broken.yaml").write_text("a: [1")
    (tmp_path / "latin.yaml").write_bytes(b"a: caf\xe9")
    (tmp_path / "nul.yaml").write_bytes(b"a: \0")
    (tmp_path / "gone.yaml").symlink_to("nowhere")
    os.mkfifo(tmp_path / "pipe.yaml")

    check_file_sizes(tmp_path)


@fuzz(200)
@given(content=damaged(LAUGHS.encode()) | damaged(json.dumps(ODD_VALUES).encode()))
def test_fuzz_sizes_of_yaml(content):
    try:
        check_size(content.decode("utf-8", "replace"))
    except (UnreadableError, yaml.YAMLError):
        return


# --- plain yaml ----------------------------------------------------------------------------------


def read(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    return dict(flat_items(read_plain(path)))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optimizer:\n  lr: 1e-3\n  betas: [0.9, 0.999]\nseed: 3\nlosses: {}\n",
         {"optimizer.lr": 0.001, "optimizer.betas": [0.9, 0.999], "seed": 3}),
        ("a: ${oc.env:HOME}\nb: ???\n", {"a": "${oc.env:HOME}", "b": "???"}),
        # As another program writes it.
        ("data:\n  train:\n  - a.txt\n  - b.txt\nmodel:\n  width: 64\n",
         {"data.train": ["a.txt", "b.txt"], "model.width": 64}),
    ],
)  # fmt: skip
def test_keys_are_dotted_lists_are_values_and_nothing_is_filled_in(tmp_path, text, values):
    assert read(tmp_path, text) == values


WORDS = (
    "1e-4", "12:30", "yes", "no", "null", "~", "0x10", "1_000", "true", "", "-", "a: b", "1.0",
    ".5",
)  # fmt: skip


def test_a_text_that_looks_like_something_else_stays_a_text(tmp_path):
    config = {f"key_{number}": word for number, word in enumerate(WORDS)}

    assert read(tmp_path, as_yaml(OmegaConf.create(config))) == config


@given(st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | st.booleans() | st.none())
def test_what_a_run_writes_is_read_back(tmp_path_factory, value):
    text = as_yaml(OmegaConf.create({"a": {"b": value}}))

    assert read(tmp_path_factory.mktemp("config"), text) == {"a.b": value}


def test_a_word_of_the_command_line_is_read_alike():
    assert [scalar(word) for word in ("1e-3", "2", "null", "true", "lora")] == [
        0.001, 2, None, True, "lora",
    ]  # fmt: skip


def test_nested_values_are_found_by_their_full_keys_and_lists_stay_whole():
    nested = {"seed": 0, "loop": {1: 8, "empty": {}}, "betas": [0.9, {"a": 1}], "none": None}

    assert list(flat_items(nested, "run.")) == [
        ("run.seed", 0), ("run.loop.1", 8), ("run.betas", [0.9, {"a": 1}]), ("run.none", None),
    ]  # fmt: skip
