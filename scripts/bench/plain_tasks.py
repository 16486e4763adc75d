"""Fine-tune and score a published model with plain code over transformers.

    python plain_tasks.py RECIPE

What `finetune_tasks.py` compares with; RECIPE is JSON, the fields of its `Recipe`. The loop
shuffles, pads each batch to its longest text, and scores a split with the last weights, as
transformers' examples do.
"""

import collections
import csv
import itertools
import json
import re
import string
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

IGNORE = -100


class Task:
    """What the loop needs to know of a task.

    Args:
        asked: The recipe.
        read: What yields of a file the rows that batches are made of.
    """

    model: Any

    def __init__(self, asked: dict[str, Any], read: Callable[[str], Iterable[Any]]) -> None:
        self.asked = asked
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(asked["model"])
        self.rows = {split: list(read(path)) for split, path in asked["files"].items()}

    @property
    def scored(self) -> list[Any]:
        """The rows of the split that is scored."""
        return self.rows[self.asked["scored"]]

    def tokens(self, *texts: Sequence[Any], **settings: Any) -> Any:
        """Return texts as tokens, padded to the longest."""
        return self.tokenizer(
            *map(list, texts), padding=True, truncation=True, return_tensors="pt", **settings
        )

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        """Return the model's arguments, labels included."""
        raise NotImplementedError

    def loss(self, view: dict[str, Any]) -> Tensor:
        """Return the loss of a batch."""
        return self.model(**view).loss

    def answers(self, view: dict[str, Any], some: Sequence[Any]) -> Sequence[Any]:
        """Return what the model says of each row of a batch without labels."""
        raise NotImplementedError

    def right(self, row: Any) -> Any:
        """Return the answer to a row that is right; of a pair, its label."""
        return row[0]

    def score(self, said: Sequence[Any]) -> float:
        """Return the measure of the answers to the split that is scored: accuracy."""
        right = map(self.right, self.scored)
        return float(np.mean([one == other for one, other in zip(said, right, strict=True)]))


class _LoRA(Task):
    """A label for a text by low-rank updates of queries and values, by peft: accuracy."""

    def __init__(self, asked: dict[str, Any]) -> None:
        import peft

        super().__init__(asked, lambda path: list(_table(path))[1:])
        self.labels = sorted({label for rows in self.rows.values() for label, _ in rows})
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            asked["model"], num_labels=len(self.labels)
        )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        model.config.pad_token_id = self.tokenizer.pad_token_id
        wanted = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.05)
        self.model = peft.get_peft_model(model, wanted)

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        labels, texts = zip(*some, strict=True)
        numbers = torch.tensor([self.labels.index(label) for label in labels])
        return {**self.tokens(texts), "labels": numbers}

    def answers(self, view: dict[str, Any], some: Sequence[Any]) -> Sequence[Any]:
        del view["labels"]
        return [self.labels[number] for number in self.model(**view).logits.argmax(-1).tolist()]


class _Tags(Task):
    """A tag for each word: entity F1."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(asked, _conll)
        every = (tag for rows in self.rows.values() for _, tags in rows for tag in tags)
        self.labels = sorted(set(every))
        self.model = transformers.AutoModelForTokenClassification.from_pretrained(
            asked["model"], num_labels=len(self.labels)
        )

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        """A word's first token has its tag."""
        found = self.tokens([words for words, _ in some], is_split_into_words=True)
        target = torch.full_like(found["input_ids"], IGNORE)
        for row, (_, tags) in enumerate(some):
            before = None
            for place, word in enumerate(found.word_ids(row)):
                if word is not None and word != before:
                    target[row, place] = self.labels.index(tags[word])
                before = word
        return {**found, "labels": target}

    def answers(self, view: dict[str, Any], some: Sequence[Any]) -> Sequence[Any]:
        """What was cut from a long sentence has no tag, which counts as missed."""
        target, best = view.pop("labels"), self.model(**view).logits.argmax(-1)
        said = []
        for (_, tags), row, real in zip(some, best, target, strict=True):
            found = [self.labels[number] for number in row[real != IGNORE].tolist()]
            said.append(found + ["O"] * (len(tags) - len(found)))
        return said

    def score(self, said: Sequence[Any]) -> float:
        from seqeval.metrics import f1_score

        return float(f1_score([tags for _, tags in self.scored], said))


