"""Configs of tiny runs, made without Hydra, and the runs that they describe.

`folder` holds all that a run reads and writes; nothing else is touched.
"""

from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from transfer_cli.config.schema import COMMANDS
from transfer_cli.runs.directory import RunDirectory
from transfer_cli.training.train import train

OURS = "transfer_cli"
SHAPE = {"_target_": f"{OURS}.model.backbone.BackboneShape", "width": 16, "heads": 2, "depth": 2,
         "feedforward": 32, "positions": 24, "dropout": 0.0}  # fmt: skip
PLANS = f"{OURS}.adaptation.plans"
EDITS = f"{OURS}.adaptation.edits"
CLASSIFICATION = {"_target_": f"{OURS}.objectives.classification.Classification", "dropout": 0.0}
CLM = {"_target_": f"{OURS}.objectives.causal_lm.CausalLM"}
MLM = {"_target_": f"{OURS}.objectives.masked_lm.MaskedLM"}
LORA = {"_target_": f"{EDITS}.LoRA", "rank": 2}
ADAPTERS = {"_target_": f"{EDITS}.Adapters", "size": 2}
FRESH_TOP = {"_target_": f"{EDITS}.FreshTop", "blocks": 1}
THAW = {"_target_": f"{PLANS}.SequentialUnfreezing"}
ONLY_LORA = {
    "adaptation__edits": {"lora": LORA}, "adaptation__plan": {"_target_": f"{PLANS}.NewWeights"},
}  # fmt: skip

WORDS = ("bridge", "market", "harbour", "garden", "tower", "well", "river", "wall")


def text(folder: Path, lines: int = 40, name: str = "text") -> dict[str, Any]:
    """Write a text, and another to validate on; return the node of the data that they are."""
    node: dict[str, Any] = {"_target_": f"{OURS}.data.text.TextFiles", "length": 12}
    for split, first in {"train": 0, "validation": 1}.items():
        path = folder / f"{name}-{split}.txt"
        said = (f"the {WORDS[n % 8]} is near the {WORDS[n % 3]} .\n" for n in range(lines))
        path.write_text("".join(list(said)[first:]))
        node[split] = str(path)
    return node


def table(folder: Path, rows: int = 20, name: str = "table") -> dict[str, Any]:
    """Write a table of questions with two labels; return the node of the data that it is.

    Half as many are for validation, and as many for the test.
    """
    node: dict[str, Any] = {"_target_": f"{OURS}.tasks.table.Table"}
    for split, (first, count) in {"train": (0, rows), "validation": (1, rows // 2),
                                  "test": (2, rows // 2)}.items():  # fmt: skip
        path = folder / f"{name}-{split}.csv"
        told = [
            f"where is number {n} of the {WORDS[n % 8]} ?,place"
            if n % 2
            else f"how many have {n} of the {WORDS[n % 8]} ?,number"
            for n in range(first, first + count)
        ]
        path.write_text("\n".join(["text,label", *told]) + "\n")
        node[split] = str(path)
    return node


def config(command: str, folder: Path, **changes: Any) -> DictConfig:
    """Return the config of a tiny run from scratch.

    Args:
        command: pretrain or finetune.
        folder: For data and caches.
        changes: Nodes and values by key; `loop__steps` is `loop.steps`.
    """
    pretrains = command == "pretrain"
    plain: dict[str, Any] = {
        "data_dir": str(folder),
        "device": "cpu",
        "data": text(folder) if pretrains else table(folder),
        "tokenizer": {"_target_": f"{OURS}.data.tokenizer_recipes.WordPiece", "size": 80},
        "model": SHAPE,
        "objective": CLM if pretrains else CLASSIFICATION,
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.1},
        "schedule": {"_target_": f"{OURS}.optim.schedules.Constant"},
        "adaptation": {
            "_target_": f"{OURS}.adaptation.adaptation.Adaptation",
            "plan": {"_target_": f"{PLANS}.AllAtOnce"},
            "layer_scale": {"_target_": f"{OURS}.optim.layer_scale.Uniform"},
        },
        "loop": {"steps": 4, "batch": 8, "evaluate_every": "1 steps", "log_every": 1},
    }  # fmt: skip
    if not pretrains:
        plain["init"] = "scratch"
    made: DictConfig = OmegaConf.merge(OmegaConf.structured(COMMANDS[command]), plain)
    for key, value in changes.items():
        OmegaConf.update(made, key.replace("__", "."), value, merge=False, force_add=True)
    return made


def following(run: Path, folder: Path, **changes: Any) -> DictConfig:
    """Return the config of a tiny run that fine-tunes what another one left."""
    defaults = {"model": None, "tokenizer": None, "init": "pretrained", "init_from": str(run)}
    return config("finetune", folder, **{**defaults, **changes})


def run(chosen: DictConfig, command: str, path: Path) -> RunDirectory:
    """Train in a run directory of that path, or go on there; return it."""
    begun = RunDirectory.holds_run(path)
    OmegaConf.update(chosen, "resume" if begun else "run.dir", str(path))
    train(chosen, command)
    return RunDirectory(path)
