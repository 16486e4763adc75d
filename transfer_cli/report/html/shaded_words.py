"""The words of explained texts on a page: what speaks for an answer, what against it."""

from collections.abc import Mapping, Sequence
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.html.markup import Html, PageColumn, details, joined, table

_WORD = Html('<span class="word {kind}" style="--share:{share}" title="{title}">{word}</span>')
_LEGEND = Html(
    '<p class="note"><span class="word for" style="--share:1">a line below</span>: the word speaks '
    'for the answer; <span class="word against" style="--share:1">a line above</span>: against it. '
    "The stronger the colour and the thicker the line, the more, by comparison with the strongest "
    "word of the same line.</p>"
)
_TEXT = Html('<div class="card words"><h3>{heading}</h3>{lines}{numbers}</div>')
_LINE = Html("<p><small>{method}</small><br>{words}</p>")


def shaded_words(data: Mapping[str, Any]) -> Html:
    """Return texts with their words coloured, one line for each method.

    Args:
        data: `texts`, as `analysis.attributions` writes them.
    """
    return joined([_LEGEND, *map(_text, data["texts"])])


def _text(text: Mapping[str, Any]) -> Html:
    scores = text["scores"]
    heading = f"Example {text['example'] + 1:,}: {text['prediction']}"
    if text["label"] is not None:
        heading += f" (right: {text['label']})"
    if text["explained"] != text["prediction"]:
        heading += f", explained: {text['explained']}"
    names = map(_called, scores)
    rows = zip(text["words"], *(map(formats.number, found) for found in scores.values()),
               strict=True)  # fmt: skip
    residue = (
        f"Integrated gradients after {text['steps']} steps lack {formats.number(text['residue'])} "
        f"of a change of {formats.number(text['change'])}."
    )
    numbers = table(heading, ["word", *(PageColumn(name, is_number=True) for name in names)], rows)
    return _TEXT.format(
        heading=heading,
        lines=joined(_line(name, text["words"], found) for name, found in scores.items()),
        numbers=details("Numbers", joined([numbers, Html("<p>{}</p>").format(residue)]),
                        is_open=False),
    )  # fmt: skip


def _called(method: str) -> str:
    return {"gradient_input": "gradient times input"}.get(method, method.replace("_", " "))


def _line(method: str, words: Sequence[str], scores: Sequence[float]) -> Html:
    largest = max(map(abs, scores)) or 1.0
    shaded = (
        _WORD.format(
            kind="for" if score > 0 else "against" if score < 0 else "",
            share=f"{abs(score) / largest:.2f}",
            title=formats.number(score),
            word=word,
        )
        for word, score in zip(words, scores, strict=True)
    )
    return _LINE.format(method=_called(method), words=Html(" ").join(shaded))
