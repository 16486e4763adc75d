"""`transfer plan`: what it says is what the run then does; it trains and writes nothing."""

import re
import shutil
import subprocess
import sys

import pytest

from tests.records import read_metrics
from transfer_cli.commands import plan

STAGE = re.compile(r" +(\d+) +([\d,]+)-([\d,]+) +([\d,]+) \(([\d.]+) %\)  (\S.*)")


def stages_of(text):
    """Return number, first step, last step, count, share and groups of each stage of a plan."""
    rows = [match.groups() for match in map(STAGE.fullmatch, text.splitlines()) if match]
    return [
        (*(int(part.replace(",", "")) for part in row[:4]), float(row[4]), row[5]) for row in rows
    ]


# --- what it shows -----------------------------------------------------------------------------


def test_a_preset_is_planned_by_its_name(transfer, adapting, adapted, request):
    run = adapted("chain_thaw").run
    request.getfixturevalue("untouched")

    ended = transfer("plan", "finetune", *adapting("chain_thaw")).ok()

    assert ended.out.startswith((run / "plan.txt").read_text())
    assert "or 3 validations without a better one" in ended.out


def test_a_plan_names_groups_rates_and_where_tensors_come_from(transfer, adapting, untouched):
    words = (
        "adaptation=sequential_unfreezing", "schedule=constant", "optimizer.lr=0.01",
        "adaptation/layer_scale=geometric", "adaptation.layer_scale.factor=2",
    )  # fmt: skip

    ended = transfer("plan", "finetune", *adapting(), *words).ok()

    lines = ended.out.splitlines()
    assert lines[0] == "12 steps of 8 sequences, 3 an epoch, 3 stage(s)"
    assert [stage[:3] for stage in stages_of(ended.out)] == [(1, 1, 2), (2, 3, 9), (3, 10, 12)]
    last = lines[lines.index(next(line for line in lines if line.startswith("    3"))) :][:4]
    rates = [re.search(r"(\S+): (\S+) to (\S+)$", line).groups() for line in last]
    assert rates == [
        ("embeddings", "0.00125", "0.00125"), ("block.0", "0.0025", "0.0025"),
        ("block.1", "0.005", "0.005"), ("head.class", "0.01", "0.01"),
    ]  # fmt: skip
    assert "tensors: 28 from the checkpoint" in ended.out
    assert "  new: heads.class.linear.weight, heads.class.linear.bias" in ended.out
    assert "  dropped: heads.lm.bias" in ended.out
    assert "heads.lm.bias" not in ended.err


def test_the_rates_of_a_plan_are_those_of_the_run(transfer, adapting, adapted):
    ended = transfer("plan", "finetune", *adapting("ulmfit"))

    records = read_metrics(adapted("ulmfit").run / "metrics.jsonl")
    rates = {r["step"]: r for r in records if r["kind"] == "train"}
    for _, first, last, _, _, text in stages_of(ended.out):
        course = re.fullmatch(r"(.+): (\S+) (?:to|up to (\S+), then) (\S+)", text)
        groups, begins, peak, ends = course.groups()
        group = groups.partition(" ")[0]
        reached = max(rates[step][f"rate/{group}"] for step in range(first, last + 1))
        assert float(peak or max(begins, ends, key=float)) == pytest.approx(reached, rel=1e-2)
        assert float(begins) == pytest.approx(rates[first][f"rate/{group}"], rel=1e-2)
        assert float(ends) == pytest.approx(rates[last][f"rate/{group}"], rel=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "words", "measured"),
    [
        (
            "full",
            [],
            "\\d steps? on cpu; about \\d+ s( to \\d+ s)? for all 12, evaluations not counted",
        ),
        ("full", ["plan.steps=2"], "2 steps on cpu; about .*"),
        ("frozen", [], "\\d steps? .* the frozen backbone being passed once, evaluations not .*"),
        (
            "ewc",
            ["loop.minutes=0.00001"],
            ".* fits into loop.minutes, .* of 4 sequences not counted",
        ),
    ],
)
def test_a_plan_tells_how_long_a_run_takes(
    transfer, adapting, deep, adapted, request, preset, words, measured
):
    adapted("full")
    request.getfixturevalue("untouched")

    ended = transfer("plan", "finetune", *adapting(preset), *words).ok()

    last = ended.out.splitlines()[-1]
    assert re.fullmatch(
        rf"time: \S+( to \S+)? s a step in the first stage, measured over {measured}", last
    ), last


def test_the_time_of_long_steps_is_told_by_a_sequence_of_one(
    transfer, adapting, monkeypatch, untouched
):
    monkeypatch.setattr(plan, "PATIENCE_SECONDS", 0.0)

    ended = transfer("plan", "finetune", *adapting()).ok()

    assert "measured over two of its sequences on cpu" in ended.out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "most_bytes", "said"),
    [(["plan.steps=0"], 2**40, ""), ([], 0, "time: not measured for so much; plan.steps=3")],
)
def test_no_step_is_taken_where_that_is_not_wanted_or_not_quick(
    transfer, adapting, monkeypatch, untouched, words, most_bytes, said
):
    monkeypatch.setattr(plan, "MOST_BYTES", most_bytes)

    ended = transfer("plan", "finetune", *adapting(), *words).ok()

    *_, memory, flops = [line for line in ended.out.splitlines() if not line.startswith("time: ")]
    assert memory.startswith("memory: ")
    assert re.fullmatch(
        r"flops: about \S+ .FLOP for all 12 steps; a step takes \S+ .FLOP, \S+ .FLOP of it "
        r"without padding and masks, if each text has 32 tokens", flops,
    )  # fmt: skip
    assert ended.out.splitlines()[-1].startswith(said or "flops: ")


