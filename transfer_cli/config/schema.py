"""The plain values of each command: their names, types, defaults and meaning.

Parts that are objects (`model`, `data`, `objective`, ...) are open nodes here: they are checked by
`config.build` against the constructor that they name. Everything else is checked by these classes.
"""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hydra.conf import JobConf, OverridesConf, RuntimeConf
from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, OmegaConf

from transfer_cli.config.dialled import value_by_rule


@dataclass
class LoopConfig:
    """How long, in which portions and how closely watched a run trains."""

    epochs: float | None = None
    """Passes over the training data. May be a fraction."""
    steps: int | None = None
    """Optimizer steps. Wins over `epochs`."""
    tokens: float | None = None
    """Tokens of running text to train on, such as 5e6; wins over `epochs`, in place of `steps`."""
    flops: float | None = None
    """Floating-point operations to train with, such as 1e15, as `plan` counts them; likewise."""
    minutes: float | None = None
    """Minutes after which the run ends, if it has not by then, its rate decayed as at its end."""
    batch: int = 32
    """Sequences that one optimizer step takes in all."""
    micro_batch: int | str | None = "auto"
    """Sequences that pass through the model at once; none: the whole batch; auto: what fits."""
    bucket: bool = False
    """Put labelled texts of like length into a batch: less padding, each still once an epoch."""
    pack: bool = False
    """Compute several labelled texts in a row, each for itself: less padding in attention, too."""
    activation_checkpointing: bool = False
    """Compute the inside of each block again in the backward pass: less memory, more time."""
    bf16_residual: bool = False
    """With precision=bf16: keep what passes from block to block in bf16, too; faster on a GPU."""
    compile: bool | str = "auto"
    """true: torch's compiler makes the kernels, in a minute; auto: where that pays; or false."""
    cuda_graphs: bool | str = "auto"
    """true: launch a compiled pass at once; auto: where a step is one, always alike; or false."""
    clip: float | None = 1.0
    """Largest global gradient norm; none: no clipping, as always with L-BFGS."""
    evaluate_every: str = "1 epoch"
    """How often validation is measured: "200 steps" or "1 epoch"."""
    log_every: int = 10
    """Steps between two records."""
    monitor: str = "auto"
    """The validation measure that decides which weights are best; auto: what runs are judged by."""
    patience: int | None = None
    """Evaluations without a better `monitor` after which the run ends; none: never."""
    average: str | None = None
    """An average of the weights, kept where it is better by validation: ema, last_k; none: none."""
    average_decay: float = 0.999
    """With average=ema: what a step leaves of the average; less at first, (1 + n) / (10 + n)."""
    average_last: int = 5
    """With average=last_k: of the weights at how many last validations it is the mean."""
    max_bad_steps: int = 10
    """Steps in a row with a gradient that is not finite, after which the run ends."""
    cache_features: bool = True
    """Compute the states of a frozen backbone once, where nothing in a run can change them."""


@dataclass
class CheckpointConfig:
    """When a run's whole state is written, and how many such states stay."""

    every: str = "auto"
    """How often: "500 steps" or "1 epoch"; auto: each epoch, with up to 2 % of the time."""
    minutes: float | None = None
    """After how many minutes without one there is one as well; none: by steps alone."""
    keep: int | None = None
    """How many of the newest stay, 0 for all; none: two, and the end of the run leaves one."""


@dataclass
class RunConfig:
    """Where a run's files go."""

    dir: str | None = None
    """The run directory; none: a new folder under `root`, named by date and what was chosen."""
    root: str = "runs"
    """The folder in which new run directories are made."""


@dataclass
class MixingConfig:
    """How often a run with several `streams` turns to which: one of them each step."""

    power: float = 0.5
    """A stream is drawn in proportion to its number of examples to this power; 0: all alike."""
    anneal: bool = False
    """Let the power fall from 1 to 0.2 over the epochs, in place of `power`."""
    target_only: str | None = None
    """How much of the end of the run sees the main data alone: "1 epoch", "200 steps", "10%"."""