class _Numbers(Task):
    """A number for two texts: Pearson's correlation."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(asked, _table)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
            asked["model"], num_labels=1, problem_type="regression"
        )

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        ones, others, scores = zip(*some, strict=True)
        numbers = torch.tensor([float(score) for score in scores])
        return {**self.tokens(ones, others), "labels": numbers}

    def answers(self, view: dict[str, Any], some: Sequence[Any]) -> Sequence[Any]:
        del view["labels"]
        return self.model(**view).logits[:, 0].tolist()

    def score(self, said: Sequence[Any]) -> float:
        right = [float(score) for *_, score in self.scored]
        return float(np.corrcoef(said, right)[0, 1])


class _Spans(Task):
    """An answer in a text, or none: F1 of words by SQuAD 2.0's rules, in percent.

    A row is a window of a text behind its question: its tokens, the answer's first and last one,
    the number of the question, and where the text's tokens stand in it.
    """

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(asked, _squad)
        self.questions = self.rows
        self.questions["train"] = self.questions["train"][: asked["labelled"]]
        self.rows = {
            split: [
                window
                for number, question in enumerate(questions)
                for window in self._windows(number, *question)
            ]
            for split, questions in self.questions.items()
        }
        asked["labelled"] = None  # of questions, not of windows
        self.model = transformers.AutoModelForQuestionAnswering.from_pretrained(asked["model"])

    def _windows(
        self, number: int, question: str, context: str, answers: list[tuple[str, int]]
    ) -> Iterator[Any]:
        found = self.tokenizer(
            question, context, truncation="only_second", max_length=self.asked["length"],
            stride=self.asked["overlap"], return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        for window, places in enumerate(found["offset_mapping"]):
            is_text = [part == 1 for part in found.sequence_ids(window)]
            first = last = 0
            if answers:
                start, end = answers[0][1], answers[0][1] + len(answers[0][0])
                held = [
                    n for n, (a, b) in enumerate(places) if is_text[n] and a < end and b > start
                ]
                if held and places[held[0]][0] <= start and places[held[-1]][1] >= end:
                    first, last = held[0], held[-1]
            inputs = {name: found[name][window] for name in ("input_ids", "token_type_ids")}
            shown = [
                place if inside else None for place, inside in zip(places, is_text, strict=True)
            ]
            yield inputs, first, last, number, shown

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        found = self.tokenizer.pad([inputs for inputs, *_ in some], return_tensors="pt")
        return {
            **found,
            "start_positions": torch.tensor([first for _, first, *_ in some]),
            "end_positions": torch.tensor([last for _, _, last, *_ in some]),
        }

    def answers(self, view: dict[str, Any], some: Sequence[Any]) -> Sequence[Any]:
        """Per window its question, the scores of none and of the best, and that."""
        del view["start_positions"], view["end_positions"]
        found, said = self.model(**view), []
        for row, (_, _, _, number, places) in enumerate(some):
            starts, ends = (
                logits[row].float().cpu().numpy()
                for logits in (found.start_logits, found.end_logits)
            )
            best, text = -np.inf, ""
            context = self.questions[self.asked["scored"]][number][1]
            for first in np.argsort(-starts)[:20]:
                for last in np.argsort(-ends)[:20]:
                    fits = last < len(places) and first <= last < first + 30
                    if not fits or places[first] is None or places[last] is None:
                        continue
                    if starts[first] + ends[last] > best:
                        best = starts[first] + ends[last]
                        text = context[places[first][0] : places[last][1]]
            said.append((number, starts[0] + ends[0], best, text))
        return said

    def score(self, said: Sequence[Any]) -> float:
        none: dict[int, float] = {}
        best: dict[int, tuple[float, str]] = {}
        for number, null, value, text in said:
            none[number] = min(null, none.get(number, np.inf))
            best[number] = max((value, text), best.get(number, (-np.inf, "")))
        total = 0.0
        for number, (_, _, answers) in enumerate(self.questions[self.asked["scored"]]):
            value, text = best[number]
            text = "" if none[number] > value else text
            total += max(_f1(text, right) for right, _ in answers or [("", 0)])
        return 100 * total / len(self.questions[self.asked["scored"]])


class _Answers(_Spans):
    """The same of questions that all have an answer."""

    def score(self, said: Sequence[Any]) -> float:
        """No answer is never said."""
        return super().score([(number, -np.inf, *best) for number, _, *best in said])


class _Choices(Task):
    """One of several texts after another, by GPT-2's second head: accuracy."""

    def __init__(self, asked: dict[str, Any]) -> None:
        super().__init__(asked, _json_lines)
        self.model = transformers.GPT2DoubleHeadsModel.from_pretrained(asked["model"], num_labels=1)

    def right(self, row: dict[str, Any]) -> int:
        """Its number."""
        return int(row["label"])

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        """A row with fewer choices has empty ones, which never win."""
        most = max(len(row["choices"]) for row in some)
        padded = [row["choices"] + [""] * (most - len(row["choices"])) for row in some]
        found = self.tokens(
            [row["context"] for row in some for _ in range(most)],
            [choice for choices in padded for choice in choices],
        )
        shape = (len(some), most, -1)
        return {
            "input_ids": found["input_ids"].view(shape),
            "attention_mask": found["attention_mask"].view(shape),
            "mc_token_ids": found["attention_mask"].sum(-1).view(shape[:2]) - 1,
            "mc_labels": torch.tensor([self.right(row) for row in some]),
            "is_none": torch.tensor([[not choice for choice in choices] for choices in padded]),
        }

    def loss(self, view: dict[str, Any]) -> Tensor:
        is_none, labels = view.pop("is_none"), view.pop("mc_labels")
        logits = self.model(**view).mc_logits
        return nn.functional.cross_entropy(logits.masked_fill(is_none, -torch.inf), labels)

    def answers(self, view: dict[str, Any], some: Sequence[Any]) -> Sequence[Any]:
        logits = self.model(
            input_ids=view["input_ids"], attention_mask=view["attention_mask"],
            mc_token_ids=view["mc_token_ids"],
        ).mc_logits  # fmt: skip
        if "is_none" in view:
            logits = logits.masked_fill(view["is_none"], -torch.inf)
        return logits.argmax(-1).tolist()