@pytest.mark.slow
def test_memory_is_that_of_one_of_the_processes(transfer):
    def planned(*words):
        given = ("model=small", "data=sample_text", "tokenizer.size=600", "loop.batch=64")
        ended = transfer("plan", "pretrain", *given, "plan.steps=0", *words).ok()
        said = ended.out.splitlines()[-2]
        return {
            name: int(size.replace(",", ""))
            for name, size in re.findall(r"(weights|optimizer|states).*? ([\d,]+) MiB", said)
        }

    alone, copies = planned(), planned("devices=4")
    assert copies == {**alone, "states": pytest.approx(alone["states"] / 4, rel=0.01)}
    shards = planned("devices=4", "parallel=fsdp")
    assert shards["weights"] == pytest.approx(alone["weights"] / 4, abs=1)
    assert shards["optimizer"] == pytest.approx(alone["optimizer"] / 4, abs=1)
    again = planned("loop.activation_checkpointing=true")
    assert again == {**alone, "states": again["states"]}
    assert again["states"] < alone["states"] / 3


def test_a_run_takes_no_notice_of_plan_steps(transfer, adapting, adapted, tmp_path):
    transfer("finetune", *adapting("frozen"), "plan.steps=2", "run.dir=run").ok()

    weights = [
        (run / "model" / "weights.safetensors").read_bytes()
        for run in (tmp_path / "run", adapted("frozen").run)
    ]
    assert weights[0] == weights[1]


@pytest.mark.slow
def test_pretraining_can_be_planned(transfer, deep, deep_words, untouched):
    ended = transfer("plan", *deep_words).ok()

    (stage,) = stages_of(ended.out)
    assert stage[:3] == (1, 1, 3)
    assert stage[4] == 100
    assert ended.out.partition("model: ")[0] == (deep / "plan.txt").read_text()
    assert "tensors: all new" in ended.out


def test_a_plan_reads_no_weights(transfer, adapting, deep, tmp_path):
    base = shutil.copytree(deep, tmp_path / "base")
    file = base / "model" / "weights.safetensors"
    content = file.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    file.write_bytes(content[:header] + bytes(len(content) - header))

    plain = transfer("plan", "finetune", *adapting(), "plan.steps=0")
    zeros = transfer("plan", "finetune", *adapting(), "plan.steps=0", f"init_from={base}").ok()

    assert zeros.out == plain.out


@pytest.mark.slow
def test_a_run_that_refers_to_another_can_be_planned_from(transfer, adapting, adapted, request):
    run = adapted("adapters").run
    request.getfixturevalue("untouched")

    ended = transfer("plan", "finetune", *adapting("adapters"), f"init_from={run}").ok()

    assert "  new:" not in ended.out
    assert "added.0 ... head.class" in ended.out


def test_the_rate_of_the_second_matrix_of_lora_is_shown(transfer, adapting):
    words = adapting("lora", "adaptation.edits.lora.lr_ratio=16", "optimizer.lr=1e-3")

    out = transfer("plan", "finetune", *words).out

    [row] = [line for line in out.splitlines() if "added.0 ... added.1:" in line]
    assert row.endswith(" (2 of 4 tensors at 16 times that)")


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["lora", "dora"])
def test_to_say_what_an_export_will_be_imports_no_compiler(preset, deep):
    words = ("finetune", "data=sample_questions", f"init_from={deep}", f"adaptation={preset}")
    code = (
        "import sys; from transfer_cli.cli import main; "
        f"code = main({['plan', *words, 'plan.steps=0']!r}); "
        "sys.exit(code or 10 * ('torch._dynamo' in sys.modules))"
    )

    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert ended.returncode == 0, ended.stderr
    assert "exports: " in ended.stdout


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["full", "frozen", "lora"])
def test_the_plan_and_the_header_of_a_run_say_the_same_of_it(transfer, adapting, preset):
    planned = transfer("plan", "finetune", *adapting(preset), "plan.steps=0").ok().out
    said = transfer("finetune", *adapting(preset), "run.dir=run").ok().err

    for name in ("model", "data", "steps", "memory"):
        (line,) = re.findall(rf"^{name}: +(.+)$", planned, re.MULTILINE)
        assert re.search(rf"^  {name} +{re.escape(line)}$", said, re.MULTILINE), name


def test_no_time_is_guessed_for_more_processes_than_cores(transfer, adapting):
    ended = transfer("plan", "finetune", *adapting(), "devices=500").ok()

    assert ended.out.splitlines()[-1].startswith("time: not guessed: 500 processes")
