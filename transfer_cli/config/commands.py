"""What each command is called, does and where its function is; read before Hydra is imported."""

from dataclasses import dataclass, replace

from transfer_cli.terminal import BLANK, Entry, Line, Page, Piece, Prose


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
        hidden: Beginnings of `_target_` that make no sense here; such options are not listed.
        scales: Whether several processes can work on it (`devices=N`).
        makes_runs: Whether it leaves a run directory.
        places: The keys whose values may be typed alone, in their order, and what help calls them.
        typed: The key of a text, which is never read as more than text.
        lists: Keys of several such texts.
    """

    summary: str
    text: str
    function: str = ""
    keys: tuple[str, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    hidden: tuple[str, ...] = ()
    scales: bool = False
    makes_runs: bool = False
    places: tuple[tuple[str, str], ...] = ()
    typed: str = ""
    lists: tuple[str, ...] = ()

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
        hidden=("transfer_cli.data.tasks.", "transfer_cli.objectives.classification."),
        scales=True,
        makes_runs=True,
    ),
    "finetune": Command(
        summary="adapt a pretrained model to a labelled task",
        text="""\
Puts a new head on a pretrained model and trains both on labelled texts. The model and the
tokenizer are those of `init_from`: a run, or a published BERT, RoBERTa, DistilBERT, ELECTRA or
GPT-2 (a folder, or `hf:owner/name`). The weights that did best on the validation split are kept,
and the test split sees only those, once. `init=scratch` trains the same model from fresh
weights, for comparison.""",
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
        hidden=("transfer_cli.data.text.",),
        scales=True,
        makes_runs=True,
    ),
    "plan": Command(
        summary="show what a run would train when, and how fast, without training",
        text="""\
transfer plan finetune|pretrain [GROUP=OPTION ...] [KEY=VALUE ...]

Takes the words of `transfer finetune` or `transfer pretrain` and prints the stages of the run: from
which step to which, what trains, how many parameters that is, at which rates; which tensors come
from the checkpoint, which are new and which are dropped; and about how much memory it takes; and
how long it would last, measured on a few of its steps where that is quick: `plan.steps=5` takes
five in any case, `plan.steps=0` none. Text to read is encoded first, as the run itself would; that
is kept.""",
    ),
    "lr-find": Command(
        summary="find a learning rate by a short run over a range of them",
        text="""\
transfer lr-find finetune|pretrain [GROUP=OPTION ...] [KEY=VALUE ...]

Takes the words of `transfer finetune` or `transfer pretrain`, lets the rate of every layer group
grow from step to step until the loss explodes (Smith 2017), and suggests a rate for each group. The
curve is left as a picture, as numbers and in TensorBoard; no model is kept. `lr_find.start`,
`lr_find.end` and `lr_find.steps` set the range.""",
    ),
    "evaluate": Command(
        summary="score a run on a split of its own data, or of other data",
        text="""\
Measures a run's best weights: perplexities and bits per byte for a language model, error rate,
accuracy and macro-F1 for a classifier. `data=` scores other data that fits the run.""",
        function="transfer_cli.commands.evaluate.evaluate",
        places=(("run", "RUN"),),
        keys=("run", "split", "baseline", "batch", "device", "precision", "data_dir", "seed"),
        examples=(
            ("transfer evaluate runs/finetune/RUN", "the test split"),
            (
                "transfer evaluate run=RUN split=validation baseline=unigram",
                "what word frequencies alone would reach",
            ),
            ("transfer evaluate run=RUN data=table data.train=new.csv split=train", "other data"),
        ),
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
    "export": Command(
        summary="write a run as a folder that other libraries load",
        text="""\
Writes the model of a run for use without this tool. `format=hf` writes what Hugging Face's
`transformers` loads by `AutoModel...from_pretrained`, with the tokenizer, the names of the labels
and a model card, where the model is one of a published family: GPT-2, BERT, DistilBERT, RoBERTa or
ELECTRA. Low-rank updates are folded in; what has no place there is refused by name. `format=onnx`
writes any model as an ONNX graph, checked against torch.""",
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
        text="""\
