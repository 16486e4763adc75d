"""What each command is called, does and where its function is; read before Hydra is imported."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Prose, Renderable

SPOKEN = {"data_changed": "data.changed", "resume_strict": "resume.strict"}
"""Keys as they are declared -> as they are typed: `data` and `resume` need not be sections."""

FLAGS = (
    ("--help all", "Show every option and every key, with a line on each."),
    ("--cfg job", "Print the whole config instead of running (with --resolve: filled in)."),
    ("--info defaults", "Print which files it was put together from."),
    ("--config-dir DIR", "Also search DIR for options of your own."),
    ("--config-name NAME", "Start from DIR/NAME.yaml, whose defaults begin with the command."),
    ("--plugin PACKAGE", "Let configs name classes of a package of your own."),
    ("-m", "One run for each value of a,b,c or range(1,4)."),
    ("--debug", "Show the traceback of every error."),
    ("--hydra-help", "Hydra's own flags."),
)
"""What every command that takes overrides takes besides."""


@dataclass(frozen=True)
class Command:
    """A command as people see it.

    Args:
        summary: One line.
        text: What it does, in a few lines.
        function: `module.function`, imported when the command runs and not before.
        keys: The keys that people change most, in the order of the help text; none for a command
            that takes no overrides.
        examples: Command lines, each with what it is for.
        hidden: Beginnings of `_target_`, or of `GROUP/OPTION`, that make no sense here; such
            options are not listed.
        only: What makes sense under a condition: beginnings of `GROUP/OPTION`, and the override
            that has to be given. The value RUN stands for any, null for none.
        ignores: Beginnings of keys that it takes and does nothing with; they are not listed.
        scales: Whether several processes can work on it (`devices=N`).
        makes_runs: Whether it leaves a run directory.
        places: The keys whose values may be typed alone, in their order, and what help calls them.
        typed: The key of a text, which is never read as more than text.
        lists: Keys of several such texts.
        named: Keys below which there are names of one's own.
        usage: What follows its name, for a command that takes no overrides.
        typed_as: What it is typed as, where that is not its name.
    """

    summary: str
    text: str = ""
    function: str = ""
    keys: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    only: tuple[tuple[str, str], ...] = ()
    ignores: tuple[str, ...] = ()
    scales: bool = False
    makes_runs: bool = False
    places: tuple[tuple[str, str], ...] = ()
    typed: str = ""
    lists: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    usage: str = ""
    typed_as: str = ""

    @property
    def composes(self) -> bool:
        """Whether it takes Hydra overrides."""
        return bool(self.keys)


ALL: dict[str, Command] = {
    "prepare": Command(
        summary="fetch a data set, make its tokenizer and encode it",
        text="""\
Does what `pretrain` and `finetune` do before their first step, and trains nothing: fetches the
data set if it is not there, trains the tokenizer, encodes the text into the cache. A later run
with the same settings starts at once.""",
        function="transfer_cli.commands.prepare.prepare",
        keys=("data_dir", "init_from", "tokenizer.size", "seed"),
        examples=(
            ("transfer prepare", "WikiText-103 with a vocabulary of 28,996 word pieces"),
            ("transfer prepare data=wikitext2 tokenizer=bpe tokenizer.size=8192", "a smaller one"),
            ("transfer prepare data=trec6 init_from=RUN", "a task, with the tokenizer of a run"),
        ),
        only=(("tokenizer/", "init_from=null"),),
    ),
    "inspect": Command(
        summary="look at the data: samples, lengths, labels, unknown tokens, overlap",
        text="""\
Shows what a model would see: samples of each split as text and as tokens with their labels or
targets, how long the texts are, how often each label occurs, how many tokens are unknown, and how
much of the training data is found again in validation and test.""",
        function="transfer_cli.commands.inspect.inspect",
        keys=("samples", "data_dir", "init_from", "tokenizer.size", "seed"),
        examples=(
            ("transfer inspect data=sample_questions", "the embedded sample"),
            ("transfer inspect data=trec6 init_from=RUN", "a task, with the tokenizer of a run"),
            ("transfer inspect data=wikitext2 objective=mlm", "with what the objective hides"),
        ),
        hidden=(
            "transfer_cli.objectives.source_distillation.",
            "transfer_cli.objectives.sentence_pair.",
            "transfer_cli.data.minimal_pairs.",
        ),
        only=(("tokenizer/", "init_from=null"), ("model/", "init_from=null")),
    ),
    "pretrain": Command(
        summary="train a language model on unlabelled text",
        text="""\
