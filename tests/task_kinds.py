"""Kinds of tasks as functional tests run them: a file whose texts tell the answers, a record."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

CITIES = ("Lima", "Oslo", "Quito", "Riga", "Turin", "Vaduz")
THINGS = ("bridge", "market", "harbour", "garden", "tower")
PLACES = ("red", "blue", "old", "new")


ALIKE = "data.duplicates=keep"
"""What files say of few texts that stand there many times, so that they are learnt soon."""


@dataclass(frozen=True)
class Kind:
    """A kind of task.

    Args:
        data: Its preset of data.
        objective: Its preset of an objective.
        file: What its file is called.
        text: What stands in it.
        steps: How many it takes to learn that.
        words: What is typed beyond.
        least: What each measure exceeds on the validation split; the first is the headline, which
            exceeds as much on the whole file.
        most: What others stay below there.
        labels: What its items may be labelled with, where these are few.
        shown: What a look at its data shows.
    """

    data: str
    objective: str
    file: str
    text: Callable[[], str]
    steps: int
    words: tuple[str, ...]
    least: dict[str, float]
    most: dict[str, float] = field(default_factory=dict)
    labels: frozenset[str] | None = None
    shown: tuple[str, ...] = ()

    def typed(self, file: object, start: object) -> tuple[str, ...]:
        """Return the words that fine-tune a model on its file."""
        every = min(30, self.steps // 2)
        return (
            "finetune", f"data={self.data}", f"objective={self.objective}", f"data.train={file}",
            f"init_from={start}", "device=cpu", "loop.log_every=1", f"loop.steps={self.steps}",
            "loop.batch=16", f"loop.evaluate_every={every} steps",
            f"checkpoint.every={every} steps", "checkpoint.keep=2", ALIKE, *self.words,
        )  # fmt: skip


def lines(rows: list[object]) -> str:
    """Return rows as JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def choice(number: int) -> dict[str, object]:
    """Return a question with two to four choices, of which one has a word of its own."""
    count, place = 2 + number % 3, PLACES[number % 4]
    others = [other for other in PLACES if other != place][: count - 1]
    right = number % count
    choices = [*others[:right], f"very {place}", *others[right:]]
    return {
        "context": f"the {place} bridge", "question": "it is", "choices": choices, "label": right,
    }  # fmt: skip


def turn(number: int) -> dict[str, object]:
    """Return a turn whose right reply repeats a word of its last utterance."""
    place = PLACES[number % 4]
    others = [f"it is {other} ." for other in PLACES if other != place][: 1 + number % 3]
    history = ["what is it ?", "a bridge .", f"the {place} bridge ?"][-1 - 2 * (number % 2) :]
    return {
        "personality": ["the bridge is here ."],
        "history": history,
        "candidates": [*others, f"it is very {place} ."],
    }


def dialogs() -> str:
    """Return dialogs as PersonaChat's file has them."""
    parts = {"train": range(96), "valid": range(96, 120)}
    return json.dumps(
        {
            part: [
                {"personality": turn(n)["personality"], "utterances": [turn(n)]} for n in numbers
            ]
            for part, numbers in parts.items()
        }
    )


def asked(number: int) -> dict[str, object]:
    """Return a question about a city; every fourth text has none."""
    city, thing = CITIES[number % 6], THINGS[number % 5]
    if number % 4 == 0:
        context, answers = f"The {thing} is {number} .", []
    else:
        context = f"The {thing} of {city} is {number} years older ."
        answers = [{"text": city, "answer_start": context.index(city)}]
    return {"id": number, "question": "Which city ?", "context": context, "answers": answers}


def sentence(number: int) -> str:
    """Return the lines of a sentence about a city, or two words that are one; some have none."""
    city, thing = CITIES[number % 6], THINGS[number % 5]
    name = [f"{city} B-CITY", *([f"{CITIES[number % 4]} I-CITY"] if number % 3 == 1 else [])]
    name = [f"{thing} O"] if number % 4 == 0 else name
    return "\n".join(["The O", f"{thing} O", "of O", *name, "is O", f"{number} O", ". O"])


def table(header: str, row: Callable[[int], str]) -> str:
    """Return a table of 120 rows."""
    return "\n".join([header, *map(row, range(120))]) + "\n"


