import json
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from tests.scripting import imported
from transfer_cli.config import compose
from transfer_cli.config.check import check
from transfer_cli.config.flags import Request
from transfer_cli.config.locate import conf_dir


@pytest.fixture(scope="module")
def script():
    with imported("recipe_ablation") as module:
        yield module


@pytest.fixture
def setting(script, tmp_path):
    return script.Setting(tmp_path, Path("/data, too"), steps=500, share=0.25)


def composed(words):
    config = compose.compose("pretrain", Request(overrides=tuple(words)))
    check(config, "pretrain")
    return config


def finished(folder, loss, steps, cpu_s):
    folder.mkdir(parents=True)
    results = {"measures": {"validation": {"loss": loss}}, "seen": {"steps": steps}}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "cpu.json").write_text(str(cpu_s))


def test_every_variant_is_given_each_key_once_in_words_that_hydra_reads(script, setting):
    for variant in script.VARIANTS:
        words = script.overrides(variant, 1, setting)
        read = OverridesParser.create().parse_overrides(words)

        assert len({override.key_or_group for override in read}) == len(words), variant


@pytest.mark.slow
def test_each_variant_differs_from_the_reference_in_one_part(script, setting):
    reference = composed(script.overrides(script.REFERENCE, 0, setting))
    assert reference.optimizer._target_.endswith(".MuonWithAdamW")
    assert (reference.model.residual, reference.loop.steps) == ("pre", 125)

    for variant, (is_whole, _) in script.VARIANTS.items():
        if is_whole or variant == script.REFERENCE:
            continue
        config = composed(script.overrides(variant, 0, setting))
        other = {key for key in reference if config[key] != reference[key]} - {"run"}
        assert len(other) == (2 if variant == "recipe" else 1), variant


def test_the_recipe_is_the_preset(script, setting):
    assert script.VARIANTS["recipe"] == (False, ("experiment=recipe/clm",))
    assert composed(script.overrides("recipe", 0, setting)).optimizer.betas == [0.9, 0.999]


def test_the_tutorials_variants_have_its_form_and_all_steps(script, setting):
    variants = [name for name in script.VARIANTS if name.startswith("tutorial")]
    rates = set()
    for variant in variants:
        config = composed(script.overrides(variant, 0, setting))
        assert config.loop.steps == 500
        assert (config.model.residual, config.model.activation) == ("tutorial", "relu")
        assert config.optimizer.betas == [0.9, 0.999]
        rates.add(config.optimizer.lr)
    assert len(rates) == len(variants) == 3


def test_all_see_the_same_number_of_tokens_a_step(script, setting):
    for variant in script.VARIANTS:
        words = script.overrides(variant, 0, setting)
        assert {"loop.batch=16", "data.length=128"} <= set(words), variant


def test_validation_is_shortened_and_training_is_not(script, tmp_path):
    for part, lines in (("train", 50), ("valid", 40), ("test", 40)):
        file = tmp_path / "data" / "wikitext-2" / f"{part}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"line {n}\n" for n in range(lines)))

    made = script.shortened(tmp_path / "data", tmp_path / "out", lines=20) / "wikitext-2"

    lines = {part: len((made / f"{part}.txt").read_text().splitlines()) for part in
             ("train", "valid", "test")}  # fmt: skip
    assert lines == {"train": 50, "valid": 20, "test": 2}


def test_the_table_compares_with_the_reference(script, setting, capsys, tmp_path):
    tutorial, reference, relu = "tutorial, rate 5e-4", script.REFERENCE, "ReLU for GELU"
    finished(script.folder_of(tutorial, 0, setting), 5.5, 500, 300.2)
    finished(script.folder_of(reference, 0, setting), 5.25, 125, 100.4)
    finished(script.folder_of(relu, 0, setting), 5.125, 125, 99.6)
    for part in ("train", "valid", "test"):
        file = tmp_path / "wikitext-2" / f"{part}.txt"
        file.parent.mkdir(exist_ok=True)
        file.touch()

    words = [str(tmp_path), "--data-dir", str(tmp_path), "--variants", tutorial, reference, relu]
    assert script.main(words) == 0

    assert capsys.readouterr().out.splitlines()[2:] == [
        "| tutorial, rate 5e-4 | 500 | 5.500 | +0.250 | 300 |",
        "| reference | 125 | 5.250 |  | 100 |",
        "| ReLU for GELU | 125 | 5.125 | -0.125 | 100 |",
    ]


def test_the_preset_leaves_data_and_sizes_to_others():
    found = (conf_dir() / "experiment" / "recipe" / "clm.yaml").read_text()

    assert "/data" not in found
    config = composed(["experiment=recipe/clm", "model=small", "data=wikitext2", "loop.steps=9"])
    assert (config.model.width, config.data.name) == (256, "wikitext-2")
    assert config.optimizer._target_ == "transfer_cli.optim.muon.MuonWithAdamW"
    assert config.schedule._target_.endswith(".Trapezoid")


def test_another_schedule_or_optimizer_can_be_chosen_with_the_preset():
    words = ["experiment=recipe/clm", "schedule=linear", "optimizer=adamw", "loop.steps=9"]
    config = composed(words)
    assert config.schedule._target_.endswith(".Linear")
    assert config.optimizer.lr == 2.5e-4
