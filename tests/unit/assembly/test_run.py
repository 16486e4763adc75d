"""Everything a run consists of: that what the config says arrives where it acts."""

import logging

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from tests import configs, tiny
from tests.configs import ONLY_LORA, THAW
from transfer_cli.adaptation.penalties import L2SP
from transfer_cli.assembly import memory_estimate
from transfer_cli.assembly.memory_estimate import memory_parts
from transfer_cli.assembly.resumed_config import AUTO, config_to_resume, find_run
from transfer_cli.assembly.run import build_run
from transfer_cli.config import compose
from transfer_cli.config.check import check_config
from transfer_cli.config.describe import options
from transfer_cli.config.flags import Request
from transfer_cli.config.stored import as_yaml
from transfer_cli.engine.features.cached import CachedFeatures
from transfer_cli.errors import ConfigError
from transfer_cli.model.weights import backbone_hash, read_weights
from transfer_cli.runs.directory import RunDirectory

HEADS = {"_target_": f"{configs.PLANS}.Only", "train": ["head.*"]}


@pytest.fixture
def put(tmp_path, pretrained):
    """Return how to put a run together that fine-tunes the pretrained model."""

    def make(**changes):
        return build_run(configs.following(pretrained, tmp_path, **changes), "finetune")

    return make


@pytest.mark.parametrize(("micro", "expected"), [(None, 8), ("auto", 8), (3, 3), (8, 8), (99, 8)])
def test_a_micro_batch_is_never_larger_than_the_batch(put, micro, expected):
    assert put(loop__micro_batch=micro).micro_batch == expected


@pytest.mark.parametrize(("share", "expected"), [(2.0, None), (0.9, 4), (0.0, 1)])
def test_a_micro_batch_is_what_fits_into_free_memory(share, expected, put, monkeypatch):
    whole = sum(memory_parts(put().blueprint).values())
    monkeypatch.setattr(
        memory_estimate, "free_bytes", lambda device: share * whole / memory_estimate.FILLED
    )

    run = put()

    assert run.blueprint.config.loop.micro_batch == expected
    assert run.micro_batch == (expected or 8)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("transfer_cli.optim.eager.AdamW", {}), ("transfer_cli.optim.muon.MuonWithAdamW", {}),
        ("torch.optim.SGD", {"momentum": 0.9}), ("torch.optim.SGD", {}),
    ],
)  # fmt: skip
def test_the_memory_of_an_optimizer_is_what_it_keeps(kind, options, put):
    run = put(optimizer={"_target_": kind, "lr": 0.1, **options})

    for weight in run.model.parameters():
        weight.grad = weight.detach().clone()
    run.step.optimizer.step()

    states = run.step.optimizer.state.values()
    kept = sum(v.nbytes for state in states for name, v in state.items() if name != "step")
    assert memory_parts(run.blueprint).get("optimizer", 0) == kept


def test_the_memory_of_l_bfgs_is_that_of_its_earlier_gradients(put):
    blueprint = put(
        optimizer={"_target_": "transfer_cli.optim.lbfgs.LBFGS", "lr": 1.0, "history": 3},
        adaptation__plan=HEADS, adaptation__frozen_eval=True, objective__dropout=0.0,
        loop__batch=20,
    ).blueprint  # fmt: skip

    parts = memory_parts(blueprint)

    assert parts["optimizer"] == 2 * 3 * parts["gradients"]


def test_steps_and_stages_are_those_of_the_data(put):
    run = put(loop__steps=None, loop__epochs=2)

    # 20 examples in batches of 8, the last one short.
    assert run.blueprint.course.sizes.total_steps == 6
    assert run.blueprint.course.sizes.steps_per_epoch == 3
    seen = [run.streams["main"].sampler.indices(step) for step in range(3)]
    assert sorted(torch.cat([torch.from_numpy(rows) for rows in seen]).tolist()) == list(range(20))


def test_the_order_follows_from_the_seed(put):
    orders = [put(seed=seed).streams["main"].sampler.indices(0).tolist() for seed in (0, 0, 1)]

    assert orders[0] == orders[1] != orders[2]


def test_what_a_step_draws_follows_from_the_seed(put):
    runs = [put(seed=seed, objective__dropout=0.5) for seed in (0, 0, 1)]
    batch = runs[0].data.splits["train"].data.batch(np.arange(8))
    weights = tiny.weights_of(runs[0].model)
    totals = []
    for parts in runs:
        parts.model.load_state_dict(weights)
        totals.append(float(parts.step([{"main": batch}], 0).total))

    assert totals[0] == totals[1] != totals[2]