transfer report PATH ... [--sort KEY] [--baseline WORDS] [--csv FILE] [--markdown FILE]
                         [--json FILE] [--html FILE] [--plugin PACKAGE]

Reads runs, sweeps, and folders that hold any of them. Runs that differ in the seed alone are one
row, with mean and standard deviation; the best is marked; each row is compared with a baseline on
the same test items (McNemar's test for single runs, a bootstrap over items and seeds for groups).
The baseline is `adaptation=full`, else the best row, or what `--baseline` says:
`--baseline "adaptation=full optimizer.lr=1e-3"`. `--sort` takes a measure (`test/error_rate`),
seconds, trained or memory. A FILE of `-` is standard output. Of a sweep at work it says what is
done, running and left, and how long that takes. What analyses left in `RUN/analyses` is on the
page; a package named by `--plugin` may show its own in sections of its own.

  transfer report runs/finetune
  transfer report SWEEP --baseline adaptation=full --html report.html""",
        function="transfer_cli.commands.report.report",
    ),
    "diff": Command(
        summary="show in what two runs differ: config, data, environment, measures",
        text="""\
transfer diff RUN_A RUN_B [--json]

Shows settings, data, versions, measures and costs that differ, and a paired test of both runs on
the same items (b - a).""",
        function="transfer_cli.commands.diff.diff",
    ),
    "presets": Command(
        summary="list every config group and option, with one line on each",
        text="transfer presets [GROUP ...] [--json] [--config-dir DIR]",
        function="transfer_cli.commands.presets.presets",
    ),
    "init": Command(
        summary="start a folder of your own configs, with commented copies to edit",
        text="""\
transfer init DIR [--from GROUP=OPTION ...]

Makes DIR, a folder of your own configs: commented copies of ours, one for each of the groups that
people change most, and a README.md that says how to use them. With `--from` it holds copies of the
named options instead, as `my_OPTION`. `--config-dir DIR` then offers them to any command, and
`transfer presets --config-dir DIR` marks them.""",
        function="transfer_cli.commands.init.init.init",
    ),
    "info": Command(
        summary="show versions, devices and caches",
        text="transfer info [--json]",
        function="transfer_cli.commands.info.info",
    ),
    "completion": Command(
        summary="print the completion script for a shell",
        text='transfer completion bash|zsh|fish, for example: eval "$(transfer completion bash)"',
        function="transfer_cli.cli.print_completion_script",
    ),
}
"""In the order in which they are listed."""


ABOUT = {
    name: {
        kind: replace(ALL[kind], function=f"{function}_{kind}", scales=False, makes_runs=False)
        for kind in ("finetune", "pretrain")
    }
    for name, function in (
        ("plan", "transfer_cli.commands.plan.plan"),
        ("lr-find", "transfer_cli.commands.lr_find.lr_find.find"),
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
        _entry("transfer COMMAND --help", "what a command does, what can be chosen, examples"),
        _entry("transfer --version", "the version"),
        _entry("TRANSFER_DATA", "where data sets lie or are fetched to (~/.cache/transfer)"),
        _entry("TRANSFER_DEBUG=1", "tracebacks for every error (so does --debug)"),
        BLANK,
        Line(Piece("Try it, offline, in about a minute:", "heading")),
        Line("  transfer pretrain experiment=sample/pretrain run.dir=runs/first"),
        Line("  transfer finetune experiment=sample/finetune init_from=runs/first"),
    )


def about(command: Command) -> Page:
    """Return the help text of a command that composes no config."""
    return Page(Prose(command.text), BLANK, Line(command.summary))


def _entry(head: str, text: str, column: int = 26) -> Entry:
    return Entry([Piece(head, "name")], [text], column)
