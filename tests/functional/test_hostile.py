"""A run directory or a folder of configs that a stranger made: used or refused, never obeyed."""

import io
import json
import resource
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.functional.conftest import LOOP, finished
from transfer_cli.config import commands

MIB = 2**20


@pytest.fixture
def refusal(transfer):
    """Return how to run what is refused; checks the form of the refusal and gives its line."""

    def call(*words):
        ended = transfer(*words)
        assert ended.err.isprintable() or "\x1b" not in ended.err
        return ended.refusal()

    return call


@pytest.fixture
def stranger(short_run, tmp_path):
    """Return a copy of a pretrained run that a test may change."""
    return without_hashes(shutil.copytree(short_run, tmp_path / "stranger"))


@pytest.fixture
def labelled(finetuned, tmp_path):
    """Return a copy of a fine-tuned run that a test may change."""
    return without_hashes(shutil.copytree(finetuned, tmp_path / "labelled"))


def without_hashes(run):
    """Remove those of a finished model: whoever changes it on purpose would change them, too."""
    (run / "model" / "meta.json").unlink()
    return run


def set_value(file: Path, key: str, value: object) -> None:
    """Change one value of a YAML or JSON file."""
    is_json = file.suffix == ".json"
    content = json.loads(file.read_text()) if is_json else yaml.safe_load(file.read_text())
    *parents, name = key.split(".")
    node = content
    for parent in parents:
        node = node[parent]
    node[name] = value
    file.write_text(json.dumps(content) if is_json else yaml.safe_dump(content))


