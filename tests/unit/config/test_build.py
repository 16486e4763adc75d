import importlib
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from transfer_cli.config import compose
from transfer_cli.config.build import build, convert, trust
from transfer_cli.config.check import check_config
from transfer_cli.config.commands import ALL
from transfer_cli.config.flags import Request, parse_request, quoted_override
from transfer_cli.config.key_files import as_overrides, with_quotes
from transfer_cli.config.literal import path_override, text_of, texts_of
from transfer_cli.config.variables import check_variables
from transfer_cli.errors import ConfigError
from transfer_cli.optim.layer_scale import Geometric
from transfer_cli.optim.schedules import Cosine, Schedule

COSINE = "transfer_cli.optim.schedules.Cosine"
GEOMETRIC = "transfer_cli.optim.layer_scale.Geometric"

numbers = st.integers() | st.floats(allow_nan=False)
not_numbers = st.booleans() | st.text() | st.none() | st.lists(st.integers())


class Task(Protocol):
    def load(self, data_dir, seed): ...


class Shape(ABC):
    @abstractmethod
    def area(self) -> float: ...


@dataclass
class Square(Shape):
    side: float

    def __post_init__(self) -> None:
        if self.side <= 0:
            raise ValueError(f"side must be above 0, got {self.side}")

    def area(self) -> float:
        return self.side**2


@dataclass
class Drawing:
    name: str
    shape: Square | None = None
    tags: tuple[str, ...] = ()
    ink: Literal["black", "red"] = "black"


def refusal(node: Any, key: str = "part", kind: Any = object, **extra: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(node, key, kind, **extra)
    return str(caught.value)


# --- what is built -----------------------------------------------------------------------------


def test_a_node_becomes_an_object_of_the_class_that_it_names():
    made = build({"_target_": COSINE, "warmup": 0.1, "floor": 0.2}, "schedule", Schedule)

    assert isinstance(made, Cosine)
    assert (made.warmup, made.floor) == (0.1, 0.2)


def test_nested_nodes_are_built_first_with_their_interpolations_filled_in():
    node = {
        "_target_": "transfer_cli.adaptation.adaptation.Adaptation",
        "plan": {"_target_": "transfer_cli.adaptation.plans.Only", "train": ["head.*"]},
        "layer_scale": {"_target_": GEOMETRIC, "factor": "${peak}"},
    }
    config = OmegaConf.create({"peak": 2, "adaptation": node})

    made = build(config.adaptation, "adaptation", object)

    assert made.plan.train == ("head.*",)
    assert made.layer_scale == Geometric(2.0)


def test_a_dataclass_needs_no_target():
    made = build({"name": "a", "shape": {"side": 2}, "tags": ["x"], "ink": "red"}, "d", Drawing)

    assert made == Drawing("a", Square(2.0), ("x",), "red")


def test_arguments_that_no_config_can_give_are_passed_on():
    made = build({"_target_": GEOMETRIC}, "scale", Geometric, factor=1.5)

    assert made.factor == 1.5


def test_torch_optimizers_are_trusted_and_their_types_are_checked():
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.zeros(1))
    node = {"_target_": "torch.optim.AdamW", "lr": 1, "betas": [0.9, 0.99]}

    made = build(node, "optimizer", torch.optim.Optimizer, params=[weight])

    assert made.defaults["lr"] == 1
    assert tuple(made.defaults["betas"]) == (0.9, 0.99)
    assert "optimizer.lr: expected" in refusal(
        {"_target_": "torch.optim.AdamW", "lr": "fast"}, "optimizer", params=[weight]
    )


# --- what is refused ---------------------------------------------------------------------------


SCHEDULES = "transfer_cli.optim.schedules"

