"""Command lines of training, by what is particular to a run: what each event is tried on.

Words in braces stand for fixtures: see `Places` of `tests/functional/conftest.py`.
"""

from tests import task_kinds

TEXT = "pretrain data=text data.train={corpus}"
SAMPLE = "pretrain data=sample_text"
QUESTIONS = "finetune data=sample_questions init_from={pretrained}"
FEW = "finetune data=table data.train={few_questions}"
TAGS = "{task_words tagging} data.labelled=20 streams.rest.batch=8 data.length=8 optimizer.lr=1e-2"
OFTEN = "loop.evaluate_every='3 steps' checkpoint.every='2 steps'"

KINDS = {
    "clm": f"{TEXT} objective=clm",
    "mlm": f"{TEXT} objective=mlm precision=bf16 loop.bf16_residual=true",
    "muon": f"{TEXT} optimizer=muon",
    "memory": (
        f"{TEXT} data.documents=separate model.position_kind=relative model.recurrence=70 "
        "loop.micro_batch=3"
    ),
    "static": (  # half of the text, so that an epoch ends
        f"{TEXT} objective=mlm objective.masks=static objective.copies=2 objective.spans=true "
        "data.validation_share=0.5"
    ),
    "pairs": f"{SAMPLE} data.pairs=nsp objective=mlm +objective@losses.pair=sentence_pair",
    "corrupted": f"{TEXT} objective=prefix_lm objective.corrupt=0.15 tokenizer.sentinels=9",
    "infilled": f"{TEXT} objective=seq2seq objective.noise=infilling+permutation",
    "replaced tokens": (
        f"{SAMPLE} data.length=32 objective=replaced_tokens objective.width=0.5 loop.micro_batch=3"
    ),
    "ema": f"{TEXT} loop.average=ema optimizer.lr=5e-2",
    "strided": f"{SAMPLE} model.attention=strided model.window=8 model.attention_dropout=0.1",
    "fixed": f"{SAMPLE} model.attention=fixed model.window=8 model.depth=2 model.sparse=alternate",
    "student": (
        f"{TEXT} init_from={{masked}} model.depth=2 objective=distil_lm "
        "objective.teachers=[{masked}]"
    ),
    "relations": (
        f"{TEXT} model.width=16 model.depth=2 objective=relation_distillation "
        "objective.teachers=[{masked}]"
    ),
    "full": QUESTIONS,
    "frozen": f"{QUESTIONS} adaptation=frozen",
    "bucketed": f"{QUESTIONS} loop.bucket=true objective.class_weight=balanced",
    "forgetting": f"{QUESTIONS} forgetting.data=source",
    "stages": f"finetune {{adapting gradual_unfreezing}} {OFTEN}",
    "last_k": (
        f"{QUESTIONS} adaptation=gradual_unfreezing adaptation.plan.every='2 steps' "
        f"{OFTEN} loop.average=last_k loop.average_last=2"
    ),
    "penalty": f"finetune {{adapting ewc}} {OFTEN}",
    "streams": f"finetune {{adapting multitask}} {OFTEN}",
    "solved": (
        f"{FEW} experiment=quick init_from={{deep}} loop.batch=1000 "
        "optimizer.weight_decay=[1e-1,3e-2,1e-2,3e-3,1e-3,3e-4]"
    ),
    "unlabelled": (
        f"{QUESTIONS} adaptation=uda data.labelled=30 losses.rest.perturb=tfidf"
    ),
    "views and slices": (
        f"{QUESTIONS} adaptation=cvt data.labelled=30 objective.annealing=exp "
        "+objective@losses.slices=slice_heads losses.slices.weight=0.5"
    ),
    "taught": (
        f"{QUESTIONS} adaptation=distil adaptation.teachers=[{{finetuned}}] data.labelled=30"
    ),
    "words": (
        f"{FEW} init_from={{deep}} adaptation=pet "
        "'objective.words={{place: where, person: who}}'"
    ),
    "masked words": (
        f"{FEW} init_from={{masked}} adaptation=pet "
        "'objective.words={{place: tower, person: bridge}}'"
    ),
    "taught tags": (
        f"{TAGS} adaptation=distil adaptation.teachers=[{{task_run tagging}}] {OFTEN} "
        "objective.class_weight=balanced"
    ),
    "unlabelled tags": f"{TAGS} adaptation=uda losses.rest.perturb=delete {OFTEN}",
    **{name: f"{{task_words {name}}} {OFTEN}" for name in task_kinds.KINDS},
}  # fmt: skip
