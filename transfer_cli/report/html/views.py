"""What only a page can show of an analysis: where heads look, and words with colours."""

from collections.abc import Mapping, Sequence
from typing import Any

from transfer_cli.report import formats
from transfer_cli.report.html.markup import Html, PageColumn, details, joined, render, table
from transfer_cli.report.results_table import Cell


def attention_viewer(data: Mapping[str, Any]) -> Html:
    """Return the viewer of what `analysis.attention.attention_view` gives to it."""
    numbers = _numbers(data["heads"], data["kinds"])
    return render(
        "attention.html",
        data=data,
        numbers=details("Numbers of all heads", numbers, is_open=False),
    )


def _numbers(heads: Sequence[Mapping[str, Any]], kinds: Mapping[str, str]) -> Html:
    """Return the summaries of all heads as a table that can be sorted."""
    measures = [name for name in heads[0] if name not in ("block", "head")]
    columns = [PageColumn(kinds.get(name, name), is_number=True) for name in measures]
    rows = [
        [
            Cell(f"{each['block']}.{each['head']}", 1000 * each["block"] + each["head"]),
            *(_cell(each[name], is_share=name in kinds) for name in measures),
        ]
        for each in heads
    ]
    return table("Heads", [PageColumn("head"), *columns], rows, [False] * len(rows))


def _cell(value: float | None, *, is_share: bool) -> Cell:
    if value is None:
        return Cell()
    return Cell(f"{100 * value:.1f} %" if is_share else f"{value:.2f}", value)


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
