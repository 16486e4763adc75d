"""Labels, texts, columns, tokens and file names with control characters steer no terminal."""

import io
import json
import shutil
import sys

import pytest

from tests.functional.conftest import LOOP, finished
from transfer_cli.config import commands

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
        "generate": [[start.replace("init_from", "run"), f"The {HOSTILE}", "max_tokens=3",
                      f"output={quoted(place / 'generated.jsonl')}"], [at, "x"]],
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
    wrong = {each for each in shown if not each.isprintable() and each not in "\n\t"}
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
    assert 0 in codes or command in ("fill", "chat"), codes


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
