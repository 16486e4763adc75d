"""Work of a GPU as workers of `measuring`: `transfer`, a plain loop, Hugging Face.

`scripts/gpu/ab.py` lets them take turns. What trains computes in bfloat16 and is compiled; on a
CPU, where figures mean nothing, neither. A turn is several steps, or tokens: between them the host
runs ahead of the GPU.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import peers
import product
import torch
from measuring import Gate

SIZES = {
    name: dict(zip(product.SIZES, numbers, strict=True))
    for name, numbers in {
        # width, heads, depth, feed-forward, vocabulary, length, batch
        "base": (512, 8, 11, 2048, 29_056, 256, 64),
        "base-two": (512, 8, 11, 2048, 29_056, 256, 2),
        "bert-base": (768, 12, 12, 3072, 29_056, 512, 32),
        "bert-large": (1024, 16, 24, 4096, 29_056, 512, 32),
        "trial": (64, 1, 1, 128, 512, 32, 4),
    }.items()
}
"""Multiples of 64: on others a GPU multiplies with a part of its units."""

KINDS = {
    "attention": r"flash|fmha|sdpa|attention",
    "products": r"gemm|nvjet|cutlass|cublas|splitk",
    "loss": r"triton.*(log|exp|gather|amax|arange)",
    "norms": r"triton.*layer_norm|triton.*rsqrt",
    "activation": r"triton.*(gelu|erf|relu|threshold)",
    "optimizer": r"adam|multi_tensor|foreach",
    "other fused kernels": r"triton",
    "copies and the rest": r"",
}
"""Kinds of kernels by what their names contain; the first that fits."""
LONGEST = 12
"""How many single kernels a profile names."""


class TurnGate:
    """A gate that is reached every few steps, and profiles what it lets through in turn `profiled`.

    That is a number behind the first arrival.
    """

    def __init__(self, arrive: Gate, steps: int, device: str, profiled: int) -> None:
        self._arrive, self._steps, self._is_gpu = arrive, steps, device.startswith("cuda")
        self._profiled, self._taken = profiled, 0
        self._profile: Any = None
        self._began = 0.0

    def __call__(self) -> None:
        """Count a step; at the last of a turn wait for the GPU, and for the next turn."""
        turn, step = divmod(self._taken, self._steps)
        self._taken += 1
        if step:
            return
        if self._is_gpu:
            torch.cuda.synchronize()
            self._arrive.note(gpu_mib=torch.cuda.max_memory_allocated() / 2**20)
        if self._profile is not None:
            seconds, profile = time.perf_counter() - self._began, self._profile
            profile.__exit__(None, None, None)
            self._profile = None
            self._arrive.note(**summarize_profile(profile, seconds, self._steps))
        self._arrive()
        if turn == self._profiled and self._is_gpu:
            self._profile = torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CUDA]
            )
            self._profile.__enter__()
            self._began = time.perf_counter()


def summarize_profile(profile: Any, seconds: float, steps: int) -> dict[str, float]:
    """Return milliseconds a step by kind of kernel and of the longest, launches and gaps."""
    events = [
        event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    by_name, by_kind = Counter[str](), Counter[str]()
    for event in events:
        milliseconds = event.time_range.elapsed_us() / 1000 / steps
        by_name[event.name] += milliseconds
        by_kind[kernel_kind(event.name)] += milliseconds
    covered = covered_us((event.time_range.start, event.time_range.end) for event in events)
    return {
        **{f"{kind}, ms": value for kind, value in by_kind.items()},
        **{f"kernel {name[:160]}, ms": value for name, value in by_name.most_common(LONGEST)},
        "launches": len(events) / steps,
        "no kernel, ms": 1000 * (seconds - covered / 1e6) / steps,
    }


def kernel_kind(kernel: str) -> str:
    """Return which of `KINDS` a kernel belongs to."""
    return next(kind for kind, part in KINDS.items() if re.search(part, kernel, re.IGNORECASE))


def covered_us(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of some spans lasts."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered


def flops_per_token(size: Mapping[str, int]) -> int:
    """Return what training on one token takes of floating-point operations (`engine.cost`).

    A causal mask does not lessen it, by convention, and what is computed a second time to save
    memory does not count.

    Source: Chowdhery et al. 2022 (PaLM), appendix B; the six of Kaplan et al. 2020, section 2.1.
    """
    from transfer_cli.engine.cost import training_flops
    from transfer_cli.model.backbone import Backbone, BackboneShape
    from transfer_cli.model.heads import LanguageModelHead
    from transfer_cli.model.meta_device import without_weights
    from transfer_cli.model.transfer_model import TransferModel

    named = {name: size[name] for name in ("width", "heads", "depth", "feedforward")}
    shape = BackboneShape(**named, positions=size["length"], direction="causal")
    with without_weights():
        head = LanguageModelHead(shape, size["vocabulary"])
        model = TransferModel(Backbone(shape, size["vocabulary"]), {"lm": head})
    return training_flops(model, size["length"])


def transfer_run(
    arrive: Gate, words: Sequence[str], command: str = "pretrain", **turns: Any
) -> None:
    """Run the whole of a command that trains."""
    product.train(TurnGate(arrive, **turns), words, command)


def plain_loop(arrive: Gate, size: Mapping[str, int], *, compiled: bool, **turns: Any) -> None:
    """Train a nanoGPT-style model with what makes such a loop fast on a GPU."""
    peers.plain_loop(TurnGate(arrive, **turns), size, device=turns["device"], compiled=compiled)


def trainer(arrive: Gate, size: Mapping[str, int], *, compiled: bool, **turns: Any) -> None:
    """Train GPT-2 under Hugging Face's `Trainer` with its fast settings."""
    settings = _fast_settings(turns["device"], compiled=compiled)
    if compiled:
        settings |= {"torch_compile": True}
    peers.gpt2_trainer(TurnGate(arrive, **turns), size, "gelu_new", **settings)