REFUSED = {
    "an unknown option": (
        {"_target_": GEOMETRIC, "facter": 2.0}, object, ("part.facter: Geometric", "'factor'"),
    ),
    "an unknown class": ({"_target_": f"{SCHEDULES}.Cosin"}, object, ("part: ", "'Cosine'")),
    "an unknown module": (
        {"_target_": "transfer_cli.optim.schedule.Cosine"}, object, ("no module", "'schedules'"),
    ),
    "another kind, which is not made": (
        {"_target_": GEOMETRIC, "factor": -1}, Schedule, ("part: ", "a Schedule", GEOMETRIC),
    ),
    "an abstract class": ({"_target_": f"{SCHEDULES}.Schedule"}, Schedule, ("abstract",)),
    "a missing argument": (
        {"_target_": "transfer_cli.data.tokenizer_recipes.FromFile"}, object,
        ("Add part.path=VALUE",),
    ),
    "a value left open": ({"name": "???"}, Drawing, ("Add part.name=VALUE",)),
    "a value left open in a config": (
        OmegaConf.create({"part": {"name": "???"}}).part, Drawing, ("Add part.name=VALUE",),
    ),
    "an interpolation that leads nowhere": (
        OmegaConf.create({"part": {"_target_": GEOMETRIC, "factor": "${nothing}"}}).part, object,
        ("part.factor: Interpolation key 'nothing'",),
    ),
    "the constructor's own complaint": (
        {"_target_": COSINE, "floor": 2.0}, object, ("part: floor must be",),
    ),
    "a nested mistake": (
        {"name": "a", "shape": {"side": -1}}, Drawing, ("part.shape: side must be above 0",),
    ),
    "a mapping without a target": ({"lr": 1.0}, Schedule, ("a Schedule", "_target_", "lr")),
    **{
        f"{node} for a mapping": (node, Schedule, ("part: expected a Schedule, got ",))
        for node in (None, 3, "cosine", ["cosine"])
    },
    **{
        f"Hydra's {name}": ({"_target_": GEOMETRIC, name: True}, object, (f"no option '{name}'",))
        for name in ("_args_", "_partial_", "_recursive_", "convert_")
    },
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_built_is_refused_by_its_key(what):
    node, kind, words = REFUSED[what]

    message = refusal(node, "part", kind)

    for word in words:
        assert word in message


def test_a_node_is_good_where_anything_is():
    @dataclass
    class Holder:
        part: Any

    assert build({"part": {"_target_": GEOMETRIC}}, "holder", Holder).part == Geometric()


def test_an_argument_that_is_filled_in_later_is_refused():
    message = refusal({"_target_": GEOMETRIC, "factor": 2.0}, "scale", factor=1.0)

    assert message == "scale.factor: is filled in when the run starts; leave it out"


# --- trust -------------------------------------------------------------------------------------


@pytest.fixture
def imported(monkeypatch):
    """Return the names of the modules that are imported from here on."""
    names = []
    real = importlib.import_module

    def note(name, package=None):
        names.append(name)
        return real(name, package)

    monkeypatch.setattr("transfer_cli.config.build.importlib.import_module", note)
    return names


NOT_TRUSTED = "is not trusted. Name your package with --plugin"
UNTRUSTED = {
    **dict.fromkeys(
        ("os.system", "builtins.eval", "subprocess.Popen", "torch.load", "torch.optimistic.Class",
         "transfer_client.evil.Class", "transfer_cli_evil.Class", "antigravity.Class"),
        NOT_TRUSTED,
    ),
    **dict.fromkeys(
        ("transfer_cli.runs.sweep.SweepDirectory", "transfer_cli.runs.tensorboard.SummaryWriter",
         "transfer_cli.engine.metrics_logger.MetricsLogger", "transfer_cli.cli.os.system",
         "transfer_cli.config.build.importlib.import_module", "transfer_cli.errors.EXIT_DONE"),
        "is nothing that a config may build",
    ),
    **dict.fromkeys((3, "", "Cosine", ".a.B", "a..B", "a.b c", "a.b.", "import.x"),
                    "expected package.module.Class"),
}  # fmt: skip


@pytest.mark.parametrize(("target", "said"), UNTRUSTED.items())
def test_what_no_config_may_name_is_refused_before_it_is_imported(imported, target, said):
    assert said in refusal({"_target_": target})
    assert imported == []


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("transfer_cli.data.readers.Path", NOT_TRUSTED),
        ("torch.optim.optimizer.defaultdict", NOT_TRUSTED),
        ("transfer_cli.data.readers.open_file", "open_file is not a class"),
        ("transfer_cli.data.readers.MAX_LINE_BYTES", "MAX_LINE_BYTES is not a class"),
        ("transfer_cli.data.fetch.os.system", "there is no module 'transfer_cli.data.fetch.os'"),
    ],
)
def test_what_a_trusted_module_has_besides_its_classes_is_refused(target, said):
    assert said in refusal({"_target_": target})