@dataclass
class CostConfig:
    """What a run says of its energy, beside the operations and seconds that it always says."""

    energy: str = "off"
    """off, or auto: what the counter of the GPU says (NVML; the extra `energy` reads it)."""
    pue: float = 1.0
    """Energy of the data centre over that of its machines, for the CO2."""
    kg_per_kwh: float | None = None
    """Kilograms of CO2 of a kilowatt-hour of your grid; none: no CO2 is said."""


@dataclass
class SourceConfig:
    """The text that `init_from` was pretrained on, where something has to go back to it."""

    data: Any = None
    """None: the data of `init_from`'s own config."""


@dataclass
class ForgettingConfig:
    """Whether to measure how well the adapted backbone still does what it was pretrained for."""

    data: Any = None
    """source: the validation text of the pretraining; or the path of a text file; none: do not."""
    blocks: int | None = None
    """Score so many blocks of it alone, evenly spread; none: all."""


@dataclass
class PlanConfig:
    """What `transfer plan` does beyond composing; training itself ignores it."""

    steps: int | None = None
    """Steps to take for an estimate of the run's time; none: some, where that is quick; 0: none."""


@dataclass
class LrFindConfig:
    """What `transfer lr-find` does; training itself ignores it."""

    start: float = 1e-7
    """The rate of the first step."""
    end: float = 1.0
    """The rate of the last step; the steps before grow to it by a constant factor."""
    steps: int = 100
    """How many steps, if the loss does not explode before."""


@dataclass
class SweepConfig:
    """How the jobs of a sweep (`-m`) run, and what a search looks for; single runs ignore it."""

    over: dict[str, Any] = field(default_factory=dict)
    """What is swept: keys, each with its values as typed, or a list; what is typed wins."""
    published: dict[str, float] = field(default_factory=dict)
    """What others published, by the word that is a job's own: a column of reports."""
    search: bool = False
    """Propose the values by trials (Optuna), instead of running every combination."""
    isolate: bool = True
    """Give each job a process of its own; false: one process for all, so that torch starts once."""
    workers: str = "auto"
    """Jobs side by side, each with GPUs of its own; auto: as many as there are GPUs for, else 1."""
    on_error: str = "continue"
    """continue with the other jobs when one has failed, or stop."""
    trials: int = 20
    """Of a search: how many trials in all."""
    objective: str = "validation/error_rate"
    """Of a search: what to make small or large, a measure or any key of results.json."""
    direction: str = "auto"
    """Of a search: minimize, maximize or auto: whatever is better, less of what is no measure."""
    sampler: str = "tpe"
    """Of a search: tpe (Bergstra et al. 2011) or random."""
    prune: bool = True
    """Of a search: end trials early that do worse than the median of earlier ones at that step."""
    study: str | None = None
    """Of a search: the SQLite file of its study, which several may share; none: in the sweep."""


@dataclass
class SharedConfig:
    """What every command takes."""

    seed: int = 0
    """Everything random follows from it."""
    data_dir: str = "${oc.env:TRANSFER_DATA,'~/.cache/transfer'}"
    """The folder of the data sets, to which they are downloaded."""
    data: Any = MISSING
    tokenizer: Any = None
    experiment: Any = None


@dataclass
class DeviceConfig:
    """Where a model computes, and how precisely."""

    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: str = "${oc.env:TRANSFER_PRECISION,auto}"
    """auto, fp32, bf16 or fp16; auto is bf16 where products in it are fast."""


@dataclass
class ModelConfig:
    """Which trained model a command works with."""

    run: str = MISSING
    base: str | None = None
    """The model that the run refers to, if it was moved."""


@dataclass
class TableConfig:
    """How a file of rows is read."""

    text: Any = None
    """Of `input`, the column of the text, or a list; none: as in training, else recognised."""
    pair: str | None = None
    """Of `input`, the column of a second text."""
    delimiter: str | None = None
    """Of `input`: comma, semicolon, tab, pipe or a character; none: it is recognised."""
    encoding: str | None = None
    """Of `input`, such as utf-8 or latin-1; none: it is recognised."""
    header: bool | int | None = None
    """Of `input`: whether the first row names the columns, or its line; none: it is recognised."""
    quotes: str | None = None
    """Of `input`: double, backslash or none (they are letters); null: it is recognised."""
    sheet: str | int | None = None
    """Of `input`, a spreadsheet: the sheet, by name or number from 1; none: it is recognised."""
    errors: str = "stop"
    """What a row of `input` that cannot be read does: stop, or skip (reported and left out)."""