class _Dialog(_Choices):
    """The next utterance and its words, as in the code of Wolf et al. 2019: hits at 1."""

    def right(self, row: dict[str, Any]) -> int:
        return len(row["candidates"]) - 1

    def batch(self, some: Sequence[Any]) -> dict[str, Any]:
        cls, sep, pad = (
            getattr(self.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad")
        )
        rows, words = [], []
        for each in some:
            right = self.right(each)
            context = [sep, *self._ids(" ".join(each["persona"]))]
            for turn, said in enumerate(each["history"]):
                context += self._ids(self.asked["speakers"][(len(each["history"]) - turn) % 2])
                context += self._ids(said)
            context += self._ids(self.asked["speakers"][0])
            for number, reply in enumerate(each["candidates"]):
                said = [*self._ids(reply), cls]
                rows.append([*context, *said])
                words.append(
                    [*[IGNORE] * len(context), *(said if number == right else [IGNORE] * len(said))]
                )
        shape = (len(some), len(some[0]["candidates"]), -1)

        def padded(rows: list[list[int]], value: int) -> Tensor:
            tensors = [torch.tensor(row) for row in rows]
            return nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value).view(
                shape
            )

        return {
            "input_ids": padded(rows, pad),
            "attention_mask": padded([[1] * len(row) for row in rows], 0),
            "mc_token_ids": torch.tensor([len(row) - 1 for row in rows]).view(shape[:2]),
            "labels": padded(words, IGNORE),
            "mc_labels": torch.full((len(some),), shape[1] - 1),
        }

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def loss(self, view: dict[str, Any]) -> Tensor:
        found = self.model(**view)
        return found.loss + found.mc_loss