def test_only_a_run_that_asks_for_it_puts_texts_of_like_length_together(put, tmp_path):
    table = tmp_path / "lengths.csv"
    rows = [f"{'the ' * (n % 9)}bridge,{n % 2}" for n in range(200)]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    data = {"_target_": "transfer_cli.tasks.table.Table", "train": str(table), "duplicates": "keep"}

    longest = {}
    for bucket in (False, True):
        run = put(data=data, loop__bucket=bucket)
        order = run.streams["main"].sampler
        steps = [run.data.lengths[order.indices(n)] for n in range(order.steps_per_epoch)]
        longest[bucket] = sum(int(lengths.max()) for lengths in steps)

    assert longest[True] < 0.9 * longest[False]


def test_the_rate_of_each_group_is_base_times_scale_times_schedule(put):
    geometric = {"_target_": "transfer_cli.optim.layer_scale.Geometric", "factor": 2.0}
    linear = {"_target_": "transfer_cli.optim.schedules.Linear", "warmup": 0}
    run = put(adaptation__layer_scale=geometric, schedule=linear, optimizer__lr=0.8, loop__steps=4)
    data = run.data.splits["train"].data

    rates = []
    for number in range(4):
        run.step([{"main": data.batch(range(8))}], number)
        groups = run.step.optimizer.param_groups
        rates.append({group["layer"]: group["lr"] for group in groups})

    for number, group_rates in enumerate(rates):
        head = 0.8 * (4 - number) / 4
        assert group_rates == pytest.approx(
            {"head.class": head, "block.1": head / 2, "block.0": head / 4, "embeddings": head / 8}
        )


def test_a_schedule_may_begin_anew_with_each_stage(put):
    thaw = {**THAW, "new": "2 steps", "upper": "2 steps"}
    linear = {"_target_": "transfer_cli.optim.schedules.Linear", "warmup": 0}
    rates = {}
    for per in ("run", "stage"):
        run = put(adaptation__plan=thaw, schedule=linear, optimizer__lr=0.8, loop__steps=6,
                    adaptation__schedule_per=per)  # fmt: skip
        batch = run.data.splits["train"].data.batch(range(8))
        rates[per] = []
        for number in range(6):
            run.step([{"main": batch}], number)
            rates[per].append(run.step.optimizer.param_groups[-1]["lr"])

    assert rates["run"] == pytest.approx([0.8 * (6 - n) / 6 for n in range(6)])
    assert rates["stage"] == pytest.approx([0.8, 0.4] * 3)


@pytest.mark.parametrize("clip", [None, 0.001])
def test_the_gradient_is_clipped_as_asked(put, clip):
    run = put(loop__clip=clip, optimizer__lr=1.0)
    before = tiny.weights_of(run.model)

    run.step([{"main": run.data.splits["train"].data.batch(range(8))}], 0)

    moved = [weight - before[name] for name, weight in tiny.weights_of(run.model).items()]
    far = float(torch.cat([change.flatten() for change in moved]).norm())
    assert far == pytest.approx(clip, rel=1e-2) if clip else far > 0.01


def test_bad_steps_in_a_row_end_a_run_after_as_many_as_asked(put):
    run = put(loop__max_bad_steps=2)
    run.model.heads["class"].linear.bias.data[0] = float("nan")
    batch = [{"main": run.data.splits["train"].data.batch(range(8))}]

    run.step(batch, 0)

    with pytest.raises(Exception, match=r"2 step\(s\) in a row"):
        run.step(batch, 1)


# --- penalties ---------------------------------------------------------------------------------


def test_a_penalty_pulls_towards_the_weights_that_were_loaded(put, pretrained):
    node = {"_target_": "transfer_cli.adaptation.penalties.L2SP"}

    run = put(adaptation__penalty=node)

    penalty = run.step._penalty
    stored = read_weights(pretrained / "model")
    assert isinstance(penalty, L2SP)
    assert set(penalty.anchors) == {n for n, _ in run.model.named_parameters() if "heads" not in n}
    assert all(torch.equal(anchor, stored[name]) for name, anchor in penalty.anchors.items())