Trains a Transformer on text without labels: `objective=clm` predicts the next word piece,
`objective=mlm` restores hidden ones. Alone it is a causal model of about 50M parameters on
WikiText-103. The run directory then holds the weights, the tokenizer, all measures and the
TensorBoard curves; `transfer finetune init_from=RUN` goes on from there.""",
        function="transfer_cli.commands.pretrain.pretrain",
        keys=(
            "optimizer.lr",
            "loop.steps",
            "loop.epochs",
            "loop.batch",
            "loop.micro_batch",
            "seed",
            "device",
            "precision",
            "run.dir",
            "resume",
        ),
        examples=(
            ("transfer pretrain experiment=sample/pretrain", "half a minute on a laptop, offline"),
            ("transfer pretrain data=text data.train='corpus/*.txt' objective=mlm", "own text"),
            ("transfer pretrain resume=runs/pretrain/RUN", "go on with a run that was stopped"),
        ),
        hidden=(
            "transfer_cli.data.minimal_pairs.",
            "transfer_cli.objectives.classification.",
            "transfer_cli.tasks.",
            "transfer_cli.objectives.source_distillation.",
            "transfer_cli.objectives.sentence_pair.",
            "sweep/few_label",
        ),
        only=(
            ("model/", "init_from=null"),
            ("tokenizer/", "init_from=null"),
            ("adaptation", "init_from=RUN"),
            ("sweep/schemes", "init_from=RUN"),
        ),
        ignores=("plan.", "lr_find."),
        scales=True,
        makes_runs=True,
    ),
    "finetune": Command(
        summary="adapt a pretrained model to a labelled task",
        text="""\
Puts a new head on a pretrained model and trains both on labelled texts. The model and the
tokenizer are those of `init_from`: a run, or a published model of many families (a folder, or
`hf:owner/name`). The weights that did best on the validation split are kept, and the test split
sees only those, once. `init=scratch` trains the same model from fresh weights, for comparison.""",
        function="transfer_cli.commands.finetune.finetune",
        keys=(
            "init_from",
            "init",
            "optimizer.lr",
            "loop.epochs",
            "loop.batch",
            "forgetting.data",
            "seed",
            "device",
            "run.dir",
            "resume",
        ),
        examples=(
            ("transfer finetune init_from=runs/pretrain/RUN", "TREC-6, everything trains"),
            (
                "transfer finetune init_from=RUN data=table data.train=train.csv data.label=topic",
                "own table",
            ),
            (
                "transfer finetune init_from=RUN adaptation=full,frozen -m",
                "two runs, one for each value",
            ),
        ),
        hidden=(
            "transfer_cli.data.text.",
            "transfer_cli.data.minimal_pairs.",
            "transfer_cli.objectives.causal_lm.",
            "transfer_cli.objectives.masked_lm.",
            "transfer_cli.objectives.source_distillation.",
            "transfer_cli.objectives.sentence_pair.",
        ),
        only=(("model/", "init=scratch"), ("tokenizer/", "init=scratch")),
        ignores=("plan.", "lr_find."),
        lists=("tokenizer.add", "data.speakers"),
        named=("losses.slices.parts",),
        scales=True,
        makes_runs=True,
    ),
    "plan": Command(
        summary="show what a run would train when, and how fast, without training",
        usage="finetune|pretrain [GROUP=OPTION ...] [KEY=VALUE ...]",
        examples=(
            ("transfer plan finetune init_from=RUN adaptation=ulmfit", "its stages and rates"),
            ("transfer plan finetune init_from=RUN plan.steps=5", "how long it would take"),
            ("transfer plan pretrain model=small loop.batch=128", "how much memory it takes"),
        ),
        text="""\
