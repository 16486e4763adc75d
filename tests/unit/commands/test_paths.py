"""Paths that were typed are looked at before anything that takes seconds to import."""

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from tests import tiny
from transfer_cli.commands.export.export import Card, _accuracy_sentence, _prune, render_card
from transfer_cli.commands.info import info
from transfer_cli.commands.paths import check_paths
from transfer_cli.commands.presets import choosing_word, copy_option, presets
from transfer_cli.config.describe import Option, options
from transfer_cli.config.models import listed_models
from transfer_cli.config.schema import ExportConfig
from transfer_cli.errors import TransferError
from transfer_cli.objectives.classification import Classification
from transfer_cli.runs.results import Results

WRONG = [
    ("finetune", ["init_from=nope"], "init_from: there is no folder nope"),
    ("finetune", ["init_from='nope'"], "init_from: there is no folder nope"),
    ("finetune", ["init_from=here/nope"], "there is no folder here/nope; name a run"),
    ("finetune", ["init_from=file.txt"], "init_from: file.txt is a file"),
    ("finetune", ["resume=nope"], "resume: there is no folder nope"),
    ("pretrain", ["data.train=nope.txt"], "nope.txt does not exist"),
    ("pretrain", ["data.train=[file.txt,nope.txt]"], "nope.txt does not exist"),
    ("evaluate", ["run=nope"], "run: there is no folder nope"),
    ("evaluate", ["output=nope/a.json"], "output: there is no folder nope"),
    ("evaluate", ["each=nope/a.jsonl"], "each: there is no folder nope"),
    ("predict", ["run=[here,nope]"], "run: there is no folder nope"),
    ("predict", ["run=here", "input=nope.csv"], "nope.csv does not exist"),
    ("export", ["run=here", "to=here"], "to: here is there already"),
    ("predict", ["run=heer"], "checkpoints. Did you mean 'here'?"),
    ("finetune", ["init_from=minilmm"], "checkpoints. Did you mean 'minilm'?"),
    ("predict", ["run=here/minilmm"], "there is no folder here/minilmm; name a run"),
    ("predict", ["run='here,here'"], "several are written as a list, run=[A,B]"),
    ("predict", ["run=here", "input='Who is it ?'"], "there is no file 'Who is it ?'; texts come"),
    ("finetune", ["resume=heer"], "resume: there is no folder heer. Did you mean 'here'?"),
]

RIGHT = [
    ("finetune", ["init_from=hf:bert-base-uncased"]),
    ("finetune", ["init_from=minilm"]),
    ("generate", ["run=gpt2"]),
    ("finetune", ["init_from=${oc.env:MODEL}"]),
    ("finetune", ["init_from=here"]),
    ("finetune", ["init_from=null"]),
    ("finetune", ["init_from=nope", "init_from=here"]),
    ("finetune", ["init_from=gone", "data.train=gone", "resume=auto"]),
    ("pretrain", ["data.train='*.txt'"]),
    ("pretrain", ["data.train=hf:owner/name/train"]),
    ("finetune", ["data.train=here"]),
    ("finetune", ["data=hub", "data.name=owner/name", "data.test=test"]),
    ("finetune", ["data=trec6", "data.validation=0.2"]),
    ("predict", ["run=here", "input=/dev/null"]),
    ("predict", ["run=here", "input=-", "output=-", "resume=true"]),
    ("predict", ["run=here", "input=file.txt", "output=new.jsonl"]),
    ("export", ["run=here", "to=new"]),
]


@pytest.fixture
def _place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    (tmp_path / "file.txt").write_text("text")


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(("command", "words", "message"), WRONG)
def test_a_typo_in_a_path_is_refused(command, words, message):
    with pytest.raises(TransferError) as refused:
        check_paths(words, command, multirun=False)

    assert message in str(refused.value)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize(("command", "words"), RIGHT)
def test_what_may_be_there_is_left_to_the_command(command, words):
    check_paths(words, command, multirun=False)


@pytest.mark.usefixtures("_place")
def test_in_a_sweep_each_value_is_looked_at():
    with pytest.raises(TransferError, match="there is no folder nope"):
        check_paths(["init_from=here,nope"], "finetune", multirun=True)


@pytest.mark.usefixtures("_place")
@pytest.mark.parametrize("name", ["bert-base-uncased", "google-bert/bert-base-uncased", "../qwx"])
def test_a_name_without_a_folder_is_answered_with_what_fetches_it(name):
    with pytest.raises(TransferError) as refused:
        check_paths([f"init_from={name}"], "finetune", multirun=False)

    is_hub_name = not name.startswith(".")
    assert str(refused.value).endswith(f"type init_from=hf:{name}") is is_hub_name


