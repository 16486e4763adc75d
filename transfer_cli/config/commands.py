"""What each command is called, takes and where its function is; read before Hydra is imported."""

from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from transfer_cli.config.conf_folder import conf_dir
from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Prose, Renderable

TYPED_KEYS = {"data_changed": "data.changed", "resume_strict": "resume.strict"}
"""Keys as they are declared -> as they are typed: `data` and `resume` need not be sections."""

DECLARED_KEYS = {typed: key for key, typed in TYPED_KEYS.items()}

CHOICES = {
    "device": "auto cpu cuda ...", "precision": "auto fp32 bf16 fp16", "init": "pretrained scratch",
    "parallel": "ddp fsdp", "split": "auto train validation test all ...",
    "baseline": "none unigram", "errors": "stop skip", "output_format": "auto jsonl csv tsv glue",
    "data.changed": "refuse accept", "data.format": "csv tsv jsonl", "cost.energy": "off auto",
    "forgetting.data": "source ...", "resume": "auto ...", "sweep.on_error": "continue stop",
    "sweep.sampler": "tpe random", "sweep.workers": "auto ...", "checkpoint.every": "auto ...",
    "sweep.direction": "auto minimize maximize", "adaptation.store": "all trained merged",
    "adaptation.schedule_per": "run stage", "evaluation.by": "auto windows memory",
    "first": "scored given", "prompt.norm": "none token char byte unconditional",
    "objective.pooling": "auto cls_first cls_last mean max concat",
    "embed pooling": "auto cls_first cls_last mean max concat",
    "predict format": "auto text jsonl csv tsv parquet xlsx",
    "embed format": "auto text jsonl csv tsv parquet xlsx", "export format": "hf onnx peft gguf",
    "quantize": "int8",
    "evaluate format": "csv tsv jsonl parquet xlsx", "loop.compile": "auto true false",
    "loop.cuda_graphs": "auto true false",
    "loop.micro_batch": "auto ...", "loop.average": "ema last_k",
    "logger": "tensorboard trackio wandb mlflow",
}  # fmt: skip
"""The words that a key takes, some of one command alone; with "..." it takes others, too.

`config.check` refuses what is none of them; a test holds them to what is declared.
"""

FLAGS = (
    ("--help all", "Show every option and every key, with a line on each."),
    ("--cfg job", "Print the whole config instead of running (with --resolve: filled in)."),
    ("--info defaults", "Print which files it was put together from."),
    ("FILE.yaml", "Read keys from a file, as --config FILE; typed ones win."),
    ("--config-dir DIR", "Also search DIR for options of your own."),
    ("--config-name NAME", "Start from DIR/NAME.yaml, whose defaults begin with the command."),
    ("--plugin PACKAGE", "Let configs name classes of a package of your own."),
    ("-m", "One run for each value of a,b,c or range(1,4)."),
    ("--debug", "Show the traceback of every error."),
)
"""What every command that takes overrides takes besides."""


@dataclass(frozen=True)
class Command:
    """A command as people see it.

    Args:
        function: `module.function`, imported when the command runs and not before.
        keys: The keys that people change most, in the order of the help text; none for a command
            that takes no overrides.
        hidden: Beginnings of `_target_`, or of `GROUP/OPTION`, that make no sense here; such
            options are not listed.
        needs: What makes sense under a condition: beginnings of `GROUP/OPTION`, and the override
            that has to be given. The value RUN stands for any, null for none.
        ignores: Beginnings of keys that it takes and does nothing with; they are not listed.
        scales: Whether several processes can work on it (`devices=N`).
        positionals: The keys whose values may be typed alone, in order, and what help calls them.
        text_key: The key of a text, which is never read as more than text.
        list_keys: Keys of several such texts.
        files: The key of the last place where it takes several.
        open_sections: Keys below which there are names of one's own.
        usage: What follows its name, for a command that takes no overrides.
    """

    summary: str
    function: str = ""
    keys: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    needs: tuple[tuple[str, str], ...] = ()
    ignores: tuple[str, ...] = ()
    scales: bool = False
    makes_runs: bool = False
    positionals: tuple[tuple[str, str], ...] = ()
    text_key: str = ""
    list_keys: tuple[str, ...] = ()
    files: str = ""
    open_sections: tuple[str, ...] = ()
    usage: str = ""
    typed_as: str = ""

    @property
    def composes(self) -> bool:
        """Whether it takes Hydra overrides."""
        return bool(self.keys)


