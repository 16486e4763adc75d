"""A made-up encyclopedia and questions about it: needs no network, and pretraining decides.

The world has six kinds of things with some names each. A name does not show its kind: all names
are built from one list of syllables and dealt out at random. The encyclopedia shows it: an article
has one kind, so a city's name occurs with other cities' names, mayors, streets and harbours.

A question's label is the kind of the one name in it. The wording gives nothing away: every kind has
the same wordings equally often, and no name occurs in two splits. A model that has not read the
encyclopedia can only guess (one in six); one that has needs the few training questions only to
learn the names of the six labels.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TypeVar

from transfer_cli.seeds import derive

T = TypeVar("T")

NAMES_ASKED = {"train": 8, "validation": 4, "test": 8}
"""Names of each kind in the questions of a split."""

QUESTIONS_PER_NAME = {"train": 3, "validation": 4, "test": 6}
"""Wordings of the question about each of them."""

TEXTS_ASKED = {"train": 1200, "validation": 120, "test": 300}
"""Texts of a split that are asked for the name of a kind of thing."""

TEXTS_TAGGED = {"train": 600, "validation": 120, "test": 300}
"""Texts of a split whose names are tagged."""

ROUNDS = {"train": 16, "validation": 1, "test": 1}
"""Articles of a split with each name as their first subject."""

_SENTENCES = {
    "animal": (
        "{it} is a {trait} animal with {coat} {body} .",
        "Like {other} , the {trait} animal {it} eats {food} and {food} .",
        "The animals {it} and {other} sleep in a {home} .",
        "{it} hunts {food} at night , while {other} hides in a {home} .",
        "Animals such as {it} , {other} and {other} have {coat} {body} .",
        "With its {coat} {body} , {it} digs a {home} .",
        "The zoo feeds {it} and {other} {food} .",
        "When {other} barks , {it} runs to its {home} .",
    ),
    "city": (
        "{it} is a {trait} city with a {building} and a {building} .",
        "The {people} of the city of {it} built a {building} .",
        "Trains between the cities of {it} and {other} are {trait} .",
        "Streets in {it} lead from the {building} to the {building} .",
        "{people} from {other} rent houses in the {trait} city of {it} .",
        "The mayors of {it} , {other} and {other} met at the {building} .",
        "The {people} of {it} and {other} pay for a {building} .",
        "Traffic in {it} is as {trait} as in {other} .",
    ),
    "disease": (
        "{it} is a {trait} disease that begins with {symptom} .",
        "{staff} treat the diseases {it} and {other} with {cure} .",
        "Patients with {it} suffer from {symptom} and {symptom} .",
        "The symptoms of {it} , {other} and {other} are {symptom} and {symptom} .",
        "{staff} give {cure} against {it} and {cure} against {other} .",
        "Unlike {other} , the {trait} disease {it} ends without {symptom} .",
        "{staff} stopped an outbreak of {it} with {cure} .",
        "Infected with {it} or {other} , one needs {cure} .",
    ),
    "mineral": (
        "{it} is a {trait} mineral that forms {shape} in {rock} .",
        "{worker} find the minerals {it} and {other} between {rock} .",
        "A piece of the {trait} mineral {it} scratches {other} .",
        "Heated in a furnace , {it} turns {trait} and leaves {shape} .",
        "The {shape} of {it} , {other} and {other} are {trait} .",
        "{worker} grind {it} and {other} to powder .",
        "Like {other} , the mineral {it} is dug from {rock} by {worker} .",
        "{worker} polish {trait} {shape} of {it} .",
    ),
    "person": (
        "{it} was a {trait} {work} and the {kin} of {other} .",
        "The {work} {it} wrote {opus} and {opus} for {other} .",
        "{it} married the {kin} of the {trait} {work} {other} .",
        "The {work} {it} was praised by {other} for {opus} .",
        "{it} , {other} and {other} were {trait} persons who wrote {opus} .",
        "Born as the {kin} of a {work} , {it} studied under {other} .",
        "The {work} {other} taught that {trait} person {it} to compose {opus} .",
        "{it} left the {opus} to the {kin} of {other} .",
    ),
    "river": (
        "{it} is a {trait} river that flows through a {land} .",
        "{boat} sail down the rivers {it} and {other} to the {land} .",
        "After the rain , {it} and {other} flooded the {land} .",
        "The banks of the {trait} river {it} are lined with {boat} .",
        "Below the {land} , the river {it} pours into {other} .",
        "A dam on {it} sends water to the {trait} {land} .",
        "{it} , {other} and {other} rise in the same {land} .",
        "Upstream of {other} , {it} is too {trait} for {boat} .",
    ),
}
"""The sentences of each kind of thing.