@dataclass
class Slots:
    """Every way in which an option can ask for an object."""

    plain: Schedule | None = None
    either: Schedule | Path | None = None
    callback: Callable[[int], float] | None = None
    method: Task | None = None
    several: tuple[Schedule, ...] = ()
    text: str = ""


@pytest.mark.parametrize("option", ["plain", "either", "callback", "method", "several", "text"])
def test_an_object_of_the_wrong_kind_is_never_made(tmp_path, monkeypatch, option):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"loudlab"})
    marker = tmp_path / "made"
    (tmp_path / "loudlab.py").write_text(
        f"class Loud:\n    def __init__(self):\n        open({str(marker)!r}, 'w')\n"
    )
    node = {"_target_": "loudlab.Loud"}

    message = refusal({option: node}, "slots", Slots)

    assert message.startswith(f"slots.{option}: expected ")
    assert "loudlab.Loud makes a Loud" in message
    assert not marker.exists()


def test_an_object_with_the_methods_that_are_asked_for_is_made():
    questions = {"_target_": "transfer_cli.tasks.samples.EmbeddedSample", "sample": "questions"}

    made = build({"method": questions, "callback": {"_target_": COSINE}}, "slots", Slots)

    assert type(made.method).__name__ == "EmbeddedSample"
    assert isinstance(made.callback, Cosine)


def test_what_a_constructor_says_in_any_of_torchs_ways_gets_the_key_in_front():
    torch = pytest.importorskip("torch")
    node = {"_target_": "torch.optim.SGD", "lr": 0.1}

    # It raises a TypeError.
    message = refusal(node, "optimizer", params=torch.zeros(1))

    assert message.startswith("optimizer: params argument given to the optimizer should be")


