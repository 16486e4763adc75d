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
        recipe: The fields of `Recipe`, by name.
        read: What yields of a file the rows that batches are made of.
    """

    model: Any

    def __init__(self, recipe: dict[str, Any], read: Callable[[str], Iterable[Any]]) -> None:
        self.recipe = recipe
        self.tokenizer: Any = transformers.AutoTokenizer.from_pretrained(recipe["model"])
        self.rows = {split: list(read(path)) for split, path in recipe["files"].items()}

    @property
    def scored(self) -> list[Any]:
        """The rows of the split that is scored."""
        return self.rows[self.recipe["scored"]]

    def tokenize(self, *texts: Sequence[Any], **settings: Any) -> Any:
        """Return texts as tokens, padded to the longest."""
        return self.tokenizer(
            *map(list, texts), padding=True, truncation=True, return_tensors="pt", **settings
        )

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return the model's arguments, labels included."""
        raise NotImplementedError

    def loss(self, inputs: dict[str, Any]) -> Tensor:
        """Return the loss of a batch."""
        return self.model(**inputs).loss

    def answers(self, inputs: dict[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        """Return what the model says of each row of a batch."""
        raise NotImplementedError

    def right_answer(self, row: Any) -> Any:
        """Return the right answer to a row: its label, which stands first."""
        return row[0]

    def score(self, predictions: Sequence[Any]) -> float:
        """Return the measure of the answers to the split that is scored: accuracy."""
        right = map(self.right_answer, self.scored)
        return float(np.mean([one == other for one, other in zip(predictions, right, strict=True)]))


class _LoRA(Task):
    """A label for a text by low-rank updates of queries and values, by peft: accuracy."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        import peft

        super().__init__(recipe, lambda path: list(_read_table(path))[1:])
        self.labels = sorted({label for rows in self.rows.values() for label, _ in rows})
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            recipe["model"], num_labels=len(self.labels)
        )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        model.config.pad_token_id = self.tokenizer.pad_token_id
        lora = peft.LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, lora_dropout=0.05)
        self.model = peft.get_peft_model(model, lora)

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        labels, texts = zip(*rows, strict=True)
        numbers = torch.tensor([self.labels.index(label) for label in labels])
        return {**self.tokenize(texts), "labels": numbers}

    def answers(self, inputs: dict[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        del inputs["labels"]
        return [self.labels[number] for number in self.model(**inputs).logits.argmax(-1).tolist()]


class _Tags(Task):
    """A tag for each word: entity F1."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        super().__init__(recipe, _read_conll)
        sentences = itertools.chain.from_iterable(self.rows.values())
        self.labels = sorted({tag for _, tags in sentences for tag in tags})
        self.model = transformers.AutoModelForTokenClassification.from_pretrained(
            recipe["model"], num_labels=len(self.labels)
        )

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        """A word's first token has its tag."""
        encoding = self.tokenize([words for words, _ in rows], is_split_into_words=True)
        target = torch.full_like(encoding["input_ids"], IGNORE)
        for row, (_, tags) in enumerate(rows):
            before = None
            for place, word in enumerate(encoding.word_ids(row)):
                if word is not None and word != before:
                    target[row, place] = self.labels.index(tags[word])
                before = word
        return {**encoding, "labels": target}

    def answers(self, inputs: dict[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        """What was cut from a long sentence has no tag, which counts as missed."""
        target, best = inputs.pop("labels"), self.model(**inputs).logits.argmax(-1)
        predictions = []
        for (_, tags), row, real in zip(rows, best, target, strict=True):
            predicted = [self.labels[number] for number in row[real != IGNORE].tolist()]
            predictions.append(predicted + ["O"] * (len(tags) - len(predicted)))
        return predictions

    def score(self, predictions: Sequence[Any]) -> float:
        from seqeval.metrics import f1_score

        return float(f1_score([tags for _, tags in self.scored], predictions))


class _Numbers(Task):
    """A number for two texts: Pearson's correlation."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        super().__init__(recipe, _read_table)
        self.model = transformers.AutoModelForSequenceClassification.from_pretrained(
            recipe["model"], num_labels=1, problem_type="regression"
        )

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        ones, others, scores = zip(*rows, strict=True)
        numbers = torch.tensor([float(score) for score in scores])
        return {**self.tokenize(ones, others), "labels": numbers}

    def answers(self, inputs: dict[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        del inputs["labels"]
        return self.model(**inputs).logits[:, 0].tolist()

    def score(self, predictions: Sequence[Any]) -> float:
        right = [float(score) for *_, score in self.scored]
        return float(np.corrcoef(predictions, right)[0, 1])


class _Spans(Task):
    """An answer in a text, or none: F1 of words by SQuAD 2.0's rules, in percent.

    A row is a window of a text behind its question: its tokens, the answer's first and last one,
    the number of the question, and where the text's tokens stand in it.
    """

    def __init__(self, recipe: dict[str, Any]) -> None:
        super().__init__(recipe, _read_squad)
        self.questions = self.rows
        self.questions["train"] = self.questions["train"][: recipe["labelled"]]
        self.rows = {
            split: [
                window
                for number, question in enumerate(questions)
                for window in self._windows(number, *question)
            ]
            for split, questions in self.questions.items()
        }
        recipe["labelled"] = None  # of questions, not of windows
        self.model = transformers.AutoModelForQuestionAnswering.from_pretrained(recipe["model"])

    def _windows(
        self, number: int, question: str, context: str, answers: list[tuple[str, int]]
    ) -> Iterator[Any]:
        encoding = self.tokenizer(
            question, context, truncation="only_second", max_length=self.recipe["length"],
            stride=self.recipe["overlap"], return_overflowing_tokens=True,
            return_offsets_mapping=True,
        )  # fmt: skip
        for window, offsets in enumerate(encoding["offset_mapping"]):
            is_text = [part == 1 for part in encoding.sequence_ids(window)]
            first = last = 0
            if answers:
                start, end = answers[0][1], answers[0][1] + len(answers[0][0])
                overlap = [
                    n for n, (a, b) in enumerate(offsets) if is_text[n] and a < end and b > start
                ]
                if overlap and offsets[overlap[0]][0] <= start and offsets[overlap[-1]][1] >= end:
                    first, last = overlap[0], overlap[-1]
            inputs = {name: encoding[name][window] for name in ("input_ids", "token_type_ids")}
            text_offsets = [
                place if inside else None for place, inside in zip(offsets, is_text, strict=True)
            ]
            yield inputs, first, last, number, text_offsets

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        padded = self.tokenizer.pad([inputs for inputs, *_ in rows], return_tensors="pt")
        return {
            **padded,
            "start_positions": torch.tensor([first for _, first, *_ in rows]),
            "end_positions": torch.tensor([last for _, _, last, *_ in rows]),
        }

    def answers(self, inputs: dict[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        """Per window its question, the scores of none and of the best, and that."""
        del inputs["start_positions"], inputs["end_positions"]
        outputs, predictions = self.model(**inputs), []
        for row, (_, _, _, number, offsets) in enumerate(rows):
            starts, ends = (
                logits[row].float().cpu().numpy()
                for logits in (outputs.start_logits, outputs.end_logits)
            )
            best, text = -np.inf, ""
            context = self.questions[self.recipe["scored"]][number][1]
            for first in np.argsort(-starts)[:20]:
                for last in np.argsort(-ends)[:20]:
                    fits = last < len(offsets) and first <= last < first + 30
                    if not fits or offsets[first] is None or offsets[last] is None:
                        continue
                    if starts[first] + ends[last] > best:
                        best = starts[first] + ends[last]
                        text = context[offsets[first][0] : offsets[last][1]]
            predictions.append((number, starts[0] + ends[0], best, text))
        return predictions

    def score(self, predictions: Sequence[Any]) -> float:
        none: dict[int, float] = {}
        best: dict[int, tuple[float, str]] = {}
        for number, null, value, text in predictions:
            none[number] = min(null, none.get(number, np.inf))
            best[number] = max((value, text), best.get(number, (-np.inf, "")))
        total = 0.0
        for number, (_, _, answers) in enumerate(self.questions[self.recipe["scored"]]):
            value, text = best[number]
            text = "" if none[number] > value else text
            total += max(_word_f1(text, right) for right, _ in answers or [("", 0)])
        return 100 * total / len(self.questions[self.recipe["scored"]])


class _Answers(_Spans):
    """The same of questions that all have an answer."""

    def score(self, predictions: Sequence[Any]) -> float:
        """No answer is never said."""
        return super().score([(number, -np.inf, *best) for number, _, *best in predictions])


class _Choices(Task):
    """One of several texts after another, by GPT-2's second head: accuracy."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        super().__init__(recipe, _read_json_lines)
        self.model = transformers.GPT2DoubleHeadsModel.from_pretrained(
            recipe["model"], num_labels=1
        )

    def right_answer(self, row: dict[str, Any]) -> int:
        """Its number."""
        return int(row["label"])

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        """A row with fewer choices has empty ones, which never win."""
        most = max(len(row["choices"]) for row in rows)
        padded = [row["choices"] + [""] * (most - len(row["choices"])) for row in rows]
        encoding = self.tokenize(
            [row["context"] for row in rows for _ in range(most)],
            [choice for choices in padded for choice in choices],
        )
        shape = (len(rows), most, -1)
        return {
            "input_ids": encoding["input_ids"].view(shape),
            "attention_mask": encoding["attention_mask"].view(shape),
            "mc_token_ids": encoding["attention_mask"].sum(-1).view(shape[:2]) - 1,
            "mc_labels": torch.tensor([self.right_answer(row) for row in rows]),
            "is_none": torch.tensor([[not choice for choice in choices] for choices in padded]),
        }

    def loss(self, inputs: dict[str, Any]) -> Tensor:
        is_none, labels = inputs.pop("is_none"), inputs.pop("mc_labels")
        logits = self.model(**inputs).mc_logits
        return nn.functional.cross_entropy(logits.masked_fill(is_none, -torch.inf), labels)

    def answers(self, inputs: dict[str, Any], rows: Sequence[Any]) -> Sequence[Any]:
        logits = self.model(
            input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"],
            mc_token_ids=inputs["mc_token_ids"],
        ).mc_logits  # fmt: skip
        if "is_none" in inputs:
            logits = logits.masked_fill(inputs["is_none"], -torch.inf)
        return logits.argmax(-1).tolist()


class _Dialog(_Choices):
    """The next utterance and its words, as in the code of Wolf et al. 2019: hits at 1."""

    def right_answer(self, row: dict[str, Any]) -> int:
        return len(row["candidates"]) - 1

    def batch(self, rows: Sequence[Any]) -> dict[str, Any]:
        cls, sep, pad = (
            getattr(self.tokenizer, f"{name}_token_id") for name in ("cls", "sep", "pad")
        )
        sequences, labels = [], []
        for dialog in rows:
            right = self.right_answer(dialog)
            context = [sep, *self._ids(" ".join(dialog["persona"]))]
            for turn, utterance in enumerate(dialog["history"]):
                context += self._ids(self.recipe["speakers"][(len(dialog["history"]) - turn) % 2])
                context += self._ids(utterance)
            context += self._ids(self.recipe["speakers"][0])
            for number, reply in enumerate(dialog["candidates"]):
                ids = [*self._ids(reply), cls]
                sequences.append([*context, *ids])
                targets = ids if number == right else [IGNORE] * len(ids)
                labels.append([*[IGNORE] * len(context), *targets])
        shape = (len(rows), len(rows[0]["candidates"]), -1)

        def pad_rows(lists: list[list[int]], value: int) -> Tensor:
            tensors = [torch.tensor(numbers) for numbers in lists]
            padded = nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
            return padded.view(shape)

        return {
            "input_ids": pad_rows(sequences, pad),
            "attention_mask": pad_rows([[1] * len(row) for row in sequences], 0),
            "mc_token_ids": torch.tensor([len(row) - 1 for row in sequences]).view(shape[:2]),
            "labels": pad_rows(labels, IGNORE),
            "mc_labels": torch.full((len(rows),), shape[1] - 1),
        }

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def loss(self, inputs: dict[str, Any]) -> Tensor:
        outputs = self.model(**inputs)
        return outputs.loss + outputs.mc_loss


TASKS = {
    "lora": _LoRA, "tags": _Tags, "numbers": _Numbers, "spans": _Spans,
    "answers": _Answers, "choices": _Choices, "dialog": _Dialog,
}  # fmt: skip


def train(task: Task, recipe: dict[str, Any]) -> None:
    """Train with AdamW, a warm-up, a fall to 0, and clipping at norm 1."""
    rows, batch = task.rows["train"][: recipe["labelled"]], recipe["batch"]
    parameters = [parameter for parameter in task.model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in parameters if parameter.ndim >= 2]
    vectors = [parameter for parameter in parameters if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe["rate"], weight_decay=0.01,
    )  # fmt: skip
    steps = recipe["epochs"] * -(-len(rows) // batch)
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, int(recipe["warmup"] * steps), steps
    )
    task.model.train()
    for _ in range(recipe["epochs"]):
        order = torch.randperm(len(rows)).tolist()
        for first in range(0, len(order), batch):
            portion = [rows[number] for number in order[first : first + batch]]
            inputs = _to_device(task.batch(portion), recipe)
            with _autocast(recipe):
                loss = task.loss(inputs)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def _to_device(inputs: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor.to(recipe["device"]) for name, tensor in inputs.items()}


def _autocast(recipe: dict[str, Any]) -> Any:
    kind = torch.device(recipe["device"]).type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


@torch.no_grad()
def score(task: Task, recipe: dict[str, Any], batch: int = 64) -> float:
    """Return the measure of the split that is scored."""
    task.model.eval()
    predictions: list[Any] = []
    for first in range(0, len(task.scored), batch):
        rows = task.scored[first : first + batch]
        with _autocast(recipe):
            predictions += task.answers(_to_device(task.batch(rows), recipe), rows)
    return task.score(predictions)


def _read_conll(path: str) -> Iterator[tuple[list[str], list[str]]]:
    with Path(path).open(encoding="utf-8") as file:
        for filled, lines in itertools.groupby(file, lambda line: bool(line.strip())):
            if filled:
                rows = [line.split() for line in lines]
                yield [row[0] for row in rows], [row[-1] for row in rows]


def _read_table(path: str) -> Iterator[list[str]]:
    with Path(path).open(encoding="utf-8", newline="") as file:
        yield from csv.reader(file)


def _read_json_lines(path: str) -> Iterator[Any]:
    with Path(path).open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def _read_squad(path: str) -> Iterator[tuple[str, str, list[tuple[str, int]]]]:
    with Path(path).open(encoding="utf-8") as file:
        for article in json.load(file)["data"]:
            for paragraph in article["paragraphs"]:
                for qa in paragraph["qas"]:
                    answers = [(answer["text"], answer["answer_start"]) for answer in qa["answers"]]
                    yield qa["question"], paragraph["context"], answers


def _normalized_words(text: str) -> list[str]:
    plain = "".join(character for character in text.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()


def _word_f1(answer: str, right: str) -> float:
    ours, theirs = _normalized_words(answer), _normalized_words(right)
    if not ours or not theirs:
        return float(ours == theirs)
    same = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    return 2 * same / (len(ours) + len(theirs))


def main() -> None:
    """Do what the recipe says, and write the score."""
    recipe = json.loads(sys.argv[1])
    torch.manual_seed(recipe["seed"])
    task = TASKS[recipe["task"]](recipe)
    task.model.to(recipe["device"])
    train(task, recipe)
    Path(recipe["out"]).write_text(json.dumps(score(task, recipe)), encoding="utf-8")


if __name__ == "__main__":
    main()