class Guide(NamedTuple):
    """What help says of a command: a text, and command lines, each with what it is for."""

    text: str
    examples: tuple[tuple[str, str], ...]


@cache
def guide_of(name: str) -> Guide:
    """Return what `conf/commands.yaml` says of a command."""
    from transfer_cli.config.bounded_yaml import PARSER  # which imports YAML: help alone needs it

    text = (conf_dir() / "commands.yaml").read_text(encoding="utf-8")
    guide = PARSER(text).get_single_data()[name]
    return Guide(guide.get("text", ""), tuple((e["type"], e["for"]) for e in guide["examples"]))


# fmt: off
_NO_MAIN_PARTS = (
    "transfer_cli.data.minimal_pairs.", "transfer_cli.objectives.sentence_pair.",
    "transfer_cli.objectives.with_teachers.SourceDistillation",
)
"""What no run is made of alone."""

ALL: dict[str, Command] = {
    "prepare": Command(
        summary="fetch a data set, make its tokenizer and encode it",
        function="transfer_cli.commands.inspect.prepare",
        keys=("data_dir", "init_from", "tokenizer.size", "seed"),
        needs=(("tokenizer/", "init_from=null"),),
    ),
    "inspect": Command(
        summary="look at the data: samples, lengths, labels, unknown tokens, overlap",
        function="transfer_cli.commands.inspect.inspect",
        keys=("samples", "data_dir", "init_from", "tokenizer.size", "seed"),
        hidden=(*_NO_MAIN_PARTS, "model/dial"),
        needs=(("tokenizer/", "init_from=null"), ("model/", "init_from=null")),
    ),
    "pretrain": Command(
        summary="train a language model on unlabelled text",
        function="transfer_cli.commands.pretrain_finetune.pretrain",
        keys=(
            "budget", "optimizer.lr", "loop.steps", "loop.epochs", "loop.batch",
            "seed", "device", "precision", "run.dir", "resume",
        ),
        hidden=(
            *_NO_MAIN_PARTS, "transfer_cli.objectives.classification.", "transfer_cli.tasks.",
            "sweep/few_label",
        ),
        needs=(
            ("model/", "init_from=null"), ("tokenizer/", "init_from=null"),
            ("adaptation", "init_from=RUN"), ("sweep/schemes", "init_from=RUN"),
        ),
        ignores=("plan.", "lr_find."), scales=True, makes_runs=True,
    ),
    "finetune": Command(
        summary="adapt a pretrained model to a labelled task",
        function="transfer_cli.commands.pretrain_finetune.finetune",
        keys=(
            "init_from", "init", "budget", "optimizer.lr", "loop.epochs", "loop.batch",
            "seed", "device", "run.dir", "resume",
        ),
        hidden=(
            *_NO_MAIN_PARTS, "transfer_cli.data.text.", "transfer_cli.data.known_texts.",
            "transfer_cli.objectives.causal_lm.", "transfer_cli.objectives.masked_lm.",
            "model/dial",
        ),
        needs=(("model/", "init=scratch"), ("tokenizer/", "init=scratch")),
        ignores=("plan.", "lr_find."), list_keys=("tokenizer.add", "data.speakers"),
        open_sections=("losses.slices.parts",), scales=True, makes_runs=True,
    ),
    "plan": Command(
        summary="show what a run would train when, and how fast, without training",
        usage="finetune|pretrain [GROUP=OPTION ...] [KEY=VALUE ...]",
    ),
    "lr-find": Command(
        summary="find a learning rate by a short run over a range of them",
        usage="finetune|pretrain [GROUP=OPTION ...] [KEY=VALUE ...]",
    ),
    "evaluate": Command(
        summary="score a run on a split of its own data, or of other data",
        function="transfer_cli.commands.evaluate.evaluate",
        positionals=(("run", "RUN"), ("input", "FILE ...")), files="input",
        open_sections=("slices",),
        keys=(
            "run", "input", "split", "slices", "baseline", "batch", "device", "precision",
            "data_dir", "seed",
        ),
        ignores=("tokenizer", "experiment"), scales=True,
    ),
    "predict": Command(
        summary="label texts with a fine-tuned run",
        function="transfer_cli.commands.predict.predict.predict",
        positionals=(("run", "RUN"), ("input", "FILE ...")), files="input",
        keys=(
            "run", "input", "output", "text", "pair", "format", "output_format", "keep",
            "errors", "batch",
        ),
        scales=True,
    ),
    "embed": Command(
        summary="write a vector for each text, for search and clustering",
        function="transfer_cli.commands.embed.embed",
        positionals=(("run", "MODEL"), ("input", "FILE")),
        keys=(
            "run", "input", "output", "text", "pooling", "normalize", "nearest", "format", "batch",
            "device",
        ),
    ),
    "generate": Command(
        summary="let a causal language model go on with a text",
        function="transfer_cli.commands.generate.generate",
        positionals=(("run", "RUN"), ("prompt", "TEXT")),
        keys=(
            "run", "prompt", "messages", "max_tokens", "temperature", "beams", "seed", "stop",
            "samples", "output",
        ),
        text_key="prompt", list_keys=("stop",),
    ),
    "serve": Command(
        summary="answer over HTTP: predict, generate and embed, and a page to type into",
        function="transfer_cli.serving.command.serve",
        positionals=(("run", "RUN ..."),), files="run", list_keys=("serve.origins",),
        keys=(
            "run", "port", "host", "device", "precision", "serve.wait_ms", "serve.timeout_seconds",
            "serve.token_file",
        ),
    ),
    "chat": Command(
        summary="talk to a model in the terminal",
        function="transfer_cli.commands.chat.chat",
        positionals=(("run", "RUN"),),
        keys=("run", "system", "persona", "max_tokens", "temperature", "top_k", "top_p", "seed"),
        list_keys=("persona",),
    ),
    "fill": Command(
        summary="fill the gaps of a text by a masked language model",
        function="transfer_cli.commands.fill.fill_gaps",
        positionals=(("run", "RUN"), ("text", "TEXT")),
        keys=("run", "text", "top", "output", "device", "precision"),
        text_key="text",
    ),
    "score": Command(
        summary="score sentences and prompts by a language model, without training",
        function="transfer_cli.commands.score.score.score",
        positionals=(("run", "RUN"),),
        keys=(
            "run", "prompt.item", "prompt.words", "prompt.shots", "prompt.calibrate", "split",
            "output", "device",
        ),
        hidden=("transfer_cli.data.text.", "transfer_cli.data.known_texts."),
        ignores=("tokenizer", "experiment"),
        list_keys=("prompt.item", "prompt.head"),
    ),
    "analyze": Command(
        summary="look into a model: probes, attention, importance, attributions, changes",
        function="transfer_cli.commands.analyze.analyze",
        positionals=(("run", "RUN"),),
        keys=("run", "input", "split", "other", "html", "seed", "device"),
        ignores=("tokenizer", "experiment"),
    ),
    "export": Command(
        summary="write a run as a folder that other libraries load",
        function="transfer_cli.commands.export.export.export",
        positionals=(("run", "RUN"), ("to", "FOLDER")),
        keys=("run", "to", "format", "quantize", "prune", "prune_share", "family", "head", "base"),
    ),
    "push": Command(
        summary="put a run on the Hugging Face hub, with its card",
        function="transfer_cli.commands.push.push",
        positionals=(("run", "RUN"), ("repository", "owner/name")),
        keys=("run", "repository", "private", "dry", "base"),
    ),
    "report": Command(
        summary="compare runs and sweeps: a table, CSV, Markdown, a page with charts",
        usage="""\
PATH ... [--sort KEY] [--baseline WORDS] [--slice NAME.KEY=VALUE]
                       [--csv FILE] [--markdown FILE] [--json FILE] [--html FILE]
                       [--plugin PACKAGE]""",
        function="transfer_cli.commands.report.report",
    ),
    "diff": Command(
        summary="show in what two runs differ: config, data, environment, measures",
        usage="RUN_A RUN_B [--json]",
        function="transfer_cli.commands.diff.diff",
    ),
    "presets": Command(
        summary="list every config group and option, with one line on each",
        usage="[GROUP ...] [models] [--json|--schema] [--config-dir DIR]",
        function="transfer_cli.commands.presets.presets",
    ),
    "init": Command(
        summary="start a folder of your own configs, with commented copies to edit, or a file",
        usage="DIR [--from GROUP=OPTION ...] | FILE.yaml --save WORDS",
        function="transfer_cli.commands.presets.init",
    ),
    "info": Command(
        summary="show versions, devices and caches",
        usage="[--json]",
        function="transfer_cli.commands.info.info",
    ),
    "completion": Command(
        summary="print the completion script for a shell",
        usage="bash|zsh|fish",
        function="transfer_cli.cli.print_completion_script",
    ),
}
# fmt: on
"""In the order in which they are listed."""