`{it}` is a name that the article is about, `{other}` is another name of the kind, and any other
`{slot}` is a word or phrase of that slot, a new one at each place.
"""

# Words with a kind's own meaning occur with that kind alone. Adjectives begin with a consonant, so
# that "a" is right in front of them.
_WORDS = {
    "animal": {
        "trait": "shy, tame, wild, timid, playful, hungry, sleepy, fierce",
        "coat": "furry, striped, spotted, hairy, woolly, pointed, curly, fluffy",
        "body": "ears, paws, claws, tails, whiskers, horns, wings, hooves",
        "food": "insects, berries, worms, nuts, mice, seeds, frogs, eggs",
        "home": "burrow, nest, den, hollow tree, cage, thicket, stable, lair",
    },
    "city": {
        "trait": "busy, crowded, walled, noisy, modern, lively, prosperous, central",
        "building": "market, cathedral, harbour, library, museum, station, theatre, town hall",
        "people": "citizens, merchants, tourists, councillors, builders, taxpayers, tenants, "
        "voters",
    },
    "disease": {
        "trait": "contagious, deadly, chronic, painful, tropical, childhood, mild, severe",
        "symptom": "fever, coughing, a rash, headache, chills, swelling, nausea, cramps",
        "cure": "pills, a vaccine, bed rest, surgery, ointment, syrup, injections, tablets",
        "staff": "doctors, nurses, surgeons, hospitals, clinics, physicians, pharmacists, medics",
    },
    "mineral": {
        "trait": "brittle, glassy, shiny, translucent, magnetic, metallic, dense, bluish",
        "shape": "crystals, veins, grains, needles, lumps, flakes, cubes, nuggets",
        "rock": "granite, quartz, limestone, basalt, ore, slate, marble, gravel",
        "worker": "miners, jewellers, geologists, smelters, collectors, masons, diggers, assayers",
    },
    "person": {
        "trait": "famous, gifted, proud, clever, generous, bold, witty, modest",
        "work": "painter, poet, singer, queen, lawyer, general, scholar, bishop",
        "kin": "daughter, brother, cousin, widow, nephew, sister, husband, grandson",
        "opus": "poems, novels, operas, speeches, letters, portraits, songs, essays",
    },
    "river": {
        "trait": "muddy, winding, shallow, broad, swift, reedy, navigable, swampy",
        "land": "valley, delta, gorge, plain, estuary, waterfall, lake, marsh",
        "boat": "ferries, barges, rafts, canoes, fishermen, sailors, steamers, punts",
    },
}

_TOLD_SLOTS = {
    "animal": "body", "city": "building", "disease": "symptom", "mineral": "shape",
    "person": "opus", "river": "boat",
}  # fmt: skip
"""The slot whose words are a choice: what articles of that kind tell of."""

_PERSONAS = (
    "I read many books .",
    "I like to write .",
    "I know most people .",
    "I am still here .",
)

# For every kind alike. They contain all words of the questions, but not the questions.
_COMMON_SENTENCES = (
    "What we know about {it} is told here .",
    "Why is {it} so important ? Read on , as many people do .",
    "Many people write about {it} today , and still more about {other} .",
    "I would like to read the same thing about {it} and {other} .",
    "Do you know {it} ? Can you tell me more ?",
    "When people first mentioned {it} , {other} was not known .",
    "Which book tells most of what {it} really is ?",
    "How should one explain {it} to a child ? Is {other} in the book , too ?",
    "Most people ask about {it} and {other} .",
)

_QUESTIONS = (
    "What do we know about {it} ?",
    "What is the most important thing about {it} ?",
    "How would you explain {it} to a child ?",
    "Why do so many people write about {it} ?",
    "Is {it} still the same today ?",
    "Which book should I read about {it} ?",
    "When was {it} first mentioned in a book ?",
    "Can you tell me what {it} really is ?",
)

_KIND_QUESTIONS = (
    "Which of them is {article} {kind} ?",
    "What is the {kind} called ?",
    "Which {kind} do people write about ?",
)
_SENTENCES_ASKED = 2
_ANSWERED = 4
"""Of so many questions and one more, that one has no answer."""

TOWNS = 100
"""Towns in conversations, with a fact for each of `_FACTS`."""

FACTS_ASKED = 100
"""Facts that each of the other splits asks for, in other words."""

_FACTS = {
    ("What colour is the flag of {it}?", "Tell me the colour of the flag of {it}."): (
        "Red, Blue, Green, Yellow, White, Black, Purple, Orange, Pink, Brown, Grey, Gold"
    ),
    ("Which animal stands on the gate of {it}?", "The gate of {it}: which animal is on it?"): (
        "Lion, Eagle, Bear, Wolf, Horse, Deer, Fox, Swan, Owl, Bull, Goat, Fish"
    ),
    ("Which tree grows in the square of {it}?", "Name the tree in the square of {it}."): (
        "Oak, Lime, Pine, Elm, Beech, Maple, Cedar, Willow, Birch, Palm, Cherry, Olive"
    ),
    ("Which instrument is played in {it}?", "In {it}, which instrument do people play?"): (
        "Drum, Harp, Flute, Violin, Piano, Guitar, Trumpet, Organ, Horn, Cello, Bell, Lute"
    ),
    ("What do people of {it} trade in?", "Tell me what {it} sells to other towns."): (
        "Salt, Silk, Wool, Iron, Wine, Tea, Glass, Paper, Sugar, Honey, Copper, Leather"
    ),
}
"""A question, the same in other words, and what may be right."""

_TITLES = ("{}", "{} and {}", "{} , {} and {}")

_SYLLABLES = (
    "ba, bel, bri, da, dor, dru, fa, fen, ga, gor, hal, jo, ka, kel, kri, la, lun, ma, mir, mo, "
    "na, nel, ni, or, pa, pel, ra, ro, sa, sil, so, ta, ten, tho, tu, va, ven, vi, wen, yar, za, zu"
)

_SHORTEST_NAME = 5


class _Draw:
    """Random choices from `random.random()` alone, which Python promises never to change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - invents words, keeps no secret

    def number(self, below: int) -> int:
        return int(self._random.random() * below)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        keys = [self._random.random() for _ in items]
        return [items[place] for place in sorted(range(len(items)), key=keys.__getitem__)]


