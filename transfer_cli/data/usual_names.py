"""What people call columns of texts and of labels, the most usual first."""

import re
from collections.abc import Sequence

USUAL_TEXTS = (
    "text", "texts", "sentence", "review", "comment", "content", "body", "message", "question",
    "query", "tweet", "utterance", "post", "document", "article", "description", "phrase",
    "abstract", "summary", "headline", "subject", "title", "input",
)  # fmt: skip
USUAL_LABELS = (
    "label", "labels", "class", "classes", "category", "target", "sentiment", "intent", "topic",
    "stars", "star", "rating", "polarity", "emotion", "score", "grade", "tag", "genre", "type",
    "kind", "spam", "toxic", "y",
)  # fmt: skip

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


def is_usual_name(name: str) -> bool:
    """Return whether people call columns of texts or labels so, in one word."""
    return max(usual_rank(name, USUAL_TEXTS), usual_rank(name, USUAL_LABELS)) > 1


def usual_rank(name: str, known: Sequence[str]) -> int:
    """Return 0 for a name that is not known, 1 if it ends with a known word, more if it is one."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] not in known:
        return 0
    return 1 if len(words) > 1 else 1 + len(known) - known.index(words[0])
