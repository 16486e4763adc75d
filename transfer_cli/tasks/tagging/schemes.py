"""How tags mark entities, which are runs of words: schemes, their recognition, and BIO.

======  ============================================================================
scheme  tags of a word in an entity of type X
======  ============================================================================
bio     B-X for the first one, I-X for the others
iob1    I-X; B-X for the first one only right behind another entity of the same type
bioes   B-X for the first, I-X for those between, E-X for the last; S-X for a single one; also with
        the letters of BILOU (L, U) and BMEWO (M, W)
io      X itself: words with one tag behind each other are one entity
none    tags mark no entities, as parts of speech
======  ============================================================================

A word in no entity has the tag O. Models have the tags of BIO.

Legend: W words, C tags.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

Scheme = Literal["bio", "iob1", "bioes", "io", "none"]

SCHEMES = ("auto", *get_args(Scheme))
OUTSIDE = "O"

_NO_MARKS = (
    "its tags have no B- or I-, so that no F1 of entities is measured; with data.scheme=io equal "
    "tags behind each other are an entity"
)
_NO_TYPES = "its tags name no type, as B-NAME does, so that no F1 of entities is measured"
_TO_BIOES = {"L": "E", "U": "S", "M": "I", "W": "S"}


class Entity(NamedTuple):
    """A run of words: its type, its first word and the one after its last."""

    type: str
    first: int
    past: int


def marks_entity(tag: str, marks: str = "BIES") -> bool:
    """Return whether a tag is one of `marks`, with a type."""
    return tag[1:2] == "-" and tag[0] in marks and len(tag) > 2


def split_tag(tag: str) -> tuple[str, str]:
    """Return the mark and the type of a tag, `B` and `PER` of `B-PER`; of another `O` and none."""
    return (tag[0], tag[2:]) if marks_entity(tag) else (OUTSIDE, "")


def entities(tags: Sequence[str], *, strict: bool = False) -> list[Entity]:
    """Return the entities that BIO tags mark, by the rules of conlleval.

    An entity begins at B, and at an I behind O or another type; it ends before O, before B and
    before another type.

    Args:
        strict: Leave out those that do not begin with B, as seqeval's strict mode does.
    """
    runs, first, before, kind_before = list[Entity](), 0, OUTSIDE, ""
    for at, (mark, kind) in enumerate([*map(split_tag, tags), (OUTSIDE, "")]):
        goes_on = mark == "I" and before != OUTSIDE and kind == kind_before
        if not goes_on:
            if before != OUTSIDE and not (strict and not tags[first].startswith("B-")):
                runs.append(Entity(kind_before, first, at))
            first = at
        before, kind_before = mark, kind
    return runs


def detect_scheme(sentences: Iterable[Sequence[str]]) -> tuple[Scheme, str]:
    """Return the scheme of the tags of sentences, and what to warn of, or "".

    Tags without B-, I-, E- or S- mark nothing. E-, S-, L- or U- is BIOES. Where more than half of
    the entities begin with I-, it is IOB1, as in the files of CoNLL-2003; else BIO.
    """
    begin_with_i = num_entities = 0
    marks, plain = set[str](), set[str]()
    for tags in sentences:
        marks |= {tag[0] for tag in tags if marks_entity(tag, "BIESLU")}
        plain |= {*tags}
        for entity in entities(tags):
            num_entities += 1
            begin_with_i += tags[entity.first].startswith("I-")
    if not marks:
        warning = _NO_TYPES if {"B", OUTSIDE} <= plain <= {*"BIESLUO"} else _NO_MARKS
        return "none", warning if OUTSIDE in plain and len(plain) > 1 else ""
    if marks & {"E", "S", "L", "U"}:
        return "bioes", ""
    if 2 * begin_with_i > num_entities:
        return "iob1", ""
    if begin_with_i:
        count = f"{begin_with_i:,} of {num_entities:,}"
        return "bio", f"{count} entities begin with I- and not with B-; they are taken for BIO"
    return "bio", ""


def find_fault(tags: Sequence[str], scheme: Scheme) -> tuple[int, str] | None:
    """Return the first word whose tag its scheme does not have, and what is wrong, or None."""
    if scheme in ("none", "io"):
        return None
    bioes = _as_bioes(tags, scheme)
    marks = "BIES" if scheme == "bioes" else "BI"
    for at, tag in enumerate(bioes):
        if tag != OUTSIDE and not marks_entity(tag, marks):
            known = ", ".join(f"{mark}-TYPE" for mark in marks)
            return at, f"the tag {tag!r} is neither O nor one of {known}"
    if scheme != "bioes":
        return None
    for at, (one, other) in enumerate(pairwise([*bioes, OUTSIDE])):
        is_open, follows = marks_entity(one, "BI"), marks_entity(other, "IE")
        if is_open != follows or (is_open and split_tag(one)[1] != split_tag(other)[1]):
            written = [*tags, OUTSIDE]
            return at, f"{written[at]} is followed by {written[at + 1]}, as no entity of BIOES is"
    return None


def to_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Return tags of a scheme as BIO."""
    if scheme == "io":
        kinds = zip([OUTSIDE, *tags], tags, strict=False)
        return [
            tag if tag == OUTSIDE else f"{'I' if tag == one else 'B'}-{tag}" for one, tag in kinds
        ]
    if scheme == "bioes":
        marks, tags = {"E": "I", "S": "B"}, _as_bioes(tags, scheme)
        return [tag if tag == OUTSIDE else f"{marks.get(tag[0], tag[0])}{tag[1:]}" for tag in tags]
    if scheme != "iob1":
        return list(tags)
    bio, before = list[str](), OUTSIDE
    for tag in tags:
        opens = marks_entity(tag, "I") and split_tag(before)[1] != split_tag(tag)[1]
        bio.append(f"B{tag[1:]}" if opens else tag)
        before = tag
    return bio