@dataclass
class SamplingConfig:
    """How the next token is drawn."""

    temperature: float = 1.0
    """Above 1 for more surprising text, below for less; 0: always the likeliest token (greedy)."""
    top_k: int | None = None
    """Draw from so many of the likeliest tokens alone; none: from all."""
    top_p: float = 0.95
    """Draw from the likeliest tokens that together have this probability (the nucleus); 1: all."""
    seed: int = 0


@dataclass
class BeamsConfig:
    """How the likeliest text is looked for; see `objectives.beam_search.BeamSearch`."""

    beams: int | None = None
    """Look for the likeliest text, with so many beginnings kept; none: as the run does, or not."""
    length_penalty: float | None = None
    """With beams: above 0 longer texts gain, below 0 shorter ones; none: 1."""
    early_stopping: bool | str | None = None
    """With beams, end with as many texts: true, at once; never, where no better one can come."""
    no_repeat_ngram_size: int | None = None
    """With beams: of so many tokens none come twice in a text; none: they may."""
    first_token: str | None = None
    """With beams: the token that all texts begin with, such as a language of mBART; none: any."""


@dataclass
class AnsweredConfig:
    """How much a model that writes answers says where it is scored."""

    generate: int | None = 200
    """Validation examples that a model which writes answers writes them for; none: all."""


@dataclass
class TrainConfig(DeviceConfig, SharedConfig):
    """What `pretrain` and `finetune` take."""

    devices: int | str = 1
    """Processes to start on this machine, one a GPU; auto: for all GPUs; not under torchrun."""
    parallel: str = "ddp"
    """How they share the model: ddp, a copy each; fsdp, a part each."""
    restarts: int = 0
    """How often `devices` processes are started again when one dies; goes with resume=auto."""
    timeout_minutes: float = 30.0
    """How long a process waits for another one before the run is given up."""
    threads: int | None = None
    """Of a process on the CPU; none: as many as it may use, in a resume as many as before."""
    init_from: str | None = None
    """What to start from: a run, one of its checkpoints, a published model: folder, name or hf:."""
    base: str | None = None
    """The model that `init_from` refers to, if it was moved."""
    resume: str | None = None
    """A run directory to go on with; auto: that in `run.dir`, where a run was begun there."""
    data_changed: str = "refuse"
    """Typed as `data.changed`: refuse or accept data that have changed since the run began."""
    resume_strict: bool = False
    """Go on only with threads, device and versions as before; typed as resume.strict=true."""
    model: Any = None
    objective: Any = MISSING
    losses: dict[str, Any] = field(default_factory=dict)
    streams: dict[str, Any] = field(default_factory=dict)
    mixing: MixingConfig = field(default_factory=MixingConfig)
    optimizer: Any = MISSING
    schedule: Any = MISSING
    adaptation: Any = MISSING
    loop: LoopConfig = field(default_factory=LoopConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)
    evaluation: AnsweredConfig = field(default_factory=AnsweredConfig)
    logger: Any = "tensorboard"
    """Who shows the curves: tensorboard, trackio, wandb, mlflow, a list of these; null: nobody."""
    cost: CostConfig = field(default_factory=CostConfig)
    source: SourceConfig = field(default_factory=SourceConfig)
    forgetting: ForgettingConfig = field(default_factory=ForgettingConfig)
    plan: PlanConfig = field(default_factory=PlanConfig)
    lr_find: LrFindConfig = field(default_factory=LrFindConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)


@dataclass
class StudentConfig:
    """Which blocks of `init_from` a shallower model begins with."""

    layers: list[int] | None = None
    """Their numbers, from 0: [0,2,4,7,9,11]; none: all, or model.depth of them, spread evenly."""