TASKS = {
    "lora": _LoRA, "tags": _Tags, "numbers": _Numbers, "spans": _Spans,
    "answers": _Answers, "choices": _Choices, "dialog": _Dialog,
}  # fmt: skip


def train(task: Task, asked: dict[str, Any]) -> None:
    """Train with AdamW, a warm-up, a fall to 0, and clipping at norm 1."""
    rows, batch, epochs = task.rows["train"][: asked["labelled"]], asked["batch"], asked["epochs"]
    parameters = [each for each in task.model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(
        [
            {"params": [each for each in parameters if each.ndim >= 2]},
            {"params": [each for each in parameters if each.ndim < 2], "weight_decay": 0.0},
        ],
        lr=asked["rate"], weight_decay=0.01,
    )  # fmt: skip
    steps = epochs * -(-len(rows) // batch)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, int(asked["warmup"] * steps), steps
    )
    task.model.train()
    for _ in range(epochs):
        order = torch.randperm(len(rows)).tolist()
        for first in range(0, len(order), batch):
            view = _on_device(task.batch([rows[at] for at in order[first : first + batch]]), asked)
            with _precision(asked):
                loss = task.loss(view)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def _on_device(view: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    return {name: each.to(asked["device"]) for name, each in view.items()}


def _precision(asked: dict[str, Any]) -> Any:
    kind = torch.device(asked["device"]).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


@torch.no_grad()
def score(task: Task, asked: dict[str, Any], batch: int = 64) -> float:
    """Return the measure of the split that is scored."""
    task.model.eval()
    said: list[Any] = []
    for first in range(0, len(task.scored), batch):
        some = task.scored[first : first + batch]
        with _precision(asked):
            said += task.answers(_on_device(task.batch(some), asked), some)
    return task.score(said)


def _conll(path: str) -> Iterator[tuple[list[str], list[str]]]:
    with Path(path).open(encoding="utf-8") as file:
        for filled, lines in itertools.groupby(file, lambda line: bool(line.strip())):
            if filled:
                cells = [line.split() for line in lines]
                yield [each[0] for each in cells], [each[-1] for each in cells]


def _table(path: str) -> Iterator[list[str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file)


def _json_lines(path: str) -> Iterator[Any]:
    with Path(path).open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _squad(path: str) -> Iterator[tuple[str, str, list[tuple[str, int]]]]:
    with Path(path).open(encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            for paragraph in article["paragraphs"]:
                for each in paragraph["qas"]:
                    answers = [(one["text"], one["answer_start"]) for one in each["answers"]]
                    yield each["question"], paragraph["context"], answers


def _words(text: str) -> list[str]:
    plain = "".join(each for each in text.lower() if each not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _f1(said: str, right: str) -> float:
    ours, theirs = _words(said), _words(right)
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * same / (len(ours) + len(theirs))


def main() -> None:
    """Do what the recipe says, and write the score."""
    asked = json.loads(sys.argv[1])
    torch.manual_seed(asked["seed"])
    task = TASKS[asked["task"]](asked)
    task.model.to(asked["device"])
    train(task, asked)
    Path(asked["out"]).write_text(json.dumps(score(task, asked)), encoding="utf-8")


if __name__ == "__main__":
    main()