# --- cards ---------------------------------------------------------------------------------------


def card(**changes):
    empty = {"what": {}, "how": {}, "measures": {}, "by_label": {}, "command": ""}
    of_model = {"labels": (), "left_out": (), "task": "fill-mask", "architecture": "X"}
    of_model |= {name: changes.pop(name) for name in [*of_model] if name in changes}
    return render_card(card=Card("x", **of_model), **{"title": "x", **empty, **changes})


@pytest.mark.parametrize(
    "change",
    [
        {"title": "x\n---\nlicense: mit"},
        {"what": {"size": "a\n# big"}},
        {"labels": ["a\n# big"]},
        {"command": "transfer\n```\n# big"},
        {"how": {"data": "\x1b[2J"}},
    ],
)
def test_a_name_does_not_leave_its_line(change):
    text = card(**change)

    lines = text.splitlines()
    assert "# big" not in lines
    assert "license: mit" not in lines
    assert sum(line.startswith("# ") for line in lines) == 1
    assert lines.count("```") == sum(line.startswith("```") and line != "```" for line in lines)
    assert "\x1b" not in text


@pytest.mark.parametrize("mark", ["`", "``", "a`b", "```"])
def test_what_a_card_is_told_is_no_markup(mark):
    markdown_it = pytest.importorskip("markdown_it")
    hostile = f"<img src=x onerror=alert(1)>{mark} <img src=x onerror=alert(2)> {mark}"
    every = {
        "title": hostile, "labels": [hostile, "plain"], "left_out": [hostile], "command": hostile,
        "what": {hostile: hostile}, "how": {hostile: hostile},
        "measures": {hostile: {hostile: 1.0}},
        "by_label": {"head": [hostile], "rows": [[hostile]], "note": hostile},
    }  # fmt: skip

    page = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").parse(card(**every))

    kinds = {node.type for token in page for node in (token, *(token.children or ()))}
    assert not {kind for kind in kinds if "html" in kind or "image" in kind or "link" in kind}
    code = [
        node.content for token in page for node in token.children or () if node.type[:4] == "code"
    ]
    assert code == [hostile, "plain", hostile]


def test_measures_stand_beside_each_other():
    measures = {"validation": {"accuracy": 0.5, "loss": 1.0}, "test": {"accuracy": 0.25}}

    text = card(measures=measures, what={"size": "a|b"})

    assert "| size | a\\|b |" in text
    assert "| measure | validation | test |\n|---|---|---|\n| accuracy | 0.5 | 0.25 |" in text
    assert "| loss | 1 |  |" in text


def test_the_license_is_left_to_whoever_publishes():
    text = card()

    assert text.startswith("---\nlicense: other   # fill in\n")
    assert "To be filled in by whoever publishes this model" in text


@pytest.mark.parametrize(
    ("different", "texts"),
    [(2, 2), (1, 1), *((wrong, 4) for wrong in (0, -3, 1e400, float("nan"), 7, "many"))],
)
def test_a_card_tells_of_no_more_texts_than_were_scored_and_of_one_at_least(different, texts):
    results = Results(more={"by_words": {"different": different, "scored": 4}})

    assert _accuracy_sentence(results, [[2, 0], [0, 2]]).endswith(f"by {texts} texts.")


def test_of_more_texts_than_a_linear_model_saw_a_card_tells_of_the_same_share():
    results = Results(more={"by_words": {"different": 9, "scored": 10}})

    assert _accuracy_sentence(results, [[100, 0], [0, 100]]).endswith("by 180 texts.")


@pytest.mark.parametrize("heads", [{"0": 1.0}, [{}], [[0.5]], "all", None])
def test_what_does_not_say_how_important_heads_are_is_refused(tmp_path, heads):
    path = tmp_path / "importance.json"
    path.write_text(json.dumps({"heads": heads}))
    config = ExportConfig(run="run", to="to", prune=str(path))

    with pytest.raises(TransferError, match=f"^prune: {path}"):
        _prune(tiny.model(Classification()), config)


# --- listings ------------------------------------------------------------------------------------


EVERY = {f"{option.group}={option.name}": option for option in options()}