Takes the words of `transfer finetune` or `transfer pretrain` and prints the stages of the run: from
which step to which, what trains, how many parameters that is, at which rates; which tensors come
from the checkpoint, which are new and which are dropped; and about how much memory it takes; and
how long it would last, measured on a few of its steps where that is quick: `plan.steps=5` takes
five in any case, `plan.steps=0` none. Text to read is encoded first, as the run itself would; that
is kept.""",
    ),
    "lr-find": Command(
        summary="find a learning rate by a short run over a range of them",
        usage="finetune|pretrain [GROUP=OPTION ...] [KEY=VALUE ...]",
        examples=(
            ("transfer lr-find finetune init_from=RUN", "for full fine-tuning"),
            ("transfer lr-find finetune init_from=RUN adaptation=lora", "for LoRA"),
            (
                "transfer lr-find pretrain model=tiny data=wikitext2 lr_find.end=0.1",
                "up to a rate of 0.1",
            ),
        ),
        text="""\
Takes the words of `transfer finetune` or `transfer pretrain`, lets the rate of every layer group
grow from step to step until the loss explodes (Smith 2017), and suggests a rate for each group. The
curve is left as a picture, as numbers and in TensorBoard; no model is kept. `lr_find.start`,
`lr_find.end` and `lr_find.steps` set the range.""",
    ),
    "evaluate": Command(
        summary="score a run on a split of its own data, or of other data",
        text="""\
Measures a run's best weights: perplexities and bits per byte for a language model, error rate,
accuracy and macro-F1 for a classifier. `input=` scores every row of a labelled table of your own,
and `data=` other data that fits the run.""",
        function="transfer_cli.commands.evaluate.evaluate",
        places=(("run", "RUN"), ("input", "FILE")),
        named=("slices",),
        keys=(
            "run",
            "input",
            "split",
            "slices",
            "baseline",
            "batch",
            "device",
            "precision",
            "data_dir",
            "seed",
        ),
        examples=(
            ("transfer evaluate runs/finetune/RUN", "the test split"),
            ("transfer evaluate run=RUN 'slices.short.length=[0,6]'", "of short texts, too"),
            (
                "transfer evaluate run=RUN split=validation baseline=unigram",
                "what word frequencies alone would reach",
            ),
            ("transfer evaluate RUN new.csv", "every row of a labelled table"),
        ),
        ignores=("tokenizer", "experiment"),
        scales=True,
    ),
    "predict": Command(
        summary="label texts with a fine-tuned run",
        text="""\
Reads texts from a file or standard input and writes a JSON line or a row of a table for each, in
input order, with the label and the probability of every label. Works on any amount of text in
bounded memory. Of several runs it writes the mean of their probabilities. A file of answers grows
beside its place; after a signal or a kill, the same command with resume=true goes on there.""",
        function="transfer_cli.commands.predict.predict.predict",
        places=(("run", "RUN"), ("input", "FILE")),
        keys=(
            "run",
            "input",
            "output",
            "text",
            "pair",
            "format",
            "output_format",
            "keep",
            "errors",
            "batch",
        ),
        examples=(
            ("echo 'Who wrote Hamlet ?' | transfer predict run=runs/finetune/RUN", "one text"),
            ("transfer predict RUN questions.txt output=labels.jsonl", "one text a line"),
            ("transfer predict RUN table.csv text=question", "a column of a table"),
            (
                "transfer predict run=[RUN,RUN] input=a.csv output=b.csv keep=true errors=skip",
                "two runs together; all columns; rows that cannot be read are left out",
            ),
        ),
        scales=True,
    ),
    "generate": Command(
        summary="let a causal language model go on with a text",
        text="""\
Goes on with a text by a run of `objective=clm`, and shows the words as they come. The text stands
behind `prompt=` or alone, in quotes, and may hold any characters. Each token is drawn from what
the model predicts, `top_p` and `top_k` leave out what is unlikely, and `temperature=0` takes the
likeliest; the same `seed` makes the same text.""",
        function="transfer_cli.commands.generate.generate",
        places=(("run", "RUN"), ("prompt", "TEXT")),
        keys=(
            "run",
            "prompt",
            "max_tokens",
            "temperature",
            "top_k",
            "top_p",
            "seed",
            "stop",
            "samples",
            "output",
        ),
        examples=(
            ("transfer generate runs/pretrain/RUN 'Once upon a time'", "a text"),
            (
                "transfer generate run=RUN 'Once upon a time' temperature=0 stop=.",
                "a greedy sentence",
            ),
            ("transfer generate run=RUN prompt=- samples=5 output=texts.jsonl < story.txt", "five"),
        ),
        typed="prompt",
        lists=("stop",),
    ),
    "chat": Command(
        summary="talk to a dialog model in the terminal",
        text="""\