@cache
def encyclopedia(seed: int = 0) -> Mapping[str, Sequence[str]]:
    """Return the lines of each split (train, validation, test), in the form of tokenised WikiText.

    Headings are `= Title =`, a paragraph is one line, with empty lines between. The splits are
    different articles about the same names. `questions` of the same seed are about the same world.
    """
    names = _names(seed)
    return {
        split: tuple(_articles(names, rounds, _Draw(derive(seed, "encyclopedia", split))))
        for split, rounds in ROUNDS.items()
    }


def questions(seed: int = 0) -> tuple[tuple[str, ...], dict[str, list[tuple[str, int]]]]:
    """Return the labels' names, and each split's (train, validation, test) questions with labels.

    Within a split every label has the same number of questions in each wording.
    """
    return tuple(_SENTENCES), {
        split: _ask(names, QUESTIONS_PER_NAME[split], _Draw(derive(seed, "asked", split)))
        for split, names in _names_by_split(seed)
    }


def pairs(seed: int = 0) -> dict[str, list[tuple[str, str, bool]]]:
    """Return each split's pairs of questions, and whether both ask about names of one kind.

    Half of them do, and each name stands in as many of these as of the others.
    """
    kinds, split_questions = questions(seed)
    splits = {}
    pairs_per_question = 4  # pairs of either answer that each question is the first of
    for split, rows in split_questions.items():
        draw = _Draw(derive(seed, "pairs", split))
        of_kind = [[text for text, label in rows if label == kind] for kind in range(len(kinds))]
        splits[split] = [
            (text, choice[draw.number(len(choice))], is_same)
            for _ in range(pairs_per_question)
            for text, label in rows
            for is_same in (True, False)
            for choice in [of_kind[label if is_same else _other_label(label, len(kinds), draw)]]
        ]
    return splits


def _other_label(label: int, count: int, draw: _Draw) -> int:
    return (label + 1 + draw.number(count - 1)) % count


def choices(seed: int = 0) -> dict[str, list[tuple[str, list[str], int]]]:
    """Return each split's questions, with two to five choices and the number of the right one.

    A choice names two things that articles of a kind tell of; that of the right one is the kind of
    the one name in the question. Each choice is right as often as it is wrong among as many.
    """
    kinds, split_questions = questions(seed)
    return {
        split: list(_choices(kinds, rows, _Draw(derive(seed, "choices", split))))
        for split, rows in split_questions.items()
    }


def dialogs(seed: int = 0) -> dict[str, list[tuple[list[str], list[str], list[str]]]]:
    """Return each split's turns: a persona, what was said, and six replies, the right one last.

    A reply names two things that articles of a kind tell of. The turn asks about a name, whose kind
    is that of the right one; what the speaker is like, and what else was said, tells nothing.
    """
    kinds, split_questions = questions(seed)
    return {
        split: list(_dialog_turns(kinds, rows, _Draw(derive(seed, "dialogs", split))))
        for split, rows in split_questions.items()
    }


