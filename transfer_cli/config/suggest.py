"""Which key is meant by a name that a command does not know.

People type the last part of a key, or what other libraries call it. Nothing is said rather than a
wrong guess.
"""

import difflib
from collections.abc import Set
from pathlib import Path

from transfer_cli.config.describe import keys_and_options

OTHER_NAMES = {
    "optimizer.lr": "learning_rate rate eta",
    "optimizer.weight_decay": "wd decay l2",
    "loop.epochs": "num_train_epochs num_epochs n_epochs max_epochs",
    "loop.steps": "max_steps num_steps n_steps iterations num_iterations max_iters",
    "loop.minutes": "max_time time_limit",
    "loop.batch": "batch_size train_batch_size bs",
    "loop.micro_batch": "per_device_train_batch_size micro_batch_size gradient_accumulation_steps",
    "loop.clip": "max_grad_norm grad_clip gradient_clip_val clip_grad",
    "loop.activation_checkpointing": "gradient_checkpointing",
    "loop.pack": "packing sample_packing",
    "loop.patience": "early_stopping early_stopping_patience",
    "loop.evaluate_every": "eval_steps eval_every evaluation_strategy eval_strategy",
    "loop.log_every": "logging_steps",
    "checkpoint.every": "save_steps save_every",
    "checkpoint.keep": "save_total_limit",
    "schedule.warmup": "warmup_steps warmup_ratio",
    "schedule": "lr_scheduler lr_scheduler_type scheduler",
    "run.dir": "output_dir out_dir output out save_dir logging_dir run_dir",
    "run": "checkpoint model_path model_dir run_dir init_from",
    "output": "output_file out_file outfile",
    "to": "output output_dir out out_dir dir folder path",
    "input": "file input_file data data_file path texts",
    "data.train": "train_file train_data train_path training path file csv data_file data_path",
    "data.validation": "validation_file val dev valid eval_file val_file dev_file",
    "data.test": "test_file test_data",
    "data.text": "text_column sentence_column",
    "data.label": "label_column labels target target_column",
    "data.length": "max_length max_seq_length max_len seq_len sequence_length context block_size",
    "data": "dataset dataset_name task",
    "init_from": "model_name_or_path model_name pretrained pretrained_model base_model",
    "precision=fp16": "fp16 half",
    "precision=bf16": "bf16",
    "precision": "mixed_precision amp dtype",
    "device=cuda": "cuda use_cuda gpu use_gpu",
    "device=cpu": "cpu no_cuda use_cpu",
    "devices": "gpus num_gpus n_gpu num_processes nproc_per_node",
    "threads": "num_threads n_threads",
    "tokenizer.size": "vocab_size vocabulary",
    "model.width": "hidden_size d_model n_embd embed_dim hidden_dim",
    "model.depth": "num_layers n_layers n_layer layers num_hidden_layers blocks",
    "model.heads": "num_heads n_heads n_head num_attention_heads",
    "objective.rate": "mlm_probability mask_rate mask_prob masking",
    "adaptation=frozen": "freeze frozen freeze_backbone linear_probe",
    "adaptation=lora": "lora use_lora peft",
    "adaptation=dora": "dora use_dora",
    "adaptation=ia3": "ia3",
    "adaptation.edits.lora.scale": "use_rslora rslora",
    "adaptation.edits.lora.lr_ratio": "loraplus_lr_ratio lora_plus",
    "adaptation.edits.lora.rank": "r lora_r lora_rank",
    "adaptation.edits.lora.alpha": "lora_alpha",
    "prompt": "text",
    "text": "prompt",
    "max_tokens": "max_new_tokens length max_length",
    "samples": "n num_samples num_return_sequences",
    "seed": "random_seed random_state",
    "run.root": "runs_dir log_dir",
    "objective.label_smoothing": "label_smoothing_factor smoothing",
    "objective.class_weight": "class_weights loss_weights weight_classes",
}
"""A key or an option -> what others call it; the first that a command has is meant."""

ABSENT = {
    "sample_weight sample_weights": (
        "rows are not weighed; repeat some in the file, or weigh labels by objective.class_weight"
    ),
    "focal_loss focal_gamma gamma focal": (
        "there is no focal loss; objective.annealing=linear leaves out what is known already"
    ),
    "oversample oversampling undersample balanced_sampling sampler": (
        "rows are drawn as often as they stand in the file; objective.class_weight=balanced weighs "
        "the rare ones"
    ),
}
"""What others call what there is not -> what to do in its place."""

_SECTIONS = (
    "loop", "optimizer", "schedule", "data", "objective", "model", "run", "checkpoint",
    "adaptation",
)  # fmt: skip
"""Where a name is looked for, in this order: a part that all runs have comes first."""


def suggest(name: str, command: str, config_dir: Path | None = None) -> str:
    """Return " Did you mean 'optimizer.lr'?" for a name such as `lr`; "" where none is meant."""
    known = {key for key, _ in keys_and_options(command, config_dir)}
    section, _, last = name.rpartition(".")
    absent = next((said for names, said in ABSENT.items() if last in names.split()), "")
    if absent and command == "finetune":
        return f" {absent[0].upper()}{absent[1:]}"
    leaves = {key.rpartition(".")[2] for key in known if key.startswith(_SECTIONS)}
    close = [last] if section else difflib.get_close_matches(name, leaves, n=1, cutoff=0.85)
    key = next(filter(None, (_key_of(word, known) for word in (name, *close))), "")
    return f" Did you mean {key!r}?" if key else ""


def options_with(key: str, command: str, config_dir: Path | None = None) -> list[str]:
    """Return the options that bring a key of a command, as they are typed."""
    return sorted(
        {option for known, option in keys_and_options(command, config_dir) if known == key} - {""}
    )


def _key_of(name: str, known: Set[str]) -> str:
    named = (key for key, others in OTHER_NAMES.items() if name in others.split())
    for whole in (name, *named):
        if whole.partition("=")[0] in known:
            return whole
    for section in _SECTIONS:
        inside = [k for k in known if k.startswith(f"{section}.") and k.endswith(f".{name}")]
        if inside and (section != "adaptation" or len(inside) == 1):
            return min(inside, key=lambda key: (key.count("."), key))
    return ""
