"""The section of the report's page that shows `token_lengths`: all runs in one table."""

from collections.abc import Sequence

from transfer_cli.reports.html.markup import PageColumn, joined, table
from transfer_cli.reports.sections import RunAnalysis, register_section

NAME = "token_lengths"


def render_lengths(analyses: Sequence[RunAnalysis]) -> object:
    """Return loss by length, a row for each run, and the pictures below it."""
    bins = {row[0]: None for analysis in analyses for row in analysis.content["table"]["rows"]}
    columns = [
        PageColumn("run"),
        *(PageColumn(f"{name} tokens, loss", is_number=True) for name in bins),
    ]
    rows = []
    for analysis in analyses:
        losses = {row[0]: f"{row[2]:.3f}" for row in analysis.content["table"]["rows"]}
        rows.append((f"{analysis.group}: {analysis.run}", *(losses.get(name, "") for name in bins)))
    pictures = [picture for analysis in analyses for picture in analysis.pictures.values()]
    return joined([table("Loss by length of the text", columns, rows), *pictures])


register_section(NAME, render_lengths)