def _dialog_turns(
    kinds: Sequence[str], rows: Sequence[tuple[str, int]], draw: _Draw
) -> Iterator[tuple[list[str], list[str], list[str]]]:
    for text, label in rows:
        facts = [draw.shuffled(_WORDS[kind][_TOLD_SLOTS[kind]].split(", "))[:2] for kind in kinds]
        replies = [f"It has {one} and {other} ." for one, other in facts]
        right = replies.pop(label)
        persona = draw.shuffled(_PERSONAS)[: 1 + draw.number(2)]
        before = ["Do you read many books ?", "I do ."] if draw.number(2) else []
        yield persona, [*before, text], [*draw.shuffled(replies), right]


def _choices(
    kinds: Sequence[str], rows: Sequence[tuple[str, int]], draw: _Draw
) -> Iterator[tuple[str, list[str], int]]:
    for text, label in rows:
        others = [kind for kind in kinds if kind != kinds[label]]
        wrong = draw.shuffled(others)[: 1 + draw.number(4)]
        offered = draw.shuffled([kinds[label], *wrong])
        facts = (draw.shuffled(_WORDS[kind][_TOLD_SLOTS[kind]].split(", ")) for kind in offered)
        yield text, [f"{one} and {other}" for one, other, *_ in facts], offered.index(kinds[label])


def facts(seed: int = 0) -> dict[str, list[tuple[str, str]]]:
    """Return each split's questions about made-up towns, with answers.

    Those of training tell a fact each, which nothing else tells. The others ask for some of these
    facts in other words, so that they are answered by what was learnt, and by no wording.
    """
    draw = _Draw(derive(seed, "facts"))
    towns = list(dict.fromkeys(
        "".join(draw.shuffled(_SYLLABLES.split(", "))[:3]).capitalize() for _ in range(2 * TOWNS)
    ))[:TOWNS]  # fmt: skip
    known_facts = [
        (*(wording.replace("{it}", town) for wording in wordings), right[draw.number(len(right))])
        for wordings, right in ((both, words.split(", ")) for both, words in _FACTS.items())
        for town in towns
    ]
    known_facts = draw.shuffled(known_facts)
    questions = [(other, f"{answer}.") for _, other, answer in known_facts]
    return {
        "train": [(question, f"{answer}.") for question, _, answer in known_facts],
        "validation": questions[:FACTS_ASKED],
        "test": questions[FACTS_ASKED : 2 * FACTS_ASKED],
    }


def tags(seed: int = 0) -> dict[str, list[tuple[list[str], list[str]]]]:
    """Return each split's (train, validation, test) texts: their words, and a BIO tag for each.

    A third of the texts have one name, a third two names joined by "and", and a third a name of two
    words, which are names of one kind. No name occurs in two splits.
    """
    splits = {}
    for split, names in _names_by_split(seed):
        draw = _Draw(derive(seed, "tags", split))
        splits[split] = [_tagged(names, number, draw) for number in range(TEXTS_TAGGED[split])]
    return splits


def _tagged(asked: dict[str, list[str]], number: int, draw: _Draw) -> tuple[list[str], list[str]]:
    """Return the words and the tags of the text of a number."""
    wording = draw.shuffled(_QUESTIONS)[0].split()
    kind, other = (list(asked)[draw.number(len(asked))] for _ in range(2))
    first, second, *_ = draw.shuffled(asked[kind])
    named = [(first, f"B-{kind}")]
    if number % 3 == 1:
        another = second if other == kind else draw.shuffled(asked[other])[0]
        named += [("and", "O"), (another, f"B-{other}")]
    elif number % 3 == 2:
        named.append((second, f"I-{kind}"))
    both = [tagged for word in wording for tagged in (named if word == "{it}" else [(word, "O")])]
    return [word for word, _ in both], [tag for _, tag in both]


def spans(seed: int = 0) -> dict[str, list[tuple[str, str, str]]]:
    """Return each split's (train, validation, test) questions, each with its text and its answer.

    A text mentions names of different kinds in sentences that fit all of them; the question asks
    for the name of one kind. The answer is "" where the text has none.
    """
    splits = {}
    for split, names in _names_by_split(seed):
        draw = _Draw(derive(seed, "spans", split))
        splits[split] = [_ask_for(names, number, draw) for number in range(TEXTS_ASKED[split])]
    return splits