@dataclass
class LadderConfig:
    """What runs of several sizes (sweep=ladder) foretell of a larger one."""

    target: str | None = None
    """Of a ladder: what its report foretells, a depth (7), operations (1e15flop) or a time (2h)."""
    of: str | None = None
    """The sweep of a ladder, which foretells the loss of this run; results.json has both."""
    prediction: dict[str, float] | None = None
    """Decided, not given: the loss that is foretold, and its 95 % interval, low to high."""


@dataclass
class PretrainConfig(TrainConfig):
    """What `pretrain` takes."""

    budget: str | None = None
    """What the run may take, 10min, 2h or 1e17flop: with model=dial it chooses depth and length."""
    dial: Any = None
    """With model=dial: what its rules begin with, and what they count."""

    student: StudentConfig = field(default_factory=StudentConfig)
    ladder: LadderConfig = field(default_factory=LadderConfig)


@dataclass
class FinetuneConfig(TrainConfig):
    """What `finetune` takes."""

    init: str = "pretrained"
    """pretrained: the weights of `init_from`; scratch: the same model with fresh weights."""
    budget: str | None = None
    """What the run may take, 10min or 2h: it chooses what trains (quick, lora, full), how long."""
    models: list[str] | None = None
    """With a budget, in place of init_from: the models that it chooses from."""
    before: Any = None
    """Sections of a config in place of these, for a run before, from which this one starts."""


@dataclass
class ContextConfig:
    """What a causal language model sees of running text before what is scored."""

    context: int | None = None
    """Tokens before each scored one, at least, where the text has them; none: blocks without."""
    stride: int | None = None
    """Tokens that are scored at once; none: a block by memory, else what a block has beside it."""
    generate: int | None = None
    """Examples that a model which writes answers writes them for; none: all."""
    by: str = "auto"
    """memory: what a model with model.recurrence remembers; windows: read again; auto: either."""


@dataclass
class EvaluateConfig(TableConfig, BeamsConfig, DeviceConfig, ModelConfig, SharedConfig):
    """What `evaluate` takes."""

    data: Any = None
    run: str = MISSING
    """The run directory to score."""
    data_changed: str = "refuse"
    """Typed as `data.changed`: refuse or accept data that have changed since the run began."""
    input: Any = None
    """Own rows (a text, of a language model), all scored: file, folder, glob, list; none: data."""
    label: Any = None
    """Of `input`, the column of the label; of several labels perhaps a list, a column each."""
    format: str | None = None
    """Of `input`: csv, tsv, jsonl, parquet or xlsx; none: by its ending."""
    split: str = "auto"
    """train, validation, test, or all of them; auto: test, where there is none validation."""
    slices: dict[str, Any] = field(default_factory=dict)
    """Parts that are scored beside the whole, by names of your own: slices.short.length=[0,6]."""
    baseline: str = "none"
    """none, or unigram: score the training text's token frequencies instead of the model."""
    evaluation: ContextConfig = field(default_factory=ContextConfig)
    batch: int | str = "auto"
    """Sequences that pass through the model at once; auto: 32, on a GPU what fits up to 512."""
    output: str | None = None
    """A JSON file to write the measures to; none: they are only printed."""
    each: str | None = None
    """A file to write what became of each example to, as JSON lines like a run's items.jsonl."""
    devices: int | str = 1
    """Processes to start on this machine, one a GPU; auto: for all GPUs; not under torchrun."""
    timeout_minutes: float = 30.0
    """How long a process waits for another one before it gives up."""


@dataclass
class PredictConfig(TableConfig, BeamsConfig, DeviceConfig, ModelConfig):
    """What `predict` takes."""

    run: Any = MISSING
    """The fine-tuned run directory that answers, or several: the mean of their probabilities."""
    input: Any = "-"
    """A file of texts, or several: a list, a folder, a glob; -: standard input."""
    output: str = "-"
    """The file to write; -: standard output."""
    format: str = "auto"
    """Of the input: auto (by its ending), text (one a line), jsonl, csv, tsv, parquet or xlsx."""
    output_format: str = "auto"
    """auto (by the output's ending, else jsonl), jsonl, csv, tsv, or glue for that benchmark."""
    keep: bool = False
    """Carry the other columns along; one that is called as an answer is becomes `input/NAME`."""
    batch: int | str = "auto"
    """Texts that pass through the model at once; auto: 32, on a GPU what fits up to 512."""
    resume: bool = False
    """Go on with the answers that a stopped command has left beside the output."""
    devices: int | str = 1
    timeout_minutes: float = 30.0