def _as_bioes(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Return tags with the letters of BIOES where that is their scheme."""
    if scheme != "bioes":
        return list(tags)
    return [f"{_TO_BIOES[tag[0]]}{tag[1:]}" if marks_entity(tag, "LUMW") else tag for tag in tags]


def bio_tags(runs: Iterable[Entity], words: int) -> list[str]:
    """Return the BIO tags of so many words with entities that do not overlap."""
    tags = [OUTSIDE] * words
    for kind, first, past in runs:
        tags[first:past] = [f"B-{kind}", *[f"I-{kind}"] * (past - first - 1)]
    return tags


def labels_of(tags: Iterable[str], scheme: Scheme) -> tuple[str, ...]:
    """Return the labels of a model for these tags, sorted: O, then by type, B before I.

    A type whose entities never begin with B gets that tag, too: a valid sequence needs it.
    """
    labels = set(tags)
    if scheme == "none":
        return tuple(sorted(labels))
    labels |= {f"B{tag[1:]}" for tag in labels if tag != OUTSIDE} | {OUTSIDE}
    return tuple(sorted(labels, key=lambda tag: (tag != OUTSIDE, split_tag(tag)[1], tag)))


Floats = npt.NDArray[np.float64]


def allowed_transitions(labels: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return whether the tag of a column may follow that of a row, `[C + 1, C]`.

    I-X may follow B-X and I-X alone. The last row is the beginning of a text.
    """
    before = [*labels, OUTSIDE]
    return np.array(
        [
            [
                not marks_entity(tag, "I") or (one != OUTSIDE and one[1:] == tag[1:])
                for tag in labels
            ]
            for one in before
        ]
    )


def viterbi(log_shares_WC: Floats, allowed_CC: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the sequence with the highest sum among those that are allowed, `[W]`.

    Args:
        log_shares_WC: The log-probability of each tag of each word.
        allowed_CC: See `allowed_transitions`.
    """
    best_W: npt.NDArray[np.int64] = log_shares_WC.argmax(1)
    if not len(best_W) or allowed_CC[np.append(-1, best_W[:-1]), best_W].all():
        return best_W  # no other has a higher sum
    barred_CC = np.where(allowed_CC, 0.0, -np.inf)
    score_C = log_shares_WC[0] + barred_CC[-1]
    came_from = list[npt.NDArray[np.int64]]()
    for log_shares_C in log_shares_WC[1:]:
        paths_CC = score_C[:, None] + barred_CC[:-1]
        came_from.append(paths_CC.argmax(0))
        score_C = paths_CC.max(0) + log_shares_C
    best_W[-1] = score_C.argmax()
    for at in range(len(best_W) - 2, -1, -1):
        best_W[at] = came_from[at][best_W[at + 1]]
    return best_W