_KEYS_OF_RUNS = ("run.dir", "resume")

SUBCOMMANDS = {
    name: {
        kind: replace(
            ALL[kind],
            summary=ALL[name].summary,
            function=f"{function}_{kind}",
            keys=(*(key for key in ALL[kind].keys if key not in _KEYS_OF_RUNS), *keys),
            hidden=(*ALL[kind].hidden, *hidden),
            needs=tuple(pair for pair in ALL[kind].needs if not pair[0].startswith(hidden)),
            ignores=ignores,
            typed_as=f"{name} {kind}",
            scales=False,
            makes_runs=False,
        )
        for kind in ("finetune", "pretrain")
    }
    for name, function, keys, hidden, ignores in (
        ("plan", "transfer_cli.commands.plan.plan", ("plan.steps",), (),
         ("lr_find.", "run.", "cost.", "logger")),
        ("lr-find", "transfer_cli.commands.lr_find.find", ("lr_find.start", "lr_find.end"),
         ("sweep/",), ("plan.", "sweep.", "cost.", "logger")),
    )
}  # fmt: skip
"""For `plan` and `lr-find`: the commands whose overrides they take, looking at a run instead."""


def overview() -> Page:
    """Return the help text of `transfer` itself."""
    listed = [_entry(f"  {name}", command.summary, 14) for name, command in ALL.items()]
    return Page(
        Prose("Pretrain Transformer language models and adapt them to tasks."),
        BLANK,
        Line(Piece("usage:", "heading"), " transfer COMMAND [KEY=VALUE ...] [FLAGS]"),
        BLANK,
        *listed,
        BLANK,
        _entry("transfer COMMAND --help", "what is changed most, examples, what can be chosen"),
        _entry("transfer COMMAND --help all", "every option and key, with a line on each"),
        _entry("transfer --version", "the version"),
        _entry("TRANSFER_DATA", "where data sets lie or are fetched to (~/.cache/transfer)"),
        _entry("TRANSFER_PRECISION", "the precision where none is typed (auto)"),
        _entry("TRANSFER_DEBUG=1", "tracebacks for every error (so does --debug)"),
        BLANK,
        Line(Piece("Try it, offline, in about a minute:", "heading")),
        Line("  transfer pretrain experiment=sample/pretrain run.dir=runs/first"),
        Line("  transfer finetune experiment=sample/finetune init_from=runs/first"),
    )


def help_page(name: str) -> Page:
    """Return the help text of a command that composes no config."""
    command = ALL[name]
    parts: list[Renderable] = [*heading(name, command, command.usage), BLANK, *examples(name)]
    text = guide_of(name).text
    return Page(*parts, *((BLANK, Prose(text)) if text else ()))


def heading(name: str, command: Command, usage: str) -> list[Renderable]:
    """Return what every help text begins with."""
    first, *others = usage.splitlines()
    return [
        Line(Piece(f"transfer {name}", "heading"), f": {command.summary}"),
        Line(Piece("usage:", "heading"), f" transfer {name} {first}"),
        *map(Line, others),
    ]


def examples(name: str) -> list[Renderable]:
    """Return the examples of a command, each with what it is for."""
    blocks: list[Renderable] = [Line(Piece("Examples:", "heading"))]
    for line, purpose in guide_of(name).examples:
        blocks += [Line("  ", Piece(f"# {purpose}", "note")), Line(f"  {line}")]
    return blocks


def _entry(head: str, text: str, column: int = 29) -> Entry:
    return Entry([Piece(head, "name")], [text], column)