@dataclass
class EmbedConfig(TableConfig, DeviceConfig, ModelConfig):
    """What `embed` takes."""

    run: str = MISSING
    """A run, one of its checkpoints, or a published model, whose states are the vectors."""
    input: str = "-"
    """A file of texts; -: standard input."""
    output: str = "-"
    """The file to write: .npy, .parquet or .jsonl; -: JSON lines on standard output."""
    format: str = "auto"
    """Of the input: auto (by its ending), text (one a line), jsonl, csv, tsv, parquet or xlsx."""
    pooling: str = "auto"
    """auto (as a sentence-transformers folder says, else mean), mean, cls_first, cls_last, max or
    concat."""
    normalize: bool | None = None
    """Whether vectors have length 1; none: as a sentence-transformers folder says, else not."""
    nearest: int = 0
    """Show so many pairs of texts whose vectors are nearest to each other, by their cosine."""
    batch: int | str = "auto"
    """Texts that pass through the model at once; auto: 32, on a GPU what fits up to 512."""


@dataclass
class GenerateConfig(SamplingConfig, BeamsConfig, DeviceConfig, ModelConfig):
    """What `generate` takes."""

    run: str = MISSING
    """The run directory of a causal language model."""
    prompt: Any = None
    """The text to go on with; -: standard input."""
    messages: str | None = None
    """A file of conversations that a chat model answers, as data=chat has them, in place of it."""
    max_tokens: int = 100
    """Tokens that are added at most."""
    stop: Any = None
    """A text, or a list of them, before which the result ends; none: it ends by itself."""
    samples: int = 1
    """How many continuations are made, side by side."""
    cache: bool = True
    """Keep what was computed of earlier tokens; the text is the same without, and takes longer."""
    output: str | None = None
    """A JSON lines file to write the texts to; -: standard output; none: they are only printed."""


@dataclass
class ServingConfig:
    """What a server takes, how long it works on it, and whom it answers."""

    wait_ms: float = 2.0
    """Milliseconds that a text waits for others at most, to pass through the model together."""
    batch: int = 32
    """Texts of all requests that are answered together, at most; the model sorts them by length."""
    queue: int = 4096
    """Texts that wait at most; a request beyond is answered with 429."""
    max_bytes: int = 4_000_000
    """Of a request; a larger one is answered with 413."""
    max_texts: int = 1000
    """Of a request; one of more is answered with 422."""
    max_characters: int = 100_000
    """Of a text with its pair, context or choices; a longer one is answered with 422."""
    timeout_seconds: float = 30.0
    """After so long without an answer a request is answered with 504, and given up."""
    token_file: str | None = None
    """A file of one line: `Authorization: Bearer LINE` has to come with requests; none: nothing."""
    origins: Any = None
    """A list of web sites whose pages may ask, such as [https://example.com]; none: its own."""


@dataclass
class ServeConfig(DeviceConfig, ModelConfig):
    """What `serve` takes."""

    run: Any = MISSING
    """A run or a published model, or several; a request names one, by default the first."""
    host: str = "127.0.0.1"
    """The address to listen at; 127.0.0.1: programs of this machine alone, 0.0.0.0: everybody."""
    port: int = 8000
    """Where to listen; 0: one that is free."""
    serve: ServingConfig = field(default_factory=ServingConfig)


@dataclass
class ChatConfig(SamplingConfig, DeviceConfig, ModelConfig):
    """What `chat` takes."""

    run: str = MISSING
    """A model with a chat template, or the run of a dialog model (`objective=next_utterance`)."""
    system: Any = None
    """A text that stands before what is said to a chat model; none: that of its training."""
    persona: Any = None
    """A sentence on who a dialog model is, or a list of them; none: nothing is said of it."""
    max_tokens: int | None = None
    """Tokens of a reply at most; none: 512 or half of the positions, of a dialog model 20."""
    temperature: float = 0.7
    top_p: float = 0.9