@pytest.mark.parametrize(("kind", "decays"), [("L2SP", {0.0}), ("EWC", {0.0, 0.25})])
def test_the_optimizer_of_a_run_knows_whether_its_penalty_replaces_weight_decay(put, kind, decays):
    adam = {"_target_": "torch.optim.AdamW", "lr": 0.01, "weight_decay": 0.25}
    penalty = {"_target_": f"transfer_cli.adaptation.penalties.{kind}"}

    run = put(optimizer=adam, adaptation__penalty=penalty)

    assert {group["weight_decay"] for group in run.step.optimizer.param_groups} == decays


# --- what is stored ----------------------------------------------------------------------------


def test_trained_weights_alone_refer_to_the_backbone_they_were_trained_on(put, pretrained):
    run = put(**ONLY_LORA, adaptation__store="trained")

    assert run.base_hash == backbone_hash(read_weights(pretrained / "model"))
    assert run.blueprint.omitted_weights == {n for n, _ in run.model.named_parameters()
                               if n.startswith("backbone.") and ".lora." not in n}  # fmt: skip


def test_what_trains_in_any_stage_is_stored(put):
    thaw = {"_target_": f"{configs.PLANS}.ChainThaw", "every": "1 steps", "patience": None}

    run = put(adaptation__plan=thaw, adaptation__store="trained", loop__steps=9)

    assert run.blueprint.omitted_weights == frozenset()


@pytest.mark.parametrize("store", ["all", "merged"])
def test_otherwise_everything_is_stored(put, store):
    run = put(**ONLY_LORA, adaptation__store=store)

    assert (run.base_hash, run.blueprint.omitted_weights) == (None, frozenset())


def test_what_the_objective_decided_is_pinned(put):
    assert put().blueprint.objective == {**configs.CLASSIFICATION, "pooling": "cls_last"}
    assert put(adaptation__plan=HEADS).blueprint.objective["pooling"] == "mean"


# --- frozen features ---------------------------------------------------------------------------


def are_cached(run):
    return isinstance(run.streams["main"].data, CachedFeatures)


def test_states_of_a_frozen_backbone_are_computed_once(put):
    run = put(adaptation__plan=HEADS)

    assert are_cached(run)
    cached = [name for name, split in run.data.splits.items()
              if isinstance(split.data, CachedFeatures)]  # fmt: skip
    assert cached == ["train", "validation"]


@pytest.mark.parametrize(
    "changes",
    [{"adaptation__plan": {"_target_": f"{configs.PLANS}.AllAtOnce"}},
     {"loop__cache_features": False},
     {"adaptation__plan": {"_target_": f"{configs.PLANS}.Only", "train": ["head.*", "block.1"]}},
     {"adaptation__plan": {"_target_": f"{configs.PLANS}.ChainThaw", "every": "1 steps"},
      "loop__steps": 9},
     ONLY_LORA,
     {"init": "scratch"}],
    ids=["all train", "switched off", "a block trains", "later stages train", "lora", "scratch"],
)  # fmt: skip
def test_states_that_may_change_are_computed_each_time(put, changes):
    assert not are_cached(put(**{"adaptation__plan": HEADS, **changes}))


@pytest.mark.slow
@pytest.mark.parametrize(("frozen_eval", "cached"), [(False, False), (True, True)])
def test_with_dropout_states_are_kept_only_where_it_is_off(tmp_path, frozen_eval, cached):
    dropping = configs.config("pretrain", tmp_path, model={**configs.SHAPE, "dropout": 0.1})
    base = configs.run(dropping, "pretrain", tmp_path / "base").path
    config = configs.following(base, tmp_path, adaptation__plan=HEADS,
                               adaptation__frozen_eval=frozen_eval)  # fmt: skip

    assert are_cached(build_run(config, "finetune")) is cached


def test_states_that_take_too_much_memory_are_not_kept(put, monkeypatch, caplog):
    from transfer_cli.assembly import run as module

    caplog.set_level(logging.INFO)
    monkeypatch.setattr(module, "MAX_FEATURE_BYTES", 1000)

    assert not are_cached(put(adaptation__plan=HEADS))
    assert "states are computed anew each epoch" in caplog.text


# --- several streams ---------------------------------------------------------------------------