@pytest.mark.parametrize("group", sorted({option.group for option in EVERY.values()}))
def test_a_copy_holds_the_values_and_comments_of_its_original_in_short_lines(group):
    for option in (option for option in EVERY.values() if option.group == group):
        inside, text = copy_option(option, "mine", Path("configs"))
        original = option.text

        assert inside == Path(group) / "mine.yaml"
        first = next(line for line in text.splitlines() if "@package" not in line)
        assert first == f"# Mine, begun as {group}={option.name}"
        assert yaml.safe_load(text) == yaml.safe_load(original), option.name
        flat = " ".join(re.sub(r"^ *#", "", text, flags=re.MULTILINE).split())
        for line in original.splitlines():
            _, _, comment = line.partition("# ")
            if comment and not comment.startswith("@package"):
                assert " ".join(comment.split()) in flat, option.name
        longest = max(map(len, original.splitlines()))
        assert max(map(len, text.splitlines())) <= max(100, longest), option.name


def test_every_line_of_every_copy_is_explained():
    bare = []
    for source, option in EVERY.items():
        if option.group == "model" and option.name != "base":
            continue  # `base`, which they extend, explains every key
        lines = copy_option(option, "mine", Path("configs"))[1].splitlines()
        for above, line in itertools.pairwise(lines):
            said = " # " in line or above.lstrip().startswith("# ") or line.startswith("# ")
            if line.strip() and not said:
                bare.append(f"{source}: {line.strip()}")

    assert [line for line in bare if not line.startswith("sweep=schemes: adapters,")] == []


def test_a_copy_says_what_other_files_say_of_a_line():
    text = copy_option(EVERY["adaptation=dora"], "mine", Path("configs"))[1]

    assert EVERY["adaptation=lora"].line in text
    assert EVERY["adaptation/edits=dora"].line in text
    text = copy_option(EVERY["experiment=sample/pretrain"], "mine", Path("configs"))[1]
    assert "steps: 400                     # optimizer steps. Wins over `epochs`" in text


def test_a_part_that_lies_under_its_own_name_gets_the_new_one():
    option = EVERY["adaptation/edits=lora"]

    _, text = copy_option(option, "my_lora", Path("configs"))

    assert text.startswith("# @package adaptation.edits.my_lora\n")
    assert choosing_word(option, "my_lora") == "'adaptation/edits=[my_lora]'"


def test_a_folder_with_a_strange_name_breaks_no_comment(tmp_path):
    file = tmp_path / "tiny.yaml"
    file.write_text("# It\nwidth: 1\n")
    option = Option("model", "tiny", "It", file)

    _, text = copy_option(option, "mine", Path("a\nwidth: 2\x1b[2J\u2028b"))

    assert yaml.safe_load(text) == {"width": 1}
    assert "\x1b" not in text


def test_caches_are_listed_with_their_sizes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TRANSFER_DATA", str(tmp_path))
    monkeypatch.delenv("TRANSFER_CACHE", raising=False)
    info([])
    assert "not there yet" in capsys.readouterr().out
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tokens").write_bytes(b"x" * 2048)

    info(["--json"])

    folders = json.loads(capsys.readouterr().out)["folders"]
    cache = next(folder for folder in folders if folder["name"] == "cache")
    assert (cache["path"], cache["size_bytes"]) == (str(tmp_path / "cache"), 2048)


@pytest.mark.parametrize("groups", [[], ["adaptation"]])
def test_the_options_of_groups_are_listed_each_with_its_line(capsys, groups):
    presets(groups)

    out = capsys.readouterr().out
    listed = [o for o in options() if not groups or o.group.partition("/")[0] in groups]
    assert all(option.line in out for option in listed)
    assert ("optimizer=" in out) is not bool(groups)


def test_a_program_can_read_the_list(capsys):
    presets(["--json"])

    records = json.loads(capsys.readouterr().out)
    assert len(records) == len(options())
    base = next(row for row in records if (row["group"], row["option"]) == ("model", "base"))
    assert base["origin"] == "packaged"
    assert base["target"] == "transfer_cli.model.backbone.BackboneShape"


def test_published_models_are_listed_with_where_they_come_from(capsys):
    presets(["models", "model"])

    out = capsys.readouterr().out
    assert "model=" in out
    for model in listed_models().values():
        row = next(line for line in out.splitlines() if line.startswith(f"{model.name} "))
        assert model.size in row
        assert row.endswith(f"hf:{model.hub}")

    presets(["models", "--json"])
    assert [row["revision"] for row in json.loads(capsys.readouterr().out)] == [
        model.revision for model in listed_models().values()
    ]


def test_own_options_say_where_they_lie(capsys, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("# My own\nwidth: 1\n")
    (tmp_path / "model" / "tiny.yaml").write_text("# Hidden by ours\nwidth: 1\n")

    presets(["model", "--config-dir", str(tmp_path)])

    out = capsys.readouterr().out
    assert f"My own  ({tmp_path}/model/mine.yaml)" in out
    assert "not used: a packaged option has this name" in out