@dataclass
class FillConfig(DeviceConfig, ModelConfig):
    """What `fill` takes."""

    run: str = MISSING
    """The run directory of a masked language model."""
    text: Any = MISSING
    """A text with [MASK] in each gap."""
    top: int = 5
    """How many candidates are shown for a gap."""
    output: str | None = None
    """A JSON lines file to write all to; -: standard output; none: it is only printed."""


@dataclass
class PromptConfig:
    """How a language model is asked for labels."""

    item: Any = "{text}\\nAnswer: {label}"
    """An example, with {text}, {label} and, for pairs, {pair}; \\n ends a line."""
    head: Any = ""
    """What stands before all examples."""
    words: Any = None
    """The word, or a list of words, for each label: {LABEL: WORD, ...}; none: the label itself."""
    shots: Any = 0
    """Training examples of each label that stand before the one that is asked: 0, or [0,1,4]."""
    orders: int = 1
    """How often these are drawn; each draw is a run of its own, with the next seed."""
    norm: str = "none"
    """What a sum of log-probabilities is divided by: none, token, char, byte; or unconditional."""
    calibrate: bool = False
    """Divide by what the model says of texts that say nothing (Zhao et al. 2021)."""


@dataclass
class ScoreConfig(DeviceConfig, ModelConfig, SharedConfig):
    """What `score` takes."""

    run: str = MISSING
    """The language model: a run directory, or a published model: folder, name or `hf:`."""
    split: str = "auto"
    """The split that is scored; auto: test, where there is none validation."""
    prompt: PromptConfig = field(default_factory=PromptConfig)
    first: str = "scored"
    """The first token of a sentence with nothing before it: scored (after the end of a text), or
    given."""
    within_word: bool = True
    """Of masked models: hide what follows a token within its word, too (Kauf and Ivanova 2023)."""
    batch: int | str = "auto"
    """Texts that pass through the model at once; auto: 32, on a GPU what fits up to 512."""
    output: str | None = None
    """The run directory to write, for `report`; none: a new one in `runs/score`."""


@dataclass
class AnalyzeConfig(DeviceConfig, ModelConfig, SharedConfig):
    """What `analyze` takes."""

    data: Any = None
    analysis: Any = None
    run: str = MISSING
    """The model to look into: a run, one of its checkpoints, or a published model."""
    other: str | None = None
    """A second model, for analyses that compare two; none: the one that the run began with."""
    data_changed: str = "refuse"
    """Typed as `data.changed`: refuse or accept data that have changed since the run began."""
    input: str | None = None
    """A file of texts to look at, one a line, or a table; none: a split of the data."""
    split: str = "auto"
    """The split to look at; auto: test, where there is none validation."""
    batch: int = 32
    """Sequences that pass through the model at once."""
    output: str | None = None
    """A new folder for what is found; none: the run, and of other models one in `runs/analyze`."""
    html: str | None = None
    """A page to write, which needs nothing but itself; typed as --html FILE, too."""


@dataclass
class ExportConfig(ModelConfig):
    """What `export` takes."""

    run: str = MISSING
    """A run directory, or a published model: its folder, short name, or `hf:owner/name`."""
    to: str = MISSING
    """The folder to write; there must be none of that name."""
    part: str | None = None
    """A model that trained inside the run's own: generator, of objective=replaced_tokens."""
    format: str = "hf"
    """hf: a folder for transformers; onnx: a graph; peft: LoRA's updates; gguf: for llama.cpp."""
    quantize: str | None = None
    """int8: 8 bits a weight, with format=onnx; what it costs is measured on validation."""
    prune: str | None = None
    """What `analyze analysis=importance` found (its .json): by that heads go, with format=onnx."""
    prune_share: float = 0.3
    """The share of heads that goes with `prune`, the least important ones, above 0 and up to 1."""
    family: str | None = None
    """The `model_type` of the published family to write; null: the model's own, or what fits."""
    head: bool = True
    """Whether the classifier or the language model's head goes along; false: the backbone alone."""


