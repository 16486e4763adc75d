"""Texts on a command line arrive as they were typed, through all of Hydra and OmegaConf."""

import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from transfer_cli.config import compose
from transfer_cli.config.check import check
from transfer_cli.config.flags import Request
from transfer_cli.config.literal import (
    as_overrides,
    as_typed,
    text_of,
    texts_of,
    with_quotes,
)
from transfer_cli.errors import ConfigError

TEXTS = (
    "Once upon a time", "a=b [x] ${y}", "E = mc2", "it's", '"so," {he: said}', r"back\slash",
    "end\\", "end\\\\", r"\'q\'", r"\${z}", r"\\${z}", "${", "${${", "$${a?a'", "${oc.env:HOME}",
    "???", "? ??", "null", "true", "3", "1e3", "", " two  spaces ", "line\nline", "end\\\n",
    "\ttab", "émoji 🙂", "a,b", "[a,b]", "range(1,3)", "choice(a)", "~", "~x", "a@b", "-5 degrees",
    "$", "#",
)  # fmt: skip


def composed(words):
    overrides = as_overrides(("run=RUN", *words), ("run", "prompt"), "prompt", ("stop",))
    config = compose.compose("generate", Request(overrides=overrides))
    check(config, "generate")
    return config


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_behind_its_key_arrives_as_typed(text):
    config = composed([f"prompt={text}", *([f"stop={text}"] if text[:1] not in ("", "[") else [])])

    assert text_of(config.prompt, "prompt") == text
    if text not in ("", "null", "[a,b]"):
        assert texts_of(config.stop, "stop") == [text]


@pytest.mark.parametrize("text", ["Once upon", "Once", "E = mc2", "", "[x]", "~x", "${y}", "3=x"])
def test_a_text_alone_arrives_as_typed(text):
    assert text_of(composed([text]).prompt, "prompt") == text


@settings(max_examples=500, deadline=None)
@given(text=st.text(st.sampled_from("$ {}\\'\"a=[],?\n:")))
def test_hydra_reads_any_text_as_it_was_typed(text):
    (override,) = as_overrides([f"prompt={text}"], (), "prompt")
    (found,) = OverridesParser.create().parse_overrides([override])
    config = OmegaConf.create({"prompt": found.value()})
    OmegaConf.resolve(config)

    assert text_of(config.prompt, "prompt") == text
    assert not OmegaConf.missing_keys(config)
    assert not found.is_sweep_override()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], []),
        (["stop=null"], []),
        (["stop=\n"], ["\n"]),
        (["stop=a, b"], ["a, b"]),
        (["stop=[a,'b,c']"], ["a", "b,c"]),
        (["stop=[a,'b]']"], ["a", "b]"]),
    ],
)
def test_stops_are_one_text_or_a_list_of_them(words, expected):
    assert texts_of(composed(["prompt=x", *words]).stop, "stop") == expected


def test_other_keys_are_hydras():
    assert as_overrides(["run=a", "+x=[1]", "a/b@c=d"], (), "prompt") == (
        "run=a",
        "+x=[1]",
        "a/b@c=d",
    )


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["RUN", "in.csv"], ("run='RUN'", "input='in.csv'")),
        (["in.csv", "run=[a,b]"], ("run=[a,b]", "input='in.csv'")),
        (["batch=3", "a, b's run"], ("batch=3", r"run='a, b\'s run'")),
        (["~data", "RUN", "+x=1"], ("~data", "+x=1", "run='RUN'")),
    ],
)
def test_values_without_a_key_have_their_places(words, expected):
    assert as_overrides(words, ("run", "input")) == expected


def test_a_run_and_a_text_may_stand_alone():
    found = as_overrides(["runs/a b", "Once = upon"], ("run", "prompt"), "prompt")

    assert found == ("run='runs/a b'", "prompt='Once = upon'")


@pytest.mark.parametrize("value", [3, None, True, [3], {"a": "b"}])
def test_what_is_no_text_is_refused(value):
    config = OmegaConf.create({"prompt": value})

    with pytest.raises(ConfigError, match="prompt: must be a text"):
        text_of(config.prompt, "prompt")


def test_bytes_that_are_no_text_become_question_marks():
    assert text_of("caf\udce9", "prompt") == "caf?"


@pytest.mark.parametrize(
    "name", ["runs/a-1", "my runs/a", "it's", "a,b=[c]", "tail\\", "ü%$x", "~x"]
)
def test_a_path_that_is_typed_in_a_shell_is_that_path(name):
    [word] = shlex.split(as_typed("resume", Path(name)))

    assert OverridesParser.create().parse_override(word).value() == name
    assert as_typed("resume", Path("runs/a-1")) == "resume=runs/a-1"


@pytest.mark.parametrize(
    ("typed", "texts"),
    [
        ("[<a>, <b c>]", ["<a>", "<b c>"]),
        ("[it's,b]", None),
        ("['<a>',b]", None),
        ("[]", None),
        ("a", None),
        ("[a]", ["a"]),
    ],
)
def test_texts_of_a_plain_list_need_no_quotes(typed, texts):
    (word,) = with_quotes([f"add={typed}"], ["add"])
    other = with_quotes([f"other={typed}"], ["add"])

    if texts is None:
        assert word == f"add={typed}"
    else:
        (found,) = OverridesParser.create().parse_overrides([word])
        assert found.value() == texts
    assert other == (f"other={typed}",)


@pytest.mark.parametrize(
    "name",
    ["a b", "a=b", "[a]", "a,b", "a'b", '"a"', "{a}", "ä", "a\nb", "a\\b", "#a", "~a", "(a)"],
)
def test_what_is_there_is_meant_whatever_it_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()

    [word] = with_quotes([f"run={name}"])

    assert OverridesParser.create().parse_override(word).value() == name
    assert with_quotes([f"run=none{name}", "seed=1,2"]) == (f"run=none{name}", "seed=1,2")