def _fast_settings(device: str, *, compiled: bool) -> dict[str, Any]:
    place: dict[str, Any] = {"use_cpu": True}
    if device != "cpu":
        place = {"dataloader_num_workers": 2, "dataloader_pin_memory": True}
    return {"optim": "adamw_torch_fused", "bf16": compiled, **place}


def trec_trainer(
    arrive: Gate, folder: str, data_dir: str, batch: int, *, compiled: bool, **turns: Any
) -> None:
    """Fine-tune a published model on the questions of TREC under the `Trainer`."""
    import transformers

    questions = product.read_trec(Path(data_dir))["train"]
    labels = sorted({label for label, _ in questions})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = [{**tokenizer(text, truncation=True), "labels": labels.index(label)}
            for label, text in questions]  # fmt: skip
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(folder, num_labels=len(labels))
    collate = transformers.DataCollatorWithPadding(tokenizer)
    settings = _fast_settings(turns["device"], compiled=compiled)
    peers.run_trainer(
        TurnGate(arrive, **turns), model, rows, batch, settings, data_collator=collate
    )


PROMPT = range(20, 40)


def write_tokens(
    arrive: Gate, folder: str, kind: str, rows: int, tokens: int, *, graphs: bool, **turns: Any
) -> None:
    """Go on with a prompt by `transfer_cli.generation`, a step a token."""
    from transfer_cli.assembly.finished_run import open_trained
    from transfer_cli.engine.precision import Precision
    from transfer_cli.generation import token_graph
    from transfer_cli.generation.decoding import Sampling, TokenSampler, generate

    token_graph.FEWEST_TOKENS = 1 if graphs else 10**9
    precision = Precision(kind, torch.device(turns["device"]))
    trained, gate = open_trained(folder, precision), TurnGate(arrive, **turns)
    allowed_V = torch.ones(trained.start.description.vocabulary, dtype=torch.bool)
    with torch.inference_mode(), precision.context():
        for _ in generate(
            trained.model, list(PROMPT), rows=rows, max_new_tokens=tokens, use_cache=True,
            sampling=Sampling(0), sampler=TokenSampler(0, rows), allowed_V=allowed_V,
        ):  # fmt: skip
            gate()


def write_tokens_of_peer(
    arrive: Gate, folder: str, kind: str, rows: int, tokens: int, **turns: Any
) -> None:
    """Go on with it by `generate` of transformers."""
    import transformers

    gate = TurnGate(arrive, **turns)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    prompts = torch.tensor([list(PROMPT)] * rows, device=turns["device"])

    class AtEachToken(transformers.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            gate()
            return scores

    model.to(turns["device"]).generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=tokens, do_sample=False,
        min_new_tokens=tokens, logits_processor=[AtEachToken()],
    )  # fmt: skip