@dataclass
class PushConfig(ModelConfig):
    """What `push` takes."""

    run: str = MISSING
    """A run directory, or a folder that `export` wrote."""
    repository: str = MISSING
    """Where it goes, `owner/name`: on the hub of HF_ENDPOINT, with the token in HF_TOKEN."""
    private: bool = True
    """Whether a new repository is yours alone; one that is there already stays as it is."""
    dry: bool = False
    """Show what would go, and send nothing; typed as --dry, too."""


@dataclass
class PrepareConfig(SharedConfig):
    """What `prepare` takes."""

    init_from: str | None = None
    """A run directory whose tokenizer is used instead of a new one."""
    model: Any = None


@dataclass
class InspectConfig(PrepareConfig):
    """What `inspect` takes."""

    samples: int = 5
    """How many examples of each split are shown."""
    objective: Any = None


COMMANDS: dict[str, type] = {
    "pretrain": PretrainConfig,
    "finetune": FinetuneConfig,
    "evaluate": EvaluateConfig,
    "predict": PredictConfig,
    "embed": EmbedConfig,
    "generate": GenerateConfig,
    "serve": ServeConfig,
    "chat": ChatConfig,
    "fill": FillConfig,
    "score": ScoreConfig,
    "analyze": AnalyzeConfig,
    "export": ExportConfig,
    "push": PushConfig,
    "prepare": PrepareConfig,
    "inspect": InspectConfig,
}


@dataclass
class LocalLauncher:
    """How submitit runs the jobs of a sweep: `hydra.launcher.*`, with submitit's own names."""

    submitit_folder: str = "${hydra.sweep.dir}/.submitit/%j"
    timeout_min: int = 60
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int = 1
    mem_gb: int | None = None
    nodes: int = 1
    name: str = "transfer"
    stderr_to_stdout: bool = False


@dataclass
class SlurmLauncher(LocalLauncher):
    """What Slurm takes besides."""

    partition: str | None = None
    qos: str | None = None
    comment: str | None = None
    constraint: str | None = None
    exclude: str | None = None
    gres: str | None = None
    cpus_per_gpu: int | None = None
    gpus_per_task: int | None = None
    mem_per_gpu: str | None = None
    mem_per_cpu: str | None = None
    account: str | None = None
    signal_delay_s: int = 120
    max_num_timeout: int = 0
    additional_parameters: dict[str, Any] = field(default_factory=dict)
    array_parallelism: int = 256
    setup: list[str] | None = None
    srun_args: list[str] | None = None


LAUNCHERS: dict[str, type[LocalLauncher]] = {
    "submitit_local": LocalLauncher,
    "submitit_slurm": SlurmLauncher,
}

_UNUSED = ("sweeper", "hydra_logging", "job_logging", "callbacks")
"""Groups of Hydra's own that a user's config may choose from; nothing here reads them."""

HYDRA: dict[str, Any] = {
    "defaults": [{"launcher": "basic"}, *({group: None} for group in _UNUSED)],
    "mode": None,
    "launcher": {},
    "callbacks": {},
    "sweep": {"dir": "."},
    "sweeper": {"params": {}},
    "overrides": OverridesConf(),
    "runtime": RuntimeConf(),
    "job": JobConf(),
}
"""The node `hydra` that comes with each config: what its composing writes, and what we read of it.

Hydra's own node comes from nine more files, which took almost half of the time.
"""


@cache
def register() -> None:
    """Make the rules of `model=dial` known to OmegaConf, and the classes to Hydra.

    The classes are `schema/<command>` and `hydra/launcher/<name>`.
    """
    OmegaConf.register_new_resolver("dial", value_by_rule)
    store = ConfigStore.instance()
    store.store(group="hydra", name="config", node=HYDRA)
    for group, classes in (("schema", COMMANDS), ("hydra/launcher", LAUNCHERS)):
        for name, node in classes.items():
            store.store(group=group, name=name, node=node)