@contextmanager
def memory_left(size_bytes: int):
    """Let the process take so much more memory, and no more."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# --- what is absurd ----------------------------------------------------------------------------

LAUGHS = "a0: &a0 [x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize("content", [LAUGHS, "[" * 100_000, "a: \0", "x" * (2 * MIB)])
def test_a_config_that_would_take_all_memory_is_refused(refusal, stranger, content):
    (stranger / "config.yaml").write_text(content)

    with memory_left(512 * MIB):
        for words in (("evaluate", f"run={stranger}"), ("pretrain", f"resume={stranger}")):
            assert "config.yaml is no config of pretrain: " in refusal(*words)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape.width", 2**20),
        ("shape.feedforward", 2**24),
        ("shape.depth", 9_000),
        ("shape.output_transform", True),
        ("objective.hidden", [2**24]),
        ("objective.pooling", "concat"),
        ("edits", {"x": {"_target_": "transfer_cli.adaptation.edits.Adapters", "size": 2**30}}),
        ("edits", {"x": {"_target_": "transfer_cli.adaptation.edits.LoRA", "rank": 2**30}}),
        ("edits", {"x": {"_target_": "transfer_cli.adaptation.edits.LoRA", "rank": 2**62}}),
    ],
)
def test_a_description_of_more_than_the_weights_hold_takes_no_memory(
    refusal, labelled, key, value, tmp_path
):
    set_value(labelled / "model" / "model.json", key, value)
    (tmp_path / "in.txt").write_bytes(b"\xff")

    with memory_left(1024 * MIB):
        line = refusal("predict", f"run={labelled}", f"input={tmp_path / 'in.txt'}", "device=cpu")

    if key == "shape.output_transform":
        assert "byte 0xFF" in line  # nothing in a classifier depends on it
    else:
        reasons = ("does not fill this model's backbone", " lacks ", "out of memory")
        assert any(reason in line for reason in reasons)


@pytest.mark.parametrize("name", ["environment.json", "presets.json", "status.json"])
@pytest.mark.parametrize(
    "content",
    ["[" * 100_000, *(pytest.param(c, marks=pytest.mark.slow) for c in ("[]", '{"command": [1]}'))],
)
def test_a_damaged_small_file_is_no_traceback(transfer, stranger, name, content):
    (stranger / name).write_text(content)

    for words in (("evaluate", f"run={stranger}"), ("pretrain", f"resume={stranger}")):
        ended = transfer(*words, "device=cpu")
        assert ended.code in (0, 2), ended.err
        assert "Traceback" not in ended.err


# --- a folder of configs -----------------------------------------------------------------------

COPIES = {"_target_": "shutil.copyfile", "src": "secret", "dst": "stolen"}

HYDRA = {
    "callback": {"callbacks": {"x": COPIES}},
    "nested callback": {
        "callbacks": {"x": {"_target_": "hydra.experimental.callbacks.Callback", "y": COPIES}}
    },
    "hidden callback": {
        "callbacks": {"x": {"_target_": "hydra.experimental.callbacks.${z}", "y": "${evil}"}}
    },
    "logging": {
        "job_logging": {
            "version": 1,
            "handlers": {"x": {"()": "shutil.copyfile", "src": "secret", "dst": "stolen"}},
            "root": {"handlers": ["x"], "level": "INFO"},
        }
    },
    "environment": {"job": {"env_set": {"LD_PRELOAD": "evil.so"}}},
}


@pytest.mark.parametrize("kind", HYDRA)
@pytest.mark.parametrize(
    "as_sweep", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["run", "sweep"]
)
def test_a_folder_of_configs_has_hydra_run_nothing(transfer, tmp_path, tiny, loop, kind, as_sweep):
    (tmp_path / "secret").write_text("mine")
    folder = tmp_path / "own" / "experiment"
    folder.mkdir(parents=True)
    text = yaml.safe_dump({"hydra": HYDRA[kind], "seed": 3})
    (folder / "evil.yaml").write_text(f"# @package _global_\n{text}")
    words = ("pretrain", "--config-dir", "own", "data=sample_text", *tiny, *loop, "loop.steps=1")

    sweep = ("-m", "seed=1,2") if as_sweep else ("run.dir=run",)
    if kind == "logging" and as_sweep:  # the jobs run, so let them share this process
        sweep += ("sweep.isolate=false",)
    ended = transfer(*words, "experiment=evil", *sweep)

    assert not (tmp_path / "stolen").exists()
    if kind == "logging":
        assert ended.code == 0, ended.err  # which is left out, as all logging of Hydra's
    else:
        assert ended.code == 2, ended.err
        assert "hydra." in ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("part", ["launcher", "sweeper"])
def test_a_launcher_or_sweeper_of_a_folder_of_configs_is_not_made(
    refusal, tmp_path, tiny, loop, part
):
    (tmp_path / "secret").write_text("mine")
    group = tmp_path / "own" / "hydra" / part
    group.mkdir(parents=True)
    (group / "mine.yaml").write_text(yaml.safe_dump(COPIES))

    line = refusal(
        "pretrain", "--config-dir", "own", "data=sample_text", *tiny, *loop, "loop.steps=1", "-m",
        "seed=1,2", f"hydra/{part}=mine",
    )  # fmt: skip

    assert f"hydra/{part}" in line
    assert not (tmp_path / "stolen").exists()


def test_a_callback_is_not_called_though_its_package_is_named(
    refusal, tmp_path, tiny, loop, monkeypatch
):
    monkeypatch.setattr("transfer_cli.config.build._plugins", set())
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mycallbacks.py").write_text("open('called', 'w').close()\nMine = object\n")
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    text = yaml.safe_dump({"hydra": {"callbacks": {"x": {"_target_": "mycallbacks.Mine"}}}})
    (tmp_path / "own" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")

    line = refusal(
        "pretrain", "--config-dir", "own", "--plugin", "mycallbacks", "data=sample_text",
        "experiment=mine", *tiny, *loop, "loop.steps=1", "run.dir=run",
    )  # fmt: skip

    assert "hydra.callbacks" in line
    assert not (tmp_path / "called").exists()


def test_an_explosive_config_is_refused_whatever_is_asked(refusal, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "bomb.yaml").write_text(LAUGHS)

    with memory_left(512 * MIB):
        for words in (
            ("pretrain", "--config-dir", "own", "--config-name", "bomb"),
            ("pretrain", "--config-dir", "own", "--help"),
            ("presets", "--config-dir", "own"),
        ):
            assert "own/bomb.yaml cannot be a config: line 6: more than" in refusal(*words)


# --- links that lead out ------------------------------------------------------------------------


def test_versions_that_are_no_mapping_are_left_out_of_a_card(transfer, labelled, tmp_path):
    (labelled / "environment.json").write_text('{"versions": [1]}')

    transfer("export", f"run={labelled}", "to=out").ok()

    assert "versions" not in (tmp_path / "out" / "README.md").read_text()


# --- control characters --------------------------------------------------------------------------


HOSTILE = "\x1b]0;pwned\x07\x1b[2J\r\n\nFORGED \x85\x9b\x08\u202e\u2066\x7f"
"""Of each kind one; its third line must never begin a line of what is printed."""

LABELS = [f"yes{HOSTILE}", f"no{HOSTILE}"]
TEXT, PAIR, LABEL = (f"{name}\x1b[1m{HOSTILE}" for name in ("text", "pair", "label"))


def quoted(value):
    """Return a value of an override as Hydra reads it."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.fixture(scope="module")