def test_a_plugin_is_trusted_once_the_command_line_names_it(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("transfer_cli.config.build._plugins", set())
    (tmp_path / "named_package.py").write_text("class Part:\n    pass\n")
    node = {"_target_": "named_package.Part"}

    before = refusal(node)
    trust(["named_package"])

    assert before.startswith("part: named_package.Part is not trusted.")
    assert type(build(node, "part", object)).__name__ == "Part"


def test_a_plugin_that_lacks_a_package_says_which(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("transfer_cli.config.build._plugins", {"needy"})
    (tmp_path / "needy.py").write_text("import surely_not_installed\n")

    assert refusal({"_target_": "needy.Part"}) == (
        "part: needy needs the package 'surely_not_installed', which is not installed"
    )


# --- types -------------------------------------------------------------------------------------


def converted(value: Any, hint: Any) -> Any:
    return convert(value, hint, "key")


def complaint(value: Any, hint: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        converted(value, hint)
    return str(caught.value)


@given(st.integers(-(10**300), 10**300))
def test_a_whole_number_is_good_for_a_number(value):
    number = converted(value, float)

    assert isinstance(number, float)
    assert number == float(value)


@pytest.mark.parametrize(
    ("kind", "others", "noun"),
    [
        (float, not_numbers, "a number"),
        (int, st.floats(allow_nan=False) | not_numbers, "a whole number"),
        (bool, numbers | st.text() | st.none(), "true or false"),
        (str, numbers | st.booleans() | st.none(), "text"),
    ],
)
@given(data=st.data())
def test_a_value_of_any_other_kind_is_refused(kind, others, noun, data):
    assert complaint(data.draw(others), kind).startswith(f"key: expected {noun}, got ")


@given(st.lists(st.integers()))
def test_a_list_becomes_the_tuple_that_is_wanted(value):
    assert converted(value, tuple[int, ...]) == tuple(value)
    assert converted(value, Sequence[int]) == value
    assert converted(value, set[int]) == set(value)


WORDS = int | Literal["none", "all"]
ACTIVATION = Literal["relu", "gelu"]


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ([1, 2], tuple[float, float], (1.0, 2.0)), ({"a": 1}, Mapping[str, float], {"a": 1.0}),
        (None, int | None, None), (3, WORDS, 3), ("all", WORDS, "all"),
        ("gelu", ACTIVATION, "gelu"), ("a/b", Path, Path("a/b")),
    ],
)  # fmt: skip
def test_a_value_becomes_what_its_option_asks_for(value, hint, expected):
    assert converted(value, hint) == expected


@pytest.mark.parametrize(
    ("value", "hint", "said"),
    [
        (10**400, float, "key: is too large for a number"),
        (1000.0, int, "key: expected a whole number, got 1000.0. Write 1000"),
        ([1, "x"], list[int], "key.1: expected a whole number, got 'x'"),
        ([1], tuple[float, float], "key: expected a list of 2 values, got 1: [1]"),
        ("abc", Sequence[str], "key: expected a list, got 'abc'. Write key=[...]"),
        ({"a": "x"}, dict[str, int], "key.a: expected a whole number, got 'x'"),
        ([], dict[str, int], "key: expected a mapping, got []"),
        (None, int, "key: expected a whole number, got null"),
        ([], int | str, "key: expected a whole number or text, got []"),
        ("al", WORDS, "key: expected a whole number or none or all, got 'al'. Did you mean 'all'?"),
        ("gelo", ACTIVATION, "key: expected one of relu, gelu; got 'gelo'. Did you mean 'gelu'?"),
        (True, Literal[1, 2], "key: expected one of 1, 2; got true"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_place_and_with_the_nearest(value, hint, said):
    assert complaint(value, hint) == said


@pytest.mark.parametrize(("value", "kind"), [(1, int), (1.0, float), ("1", str)])
def test_a_union_keeps_the_type_that_was_given(value, kind):
    assert type(converted(value, float | int | str)) is kind


def test_an_object_must_be_of_the_annotated_kind():
    wrong = {"_target_": GEOMETRIC}

    assert complaint(wrong, Schedule).startswith("key: expected a Schedule, but ")
    assert complaint(wrong, Schedule | None).startswith("key: expected a Schedule, but ")
    assert complaint(wrong, Schedule | Path).startswith("key: expected a Schedule or a path, but ")
    assert isinstance(converted({"_target_": COSINE}, Schedule | Path), Cosine)


def test_an_object_that_can_be_called_is_good_for_a_callable():
    hint = Callable[[int, int], float]

    assert isinstance(converted({"_target_": COSINE}, hint), Cosine)
    assert complaint(3, hint).startswith("key: expected a Callable")


# --- literal -------------------------------------------------------------------------------------


TEXTS = (
    "Once upon a time", "a=b [x] ${y}", "E = mc2", "it's", '"so," {he: said}', r"back\slash",
    "end\\", "end\\\\", r"\'q\'", r"\${z}", r"\\${z}", "${", "${${", "$${a?a'", "${oc.env:HOME}",
    "???", "? ??", "null", "true", "3", "1e3", "", " two  spaces ", "line\nline", "end\\\n",
    "\ttab", "émoji 🙂", "a,b", "[a,b]", "range(1,3)", "choice(a)", "~", "~x", "a@b", "-5 degrees",
    "$", "#",
)  # fmt: skip


def composed(words):
    overrides = as_overrides(("run=RUN", *words), ALL["generate"])
    config = compose.load_config("generate", Request(overrides=overrides))
    check_config(config, "generate")
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
    (override,) = as_overrides([f"prompt={text}"], ALL["generate"])
    (parsed,) = OverridesParser.create().parse_overrides([override])
    config = OmegaConf.create({"prompt": parsed.value()})
    OmegaConf.resolve(config)

    assert text_of(config.prompt, "prompt") == text
    assert not OmegaConf.missing_keys(config)
    assert not parsed.is_sweep_override()


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


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run=a", "+x=[1]", "a/b@c=d"], ("run=a", "+x=[1]", "a/b@c=d")),
        (["RUN", "in.csv"], ("run='RUN'", "input='in.csv'")),
        (["in.csv", "run=[a,b]"], ("run=[a,b]", "input='in.csv'")),
        (["batch=3", "a, b's run"], ("batch=3", r"run='a, b\'s run'")),
        (["~data", "RUN", "+x=1"], ("~data", "+x=1", "run='RUN'")),
        (["RUN", "a, b", "c", "d=e"], ("d=e", "input=['a, b','c']", "run='RUN'")),
    ],
)
def test_values_without_a_key_have_their_places(words, expected):
    assert as_overrides(words, ALL["predict"]) == expected


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
    [word] = shlex.split(path_override("resume", Path(name)))

    assert OverridesParser.create().parse_override(word).value() == name
    assert path_override("resume", Path("runs/a-1")) == "resume=runs/a-1"


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
        (parsed,) = OverridesParser.create().parse_overrides([word])
        assert parsed.value() == texts
    assert other == (f"other={typed}",)


@pytest.mark.parametrize(
    "name",
    ["a b", "a=b", "[a]", "a,b", "a'b", '"a"', "{a}", "ä", "a\nb", "a\\b", "#a", "~a", "(a)"],
)
def test_what_is_there_is_meant_whatever_it_is_called(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()

    word, *others = with_quotes([f"run={name}", f"run=none{name}", "seed=1,2"], [])

    assert OverridesParser.create().parse_override(word).value() == name
    assert others == [f"run=none{name}", "seed=1,2"]


# --- flags ---------------------------------------------------------------------------------------


ALL_ASKED = {"asks_help": True, "asks_all": True, "overrides": ("data=table",)}
TYPED = {
    "a=1 -m b=2 --config-dir own c=3":
        {"overrides": ("a=1", "b=2", "c=3"), "multirun": True, "config_dir": Path("own")},
    "--cfg job --resolve --package loop": {"shows": "config", "resolve": True, "package": "loop"},
    "--info": {"shows": "defaults"},
    "--info defaults": {"shows": "defaults"},
    "--plugin one --plugin=two": {"plugins": ("one", "two")},
    "resume.strict=true resume=run": {"overrides": ("resume_strict=true", "resume=run")},
    "hydra.mode=MULTIRUN": {"multirun": True},
    "+hydra.mode=RunMode.MULTIRUN": {"multirun": True},
    "hydra.mode=RUN": {"multirun": False},
    "data=table --help all": ALL_ASKED,
    "data=table --help=all": ALL_ASKED,
    "data=table all -h": ALL_ASKED,
}  # fmt: skip


@pytest.mark.parametrize(("line", "read"), TYPED.items())
def test_flags_are_read_around_overrides_in_their_order(line, read):
    assert vars(parse_request(line.split())).items() >= read.items()


def test_the_last_value_of_a_key_counts():
    request = parse_request(["run.dir=a", "run.dir=b", "run.director=c"])

    assert request.value_of("run.dir") == "b"
    assert request.value_of("run") is None


@pytest.mark.parametrize("override", ["a=b=c", "a='b=c'", 'a="b=c"'])
def test_a_value_is_quoted_for_the_shell(override):
    assert quoted_override(override) == """'a="b=c"'"""


TORCHRUN = {
    "RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
    "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
}  # fmt: skip


SLURM = {name: value for name, value in TORCHRUN.items() if name != "LOCAL_WORLD_SIZE"}


@pytest.mark.parametrize(
    "variables", [{}, TORCHRUN, SLURM, {"OMP_NUM_THREADS": "4,2"}, {"RANK": "7"}]
)
def test_what_launchers_set_is_taken(variables):
    check_variables(variables)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in TORCHRUN if name != "MASTER_ADDR" for value in ("x", "-1", "")),
        ("RANK", "2"), ("LOCAL_RANK", "2"), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "1" + 30 * "0"),
        ("MASTER_PORT", "0"), ("MASTER_PORT", "65536"), ("OMP_NUM_THREADS", "abc"),
        ("OMP_NUM_THREADS", "0"), ("OMP_NUM_THREADS", "2,x"), ("OMP_NUM_THREADS", "100000"),
        ("MKL_NUM_THREADS", "2.5"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"^{name}: "):
        check_variables({**TORCHRUN, name: value})
    with pytest.raises(ConfigError, match=f"^{name}: 'x' in the environment is no number"):
        check_variables({name: "x"})  # also without the others