Answers each line that is typed, by a run of `objective=next_utterance` whose words were trained,
too (`+objective@losses.lm=clm`). It knows who it is by `persona`, and as much of what was said as
in training. It ends with the input (Ctrl-D); lines from a pipe are answered as well.""",
        function="transfer_cli.commands.chat.chat",
        places=(("run", "RUN"),),
        keys=("run", "persona", "max_tokens", "temperature", "top_k", "top_p", "seed"),
        examples=(
            ("transfer chat runs/finetune/RUN", "talk to it"),
            ("transfer chat run=RUN persona='I have two cats .'", "it knows who it is"),
            ("transfer chat run=RUN temperature=0 < lines.txt", "a reply to each line"),
        ),
        lists=("persona",),
    ),
    "fill": Command(
        summary="fill the gaps of a text by a masked language model",
        text="""\
Shows what a run of `objective=mlm` would put where a text has `[MASK]`: the likeliest words for
each gap, with their probabilities, and the text with the best of them.""",
        function="transfer_cli.commands.fill.fill_gaps",
        places=(("run", "RUN"), ("text", "TEXT")),
        keys=("run", "text", "top", "output", "device", "precision"),
        examples=(
            ("transfer fill runs/pretrain/RUN 'The capital of [MASK] is Paris .'", "one gap"),
            ("transfer fill run=RUN 'The [MASK] of France is [MASK] .' top=10", "two of them"),
            ("transfer fill run=RUN text='The [MASK] .' output=- | jq .filled", "as JSON"),
        ),
        typed="text",
    ),
    "score": Command(
        summary="score sentences and prompts by a language model, without training",
        text="""\
Asks a language model, of a run or published, which it finds likelier. `data=minimal_pairs` holds
good and bad sentences, `data=agreement` made-up ones about subjects and verbs. Labelled texts
(`data=trec6`, `data=table`, ...) are asked for their label by a prompt, with or without examples
before it, `data=choices` for the likeliest text. What comes of it is a run that `report` compares
with fine-tuned ones on the same items.""",
        function="transfer_cli.commands.score.score.score",
        places=(("run", "RUN"),),
        keys=(
            "run",
            "prompt.item",
            "prompt.words",
            "prompt.shots",
            "prompt.calibrate",
            "split",
            "output",
            "device",
        ),
        examples=(
            ("transfer score RUN data=minimal_pairs data.files='blimp/*.jsonl'", "own pairs"),
            ("transfer score run=hf:owner/name data=agreement", "subjects and verbs"),
            (
                "transfer score RUN data=trec6 prompt.item='{text} Type: {label}' "
                "prompt.calibrate=true",
                "labels",
            ),
        ),
        hidden=("transfer_cli.data.text.",),
        ignores=("tokenizer", "experiment"),
        lists=("prompt.item", "prompt.head"),
    ),
    "analyze": Command(
        summary="look into a model: probes, attention, importance, attributions, changes",
        text="""\
Opens a run, one of its checkpoints or a published model, and finds out what is asked: what each
layer knows (`analysis=probes`), where heads look (`attention`), what the model needs
(`importance`), which words decide (`attributions`), and more; `transfer presets analysis` lists
them. It shows the model the run's own data, other data (`data=`) or a file of texts (`input=`). The
run stays as it is; what is found is in `RUN/analyses/`, which `transfer report` shows, too.""",
        function="transfer_cli.commands.analyze.analyze.analyze",
        places=(("run", "RUN"),),
        keys=("run", "input", "split", "other", "html", "seed", "device"),
        examples=(
            ("transfer analyze RUN analysis=probes", "what each layer knows"),
            ("transfer analyze RUN analysis=attention input=texts.txt --html page.html", "a page"),
            ("transfer analyze run=RUN analysis=similarity other=RUN", "what changed"),
        ),
        ignores=("tokenizer", "experiment"),
    ),
    "export": Command(
        summary="write a run as a folder that other libraries load",
        text="""\