def place(tmp_path_factory, pretrained):
    """Return a folder with a hostile name, with tables, a text and runs in it."""
    folder = tmp_path_factory.mktemp("place") / f"my{HOSTILE}folder"
    folder.mkdir()
    rows = [
        {TEXT: f"Where {HOSTILE} is it {n} ?", PAIR: f"why {HOSTILE}", LABEL: LABELS[n % 2]}
        for n in range(30)
    ]
    table = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "table.jsonl").write_text(table)
    (folder / "other.jsonl").write_text(table.replace("yes", "strange"))
    (folder / "broken.jsonl").write_text(table + '{"\x1b": \n')
    lines = [f"The harbour {n} \x1b[2J of \u202e Riga \x9b is old .\n" for n in range(300)]
    (folder / "text.txt").write_text("".join(lines))
    data = [*table_of(folder), f"init_from={pretrained}", *LOOP, "loop.steps=3"]
    for name in ("one", "two"):
        seed = f"seed={len(name) + ord(name[0])}"
        finished("finetune", *data, seed, f"run.dir={quoted(folder / f'{name}{HOSTILE}')}")
    shutil.copytree(pretrained, folder / "old")
    (folder / "configs").mkdir()
    (folder / "configs" / "data").mkdir()
    (folder / "configs" / "data" / "mine.yaml").write_text("# @package data\nx: 1\n")
    return folder


def table_of(folder, train="table.jsonl"):
    columns = (f"data.text={quoted(TEXT)}", f"data.pair={quoted(PAIR)}")
    return ["data=table", f"data.train={quoted(folder / train)}", *columns,
            f"data.label={quoted(LABEL)}"]  # fmt: skip


def command_lines(place):
    """Return command lines of each command: what is right, and what is refused."""
    run, other = (place / f"{name}{HOSTILE}" for name in ("one", "two"))
    at = f"run={quoted(run)}"
    table, strange = table_of(place), table_of(place, "other.jsonl")
    text = ["data=text", f"data.train={quoted(place / 'text.txt')}"]
    model = ["model=tiny", "model.width=16", "model.heads=2", "model.depth=1",
             "tokenizer.size=300"]  # fmt: skip
    loop = [*LOOP, "loop.steps=2"]
    start = f"init_from={quoted(place / 'old')}"
    unknown = place / "absent"
    return {
        "prepare": [[*table], [*text, "tokenizer.size=300"], table_of(place, "broken.jsonl")],
        "inspect": [[*table, start], [*text, "tokenizer.size=300"], ["data=text",
                    f"data.train={quoted(unknown)}"]],
        "pretrain": [[*text, *model, *loop, f"run.dir={quoted(place / f'new{HOSTILE}')}"],
                     [f"resume={quoted(run)}"]],
        "finetune": [[*table, start, *loop, f"run.dir={quoted(place / f'tuned{HOSTILE}')}"],
                     [*table, start, *loop, f"run.dir={quoted(run)}"],
                     [*table_of(place, "broken.jsonl"), start, *loop],
                     [*table, start, *loop, f"objective.{quoted(HOSTILE)}=3"]],
        "plan": [["finetune", *table, start, *loop], ["finetune", *strange, start, HOSTILE]],
        "lr-find": [["finetune", *table, start, *LOOP, "lr_find.steps=10"],
                    ["pretrain", *text, *model, *LOOP, "lr_find.steps=10"]],
        "evaluate": [[at, "split=all"], [at, "split=train", *strange], [f"run={quoted(unknown)}"]],
        "predict": [[at, f"input={quoted(place / 'table.jsonl')}", f"text={quoted(TEXT)}",
                     f"pair={quoted(PAIR)}", f"output={quoted(place / 'answers.jsonl')}"],
                    [at, f"input={quoted(place / 'broken.jsonl')}", f"text={quoted(HOSTILE)}"],
                    [at, f"input={quoted(place / 'broken.jsonl')}", f"text={quoted(TEXT)}",
                     f"pair={quoted(PAIR)}", "errors=skip", f"output={quoted(place / 'a.csv')}"]],
        "embed": [[start.replace("init_from", "run"), f"input={quoted(place / 'table.jsonl')}",
                   f"text={quoted(TEXT)}", f"output={quoted(place / 'vectors.npy')}", "nearest=2"],
                  [at, f"input={quoted(place / 'broken.jsonl')}", f"text={quoted(HOSTILE)}"]],
        "generate": [[start.replace("init_from", "run"), f"The {HOSTILE}", "max_tokens=3",
                      f"output={quoted(place / 'generated.jsonl')}"], [at, "x"]],
        "push": [[run, "owner/name", "--dry"], [run, quoted(HOSTILE), "--dry"]],
        "serve": [[run, f"host={quoted(HOSTILE)}"],
                  [run, "port=0", f"serve.token_file={quoted(unknown)}"]],
        "chat": [[at, f"persona={quoted(HOSTILE)}"]],
        "fill": [[at, f"{HOSTILE} [MASK]"], [start.replace("init_from", "run"), HOSTILE]],
        "score": [[start.replace("init_from", "run"), *table,
                   f"prompt.item={HOSTILE} {{text}} {{label}}",
                   f"output={quoted(place / f'scored{HOSTILE}')}"], [at, f"split={HOSTILE}"]],
        "analyze": [[at, "analysis=[attention,attributions,neurons]", "analysis.neurons.contexts=1",
                     f"html={quoted(place / 'inside.html')}"],
                    [at, "analysis=probes", *strange],
                    [f"run={quoted(unknown)}", "analysis=probes"],
                    [at, f"input={quoted(place / 'text.txt')}", "analysis=attention",
                     f"output={quoted(place / f'found{HOSTILE}')}"], [at, f"split={HOSTILE}"]],
        "export": [[at, f"to={quoted(place / f'exported{HOSTILE}')}", "head=false"],
                   [at, f"to={quoted(place / 'refused')}", f"family={quoted(HOSTILE)}"]],
        "report": [[place], [place, f"--baseline={HOSTILE}"], [place, "--csv=-"],
                   [place, "--json=-"], [place, "--markdown=-"], [unknown],
                   [place, f"--html={place / 'page.html'}"]],
        "diff": [[run, other], [run, other, "--json"], [run, place / "old"], [run, unknown]],
        "presets": [["--config-dir", place / "configs"], [HOSTILE],
                    ["--config-dir", place / "configs", "--json"]],
        "init": [[place / "project"], [place / "more", "--from", HOSTILE], [run]],
        "info": [[], ["--json"], [HOSTILE]],
        "completion": [["bash"], [HOSTILE]],
    }  # fmt: skip