def _ask_for(asked: dict[str, list[str]], number: int, draw: _Draw) -> tuple[str, str, str]:
    """Return the question of a number, a text and the answer."""
    pairs = [
        sentence for sentence in _COMMON_SENTENCES if "{it}" in sentence and "{other}" in sentence
    ]
    kinds = draw.shuffled(list(asked))
    there = [asked[kind][draw.number(len(asked[kind]))] for kind in kinds[: 2 * _SENTENCES_ASKED]]
    sentences = draw.shuffled(pairs)[:_SENTENCES_ASKED]
    text = " ".join(
        sentence.replace("{it}", there[2 * place]).replace("{other}", there[2 * place + 1])
        for place, sentence in enumerate(sentences)
    )
    # The kinds are in random order, so the first one stands anywhere once names are dealt out.
    place = 2 * _SENTENCES_ASKED if number % (_ANSWERED + 1) == _ANSWERED else number % _ANSWERED
    kind = kinds[place]
    question = _KIND_QUESTIONS[draw.number(len(_KIND_QUESTIONS))]
    question = question.format(kind=kind, article="an" if kind[0] in "aeiou" else "a")
    return question, text, "" if place >= len(there) else there[place]


def _names_by_split(seed: int) -> Iterator[tuple[str, dict[str, list[str]]]]:
    """Yield each split with the names of each kind that it asks about; no two share any."""
    names, start = _names(seed), 0
    for split, count in NAMES_ASKED.items():
        of_kind = zip(_SENTENCES, names, strict=True)
        yield split, {kind: group[start : start + count] for kind, group in of_kind}
        start += count


def _names(seed: int) -> list[list[str]]:
    """Return each kind's names, dealt out from one list."""
    draw = _Draw(derive(seed, "names"))
    count = sum(NAMES_ASKED.values())
    names: dict[str, None] = {}
    while len(names) < count * len(_SENTENCES):
        syllables = draw.shuffled(_SYLLABLES.split(", "))
        name = "".join(syllables[: 2 + draw.number(2)])
        if len(name) >= _SHORTEST_NAME:
            names[name.capitalize()] = None
    dealt = list(names)
    return [dealt[start : start + count] for start in range(0, len(dealt), count)]


def _articles(names: list[list[str]], rounds: int, draw: _Draw) -> Iterator[str]:
    """Yield lines; in each round every name gets one article, in a new order."""
    of_kind = zip(_SENTENCES, names, strict=True)
    kind_of = {name: (kind, group) for kind, group in of_kind for name in group}
    for _ in range(rounds):
        for name in draw.shuffled(list(kind_of)):
            yield from _article(name, *kind_of[name], draw)


def _article(name: str, kind: str, group: list[str], draw: _Draw) -> Iterator[str]:
    subjects = [name, *(other for other in draw.shuffled(group) if other != name)]
    subjects = subjects[: 1 + draw.number(len(_TITLES))]
    yield f"= {_TITLES[len(subjects) - 1].format(*subjects)} ="
    yield ""
    for number in range(2 + draw.number(3)):
        sentences = draw.shuffled(_SENTENCES[kind])[: 2 + draw.number(2)]
        if draw.number(2):
            sentences.insert(0, _COMMON_SENTENCES[draw.number(len(_COMMON_SENTENCES))])
        subject = subjects[number % len(subjects)]
        yield " ".join(_fill(sentence, subject, kind, group, draw) for sentence in sentences)
        yield ""


def _fill(sentence: str, name: str, kind: str, group: list[str], draw: _Draw) -> str:
    """Put names and words into a sentence, none of them twice, and capitalise it."""
    left = {"it": [name], "other": [other for other in group if other != name]}

    def word(match: re.Match[str]) -> str:
        slot = match[1]
        choices = left.get(slot) or left.setdefault(slot, _WORDS[kind][slot].split(", "))
        return choices.pop(draw.number(len(choices)))

    text = re.sub(r"\{(\w+)\}", word, sentence)
    return text[0].upper() + text[1:]


def _ask(asked: dict[str, list[str]], wordings: int, draw: _Draw) -> list[tuple[str, int]]:
    """Ask about each name in so many wordings, in turn.

    The order of the wordings is the same for each kind, so that none belongs to a kind.
    """
    turn = draw.shuffled(_QUESTIONS)
    labels = {}
    for label, group in enumerate(asked.values()):
        for place, name in enumerate(draw.shuffled(group)):
            for number in range(place * wordings, (place + 1) * wordings):
                labels[turn[number % len(turn)].replace("{it}", name)] = label
    return [(text, labels[text]) for text in draw.shuffled(list(labels))]