Writes the model of a run for use without this tool. `format=hf` writes what Hugging Face's
`transformers` loads by `AutoModel...from_pretrained`, with the tokenizer, the names of the labels
and a model card: as a model of a published family where it is one (GPT-2, BERT, Llama, ...), else
with the code to load it (`trust_remote_code=True`). LoRA and (IA)3 are folded in. `transfer plan`
says beforehand which it will be. `format=onnx` writes an ONNX graph, checked against torch.""",
        function="transfer_cli.commands.export.export.export",
        places=(("run", "RUN"), ("to", "FOLDER")),
        keys=("run", "to", "format", "family", "head", "base"),
        examples=(
            ("transfer export runs/finetune/RUN my-classifier", "for transformers"),
            ("transfer export run=RUN to=graph format=onnx", "for ONNX runtimes"),
            ("transfer export run=RUN to=encoder head=false", "the backbone alone"),
        ),
    ),
    "report": Command(
        summary="compare runs and sweeps: a table, CSV, Markdown, a page with charts",
        usage="""\
PATH ... [--sort KEY] [--baseline WORDS] [--slice NAME.KEY=VALUE]
                       [--csv FILE] [--markdown FILE] [--json FILE] [--html FILE]
                       [--plugin PACKAGE]""",
        examples=(
            ("transfer report runs/finetune", "every run in a folder"),
            (
                "transfer report RUN RUN --slice 'short.length=[0,6]'",
                "and how they do on short texts",
            ),
            ("transfer report SWEEP --baseline adaptation=full --html report.html", "with a page"),
            ("transfer report RUN RUN --sort test/error_rate --csv -", "two runs, as CSV"),
        ),
        text="""\
