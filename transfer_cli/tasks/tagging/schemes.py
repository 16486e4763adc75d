"""How tags mark entities: schemes are recognised, converted to BIO, and read as entities.

=======  =====================================================================================
scheme   marks
=======  =====================================================================================
`bio`    B- begins an entity, I- goes on with it, O is outside (IOB2)
`iob1`   I- is in an entity; B- begins one only right behind another of its type (Ramshaw and
         Marcus 1995; CoNLL-2003's own files)
`bioes`  bio, with E- at the end and S- for a single word; or L- and U-, as in BILOU
`none`   tags are no entities: parts of speech
=======  =====================================================================================
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, get_args

Scheme = Literal["bio", "iob1", "bioes", "none"]
SCHEMES = get_args(Scheme)

OUTSIDE = "O"

_MARKED = re.compile(r"([BIESLU])-(.+)")
_PLAIN = {"E": "I", "L": "I", "S": "B", "U": "B"}


class Entity(NamedTuple):
    """An entity: its type, its first word, the one after its last."""

    type: str
    start: int
    end: int


def split_tag(tag: str) -> tuple[str, str]:
    """Return the mark of a tag and its type: `B-PER` is B and PER, `O` is O and nothing."""
    found = _MARKED.fullmatch(tag)
    return (found[1], found[2]) if found else (OUTSIDE, "")


def recognised(sentences: Iterable[Sequence[str]]) -> tuple[Scheme, int, int]:
    """Return the scheme of tags, how many chunks begin with I-, and how many there are.

    Of chunks of which more than half begin with I- it is `iob1`; of fewer these are mistakes.
    """
    marks, begun, chunks = set[str](), 0, 0
    for tags in sentences:
        before = (OUTSIDE, "")
        for tag in tags:
            mark, kind = split_tag(tag)
            if mark == OUTSIDE and tag != OUTSIDE:
                return "none", 0, 0
            if mark in "BSU" or (mark == "I" and kind != before[1]):
                chunks += 1
                begun += mark == "I"
            marks.add(mark)
            before = (mark, kind)
    if marks & {*_PLAIN}:
        return "bioes", begun, chunks
    if marks <= {OUTSIDE}:
        return "none", 0, 0
    return ("iob1" if 2 * begun > chunks else "bio"), begun, chunks


def to_bio(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """Return the tags of a sentence, from `scheme` to `bio`."""
    if scheme in ("bio", "none"):
        return tuple(tags)
    found, before = [], ""
    for tag in tags:
        mark, kind = split_tag(tag)
        mark = _PLAIN.get(mark, mark)
        if scheme == "iob1" and mark == "I" and kind != before:
            mark = "B"
        found.append(tag if mark == OUTSIDE else f"{mark}-{kind}")
        before = kind
    return tuple(found)


def sorted_tags(found: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return the tags that a model knows, in the order of their numbers.

    Of entities O comes first, then each type with B- before I-; who has I- has B-, too.
    """
    tags = sorted(set(found))
    if scheme == "none":
        return tuple(tags)
    marks_of: dict[str, set[str]] = {}
    for mark, kind in map(split_tag, tags):
        if mark != OUTSIDE:
            marks_of.setdefault(kind, {"B"}).add(mark)
    return (
        OUTSIDE,
        *(f"{mark}-{kind}" for kind in sorted(marks_of) for mark in sorted(marks_of[kind])),
    )


def has_entities(labels: Sequence[str]) -> bool:
    """Return whether tags mark entities."""
    return any(tag != OUTSIDE for tag in labels) and all(
        tag == OUTSIDE or split_tag(tag)[0] in ("B", "I") for tag in labels
    )


def follows(label: str, before: str | None) -> bool:
    """Return whether a tag may stand behind another one, or (None) first: I-X needs B-X or I-X."""
    mark, kind = split_tag(label)
    return mark != "I" or (before is not None and split_tag(before)[1] == kind)


def entities(tags: Sequence[str], *, strict: bool = False) -> list[Entity]:
    """Return the entities of a sentence by the rules of CoNLL's script (Tjong Kim Sang 2000).

    There an I- without a B- before it begins an entity; `strict` leaves such ones out.
    """
    found: list[Entity] = []
    open_type, start = "", 0
    for place, tag in enumerate([*tags, OUTSIDE]):
        mark, kind = split_tag(tag)
        if mark == "I" and kind == open_type:
            continue
        if open_type:
            found.append(Entity(open_type, start, place))
        open_type, start = ("" if strict and mark == "I" else kind), place
    return found


class EntityCounts:
    """Counts of entities over sentences, by type: right ones, said ones, given ones."""

    def __init__(self) -> None:
        self.right: Counter[str] = Counter()
        self.said: Counter[str] = Counter()
        self.given: Counter[str] = Counter()

    def add(self, given: Sequence[Entity], said: Sequence[Entity]) -> None:
        """Count a sentence."""
        self.right.update(each.type for each in {*given} & {*said})
        self.said.update(each.type for each in said)
        self.given.update(each.type for each in given)

    def scores(self, kind: str | None = None) -> tuple[float, float, float]:
        """Return precision, recall and F1, of all types or of one; what is undefined is 0."""
        right, said, given = (
            each.total() if kind is None else each[kind]
            for each in (self.right, self.said, self.given)
        )
        precision, recall = right / said if said else 0.0, right / given if given else 0.0
        return precision, recall, 2 * right / (said + given) if right else 0.0