KINDS = {
    "choice": Kind(
        "choices", "choice", "own.jsonl", lambda: lines([choice(n) for n in range(120)]),
        steps=30,
        words=("optimizer.lr=3e-3", "objective.class_weight=balanced"),
        least={"accuracy": 0.9},
        most={"chance": 0.6, "mean_rank": 1.2},
        labels=frozenset(f"very {place}" for place in PLACES),
        shown=("  very red: the red bridge | it is | very red | blue",),
    ),
    "chat": Kind(
        "chat", "sft", "chats.jsonl",
        lambda: lines([
            {"messages": [{"role": "user", "content": f"the {PLACES[n % 4]} bridge"},
                          {"role": "assistant", "content": PLACES[n % 4]}]}
            for n in range(120)
        ]),
        steps=40,
        words=("tokenizer.chat_template=chatml", "data.answer_tokens=6", "optimizer.lr=1e-2"),
        least={"exact_match": 0.9, "f1": 0.9},
        most={"perplexity": 1.5},
        labels=frozenset(PLACES),
        shown=("the red bridge | red",),
    ),
    "dialog": Kind(
        "dialog", "next_utterance", "personachat.json", dialogs,
        steps=30,
        words=("+objective@losses.lm=clm", "losses.lm.weight=2", "data.speakers=[the,it]",
               "adaptation/edits=[segments]", "optimizer.lr=3e-3"),
        least={"hits_at_1": 0.9},
        most={"chance": 0.6, "perplexity": 100, "f1": 1.01},
    ),
    "multilabel": Kind(
        "labels", "multilabel", "texts.csv",
        lambda: table(
            "text,labels",
            lambda n: f"the {PLACES[n % 4]} bridge,{('color', 'color;cold', 'age', '')[n % 4]}",
        ),
        steps=60,
        words=("data.separator=semicolon", "objective.thresholds=fit", "optimizer.lr=3e-3"),
        least={"micro_f1": 0.9, "exact_match": 0.9},
        most={f"macro_f1/{label}": 1.01 for label in ("age", "cold", "color")},
        labels=frozenset({"color", "cold|color", "age", ""}),
        shown=("the blue bridge", "color"),
    ),
    "regression": Kind(
        "numbers", "regression", "pairs.csv",
        lambda: table(
            "sentence1,sentence2,score",
            lambda n: f"the {PLACES[n % 4]} bridge,a bridge,{n % 4 + 0.5}",
        ),
        steps=60,
        words=("optimizer.lr=3e-3",),
        least={"pearson": 0.9, "spearman": 0.9},
        most={"mse": 0.3},
        shown=("0.5: the red bridge | a bridge",),
    ),
    "similarity": Kind(
        "pairs", "contrastive", "pairs.csv",
        lambda: table(
            "anchor,positive",
            lambda n: "the {0} of {1},{1} has a {0}".format(THINGS[n % 5], CITIES[n % 6]),
        ),
        steps=60,
        words=("optimizer.lr=3e-3",),
        least={"mrr": 0.9, "ndcg_at_10": 0.9, "recall_at_1": 0.8, "recall_at_10": 0.9},
        most={"mse": 0.3},
        shown=("the bridge of Lima | Lima has a bridge",),
    ),
    "span": Kind(
        "squad", "span", "questions.jsonl", lambda: lines([asked(n) for n in range(160)]),
        steps=90,
        words=("data.length=24", "data.question_length=6", "data.step=6",
               "objective.null_threshold=fit", "optimizer.lr=1e-2"),
        least={"f1": 90},
        most={"exact_match/HasAns": 101, "f1/NoAns": 101},
        labels=frozenset({*CITIES, "(no answer)"}),
        shown=("Oslo: Which city ? | The market of Oslo is 1 years older .",
               "(no answer): Which city ? | The bridge is 0 ."),
    ),
    "tagging": Kind(
        "conll", "tagging", "cities.conll", lambda: "\n\n".join(map(sentence, range(160))),
        steps=90,
        words=("optimizer.lr=1e-2",),
        least={"entity_f1": 0.7, "accuracy": 0.9},
        shown=("O O O B-CITY I-CITY O O O: The market of Oslo Oslo is 1 .",),
    ),
    "text_to_text": Kind(
        "text_pairs", "prefix_lm", "pairs.csv",
        lambda: table("source,target", lambda n: f"the {PLACES[n % 4]} bridge,{PLACES[n % 4]}"),
        steps=60,
        words=("data.target_length=8", "optimizer.lr=1e-2"),
        least={"exact_match": 0.9, "rouge_l": 0.9},
        most={"perplexity": 1.5},
        labels=frozenset(PLACES),
        shown=("the red bridge | red",),
    ),
}  # fmt: skip