def test_every_command_has_command_lines(tmp_path):
    assert command_lines(tmp_path).keys() == commands.ALL.keys()


class Terminal(io.StringIO):
    """Standard output or error that says that it is a terminal."""

    def isatty(self):
        return True


COLOUR = ("\x1b[0m", "\x1b[1m", "\x1b[2m", *(f"\x1b[{a};3{b}m" for a in "01" for b in "1256"),
          *(f"\x1b[3{b}m" for b in "1256"))  # fmt: skip
"""What we ourselves send."""


def check(shown, words):
    wrong = {
        character for character in shown if not character.isprintable() and character not in "\n\t"
    }
    assert not wrong, (words, wrong, shown)
    assert not [line for line in shown.split("\n") if line.startswith("FORGED")], (words, shown)


@pytest.mark.parametrize("command", commands.ALL)
def test_control_characters_are_shown_escaped(place, command, transfer, monkeypatch):
    monkeypatch.setenv("TRANSFER_DATA", str(place / "data"))
    codes = []
    for words in command_lines(place)[command]:
        ended = transfer(command, *words)

        codes.append(ended.code)
        assert ended.code in (0, 2), ended.err
        if command != "generate":  # whose text is data, unless it goes to a terminal
            check(ended.out, words)
        check(ended.err, words)
        if command == "completion":  # a script, not a message
            continue
        assert "Traceback" not in ended.err
    assert 0 in codes or command in ("fill", "chat", "serve"), codes


@pytest.mark.parametrize("command", ["evaluate", "inspect", "report", "plan", "generate"])
def test_control_characters_are_shown_escaped_in_colour(
    place, command, transfer, monkeypatch, tmp_path
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for words in command_lines(place)[command][:1]:
        out = Terminal()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", out)
            ended = transfer(command, *words)

        assert ended.code == 0, ended.err
        shown = out.getvalue()
        assert "pwned" in shown or command == "plan"
        for sent in COLOUR:
            shown = shown.replace(sent, "")
        check(shown.replace("\n", "\\n") if command == "generate" else shown, words)