Reads runs, sweeps, and folders that hold any of them. Runs that differ in the seed alone are one
row, with mean and standard deviation; the best is marked; each row is compared with a baseline on
the same test items (McNemar's test for single runs, a bootstrap over items and seeds for groups).
The baseline is `adaptation=full`, else the best row, or what `--baseline` says:
`--baseline "adaptation=full optimizer.lr=1e-3"`. `--sort` takes a measure (`test/error_rate`),
seconds, trained or memory. `--slice` adds the share of a part that is right, told by `length`,
`regex`, `word` or `file` (docs/tables.md). A FILE of `-` is standard output. Of a sweep at work it
says what is done, running and left, and how long that takes. What analyses left in `RUN/analyses`
is on the page; a package named by `--plugin` may show its own in sections of its own.""",
        function="transfer_cli.commands.report.report",
    ),
    "diff": Command(
        summary="show in what two runs differ: config, data, environment, measures",
        usage="RUN_A RUN_B [--json]",
        examples=(
            ("transfer diff runs/finetune/RUN_A runs/finetune/RUN_B", "as a table"),
            ("transfer diff RUN_A RUN_B --json | jq .config", "their settings alone"),
        ),
        text="""\
Shows settings, data, versions, measures and costs that differ, and a paired test of both runs on
the same items (b - a).""",
        function="transfer_cli.commands.diff.diff",
    ),
    "presets": Command(
        summary="list every config group and option, with one line on each",
        usage="[GROUP ...] [--json] [--config-dir DIR]",
        examples=(
            ("transfer presets adaptation", "the schemes, and what they are made of"),
            ("transfer presets model schedule", "two groups"),
            ("transfer presets --config-dir myconf", "your own too"),
        ),
        text="""\
Each option is a file that `GROUP=OPTION` puts into the config; what changes it is
`GROUP.KEY=VALUE`. `transfer COMMAND GROUP=OPTION --help` shows the keys of an option.""",
        function="transfer_cli.commands.presets.presets",
    ),
    "init": Command(
        summary="start a folder of your own configs, with commented copies to edit",
        usage="DIR [--from GROUP=OPTION ...]",
        examples=(
            ("transfer init myconf", "copies of what people change most"),
            ("transfer init myconf --from adaptation=lora model=tiny", "copies of these"),
            ("transfer finetune --config-dir myconf --help", "what can be chosen then"),
        ),
        text="""\
Makes DIR, a folder of your own configs: commented copies of ours, one for each of the groups that
people change most, and a README.md that says how to use them. With `--from` it holds copies of the
named options instead, as `my_OPTION`. `--config-dir DIR` then offers them to any command, and
`transfer presets --config-dir DIR` marks them.""",
        function="transfer_cli.commands.init.init.init",
    ),
    "info": Command(
        summary="show versions, devices and caches",
        usage="[--json]",
        examples=(
            ("transfer info", "what to put into a question about a fault"),
            ("transfer info --json", "for a program"),
        ),
        function="transfer_cli.commands.info.info",
    ),
    "completion": Command(
        summary="print the completion script for a shell",
        usage="bash|zsh|fish",
        examples=(
            ('eval "$(transfer completion bash)"', "in ~/.bashrc"),
            ('eval "$(transfer completion zsh)"', "in ~/.zshrc, after compinit"),
            ("transfer completion fish | source", "in ~/.config/fish/config.fish"),
        ),
        text="""\
Then the tab key completes commands, keys, options, flags, files and run directories.""",
        function="transfer_cli.cli.print_completion_script",
    ),
}
"""In the order in which they are listed."""


_KEYS_OF_RUNS = ("run.dir", "resume")

ABOUT = {
    name: {
        kind: replace(
            ALL[kind],
            summary=ALL[name].summary,
            text=ALL[name].text,
            examples=ALL[name].examples,
            function=f"{function}_{kind}",
            keys=(*(key for key in ALL[kind].keys if key not in _KEYS_OF_RUNS), *keys),
            hidden=(*ALL[kind].hidden, *hidden),
            only=tuple(pair for pair in ALL[kind].only if not pair[0].startswith(hidden)),
            ignores=ignores,
            typed_as=f"{name} {kind}",
            scales=False,
            makes_runs=False,
        )
        for kind in ("finetune", "pretrain")
    }
    for name, function, keys, hidden, ignores in (
        (
            "plan",
            "transfer_cli.commands.plan.plan",
            ("plan.steps",),
            (),
            ("lr_find.", "run.", "cost."),
        ),
        (
            "lr-find",
            "transfer_cli.commands.lr_find.lr_find.find",
            ("lr_find.start", "lr_find.end"),
            ("sweep/",),
            ("plan.", "sweep.", "cost."),
        ),
    )
}
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
        _entry("TRANSFER_DEBUG=1", "tracebacks for every error (so does --debug)"),
        BLANK,
        Line(Piece("Try it, offline, in about a minute:", "heading")),
        Line("  transfer pretrain experiment=sample/pretrain run.dir=runs/first"),
        Line("  transfer finetune experiment=sample/finetune init_from=runs/first"),
    )


def about(name: str) -> Page:
    """Return the help text of a command that composes no config."""
    command = ALL[name]
    parts: list[Renderable] = [
        *heading(name, command, command.usage),
        BLANK,
        *examples(command),
    ]
    return Page(*parts, *((BLANK, Prose(command.text)) if command.text else ()))


def heading(name: str, command: Command, usage: str) -> list[Renderable]:
    """Return what every help text begins with."""
    return [
        Line(Piece(f"transfer {name}", "heading"), f": {command.summary}"),
        *(Line(Piece(start, "heading"), line) for start, line in _usage(name, usage)),
    ]


def _usage(name: str, usage: str) -> Iterator[tuple[str, str]]:
    first, *others = usage.splitlines()
    yield "usage:", f" transfer {name} {first}"
    yield from (("", line) for line in others)


def examples(command: Command) -> list[Renderable]:
    """Return the examples of a command, each with what it is for."""
    blocks: list[Renderable] = [Line(Piece("Examples:", "heading"))]
    for line, purpose in command.examples:
        blocks += [Line("  ", Piece(f"# {purpose}", "note")), Line(f"  {line}")]
    return blocks


def _entry(head: str, text: str, column: int = 29) -> Entry:
    return Entry([Piece(head, "name")], [text], column)