def test_streams_have_their_own_batch_and_order(put, tmp_path):
    second = {"data": configs.table(tmp_path, name="second"), "batch": 3}
    words = {**configs.CLASSIFICATION, "stream": "second"}

    run = put(streams={"second": second}, losses={"words": words})

    assert list(run.streams) == list(run.prepared) == ["main", "second"]
    main, other = (run.streams[name].sampler for name in ("main", "second"))
    assert (main.batch, other.batch) == (8, 3)
    drawn = [
        [int(n) for step in range(9) for n in order.indices(step)][:12] for order in (main, other)
    ]
    assert drawn[0] != drawn[1]
    assert run.blueprint.data.counts == {"main": 20, "second": 20}
    assert not are_cached(run)


# --- the config of a run that goes on ------------------------------------------------------------


QUICK = (
    "experiment=sample/labels", "experiment=tutorial/multitask", "experiment=recipe/clm",
    *(f"adaptation={name}" for name in ("ulmfit", "ewc", "chain_thaw", "lora")),
)  # fmt: skip
EXPERIMENTS = [f"experiment={option.name}" for option in options() if option.group == "experiment"]


def composed(folder, *words, resume=AUTO):
    command = "pretrain" if any("pretrain" in word for word in words) else "finetune"
    request = Request(overrides=(*words, f"run.dir={folder}", f"resume={resume}"))
    config = compose.load_config(command, request)
    check_config(config, command)
    return config, command


def begun(folder, *words):
    """Return a run directory in which a command has begun."""
    config, command = composed(folder, *words)
    run = RunDirectory.create(folder)
    run.write_start(command, as_yaml(config), words, {}, {})
    run.unlock()
    return run


@pytest.mark.parametrize(
    "word",
    [*QUICK, *(pytest.param(e, marks=pytest.mark.slow) for e in EXPERIMENTS if e not in QUICK)],
)
def test_what_was_typed_is_what_was_stored(tmp_path, word):
    run = begun(tmp_path / "run", word, "init_from=RUN")
    config, command = composed(run.path, word, "init_from=RUN")

    resumed = config_to_resume(config, find_run(config.resume, config.run.dir), command, ())

    assert as_yaml(resumed) == run.config.read_text()


TABLE = ("data=table", "data.train=FILE", "init_from=RUN")
FRESH = ("init=scratch", "model=tiny", "tokenizer=wordpiece")


@pytest.mark.parametrize(
    ("words", "then", "later", "kept"),
    [
        (["experiment=tutorial/pretrain_clm"], [],
         ["  norm:", "  feedforward_kind:", "  attention:"], {"model.norm": "layer"}),
        (TABLE, ["data.text=text", "data.label=label", "data.header=true"],
         ["  delimiter:", "  encoding:", "  errors:"],
         {"data.text": "text", "data.header": True, "data.errors": None}),
        (FRESH, ["tokenizer.size=28996"], [], {"tokenizer.size": 28996}),
        (TABLE, ["loop.monitor=loss"], [], {"loop.monitor": "loss"}),
    ],
    ids=["options of a model", "tables were not looked at", "a default", "another default"],
)  # fmt: skip
def test_a_run_of_an_earlier_version_is_the_same_run_and_keeps_what_it_had(
    tmp_path, words, then, later, kept
):
    run = begun(tmp_path / "run", *words, *then)
    assert without_lines(run.config, later) == len(later)
    config, command = composed(run.path, *words)

    resumed = config_to_resume(config, run, command, words)

    assert {key: OmegaConf.select(resumed, key) for key in kept} == kept


def without_lines(file, beginnings):
    """Leave out lines of a config, and its hash, as if they had not been known; return how many."""
    *lines, _ = file.read_text().splitlines(keepends=True)
    older = [line for line in lines if not line.startswith(tuple(beginnings))]
    file.write_text("".join(older))
    return len(lines) - len(older)


def test_an_option_that_is_newer_than_a_run_cannot_be_added_to_it(tmp_path):
    run = begun(tmp_path / "run", *TABLE)
    without_lines(run.config, ["  errors:"])
    config, command = composed(run.path, *TABLE, "data.errors=skip")

    with pytest.raises(ConfigError, match=r"^resume: data\.errors=skip contradicts"):
        config_to_resume(config, run, command, (*TABLE, "data.errors=skip"))


def test_where_no_run_was_begun_auto_finds_none(tmp_path):
    config, _ = composed(tmp_path / "run", "init_from=RUN")

    assert find_run(config.resume, config.run.dir) is None
