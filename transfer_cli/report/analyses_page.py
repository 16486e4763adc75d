"""What analyses found about a model, as one HTML page that needs nothing but itself."""

from collections.abc import Mapping

from transfer_cli.report.finding import Finding
from transfer_cli.report.html.analysis_sections import picture, shown, title_of
from transfer_cli.report.page import Section, asset, document


def analyses_page(
    title: str, findings: Mapping[str, Finding], pictures: Mapping[str, Mapping[str, bytes]]
) -> str:
    """Return the page; texts of people and models are shown as texts.

    Args:
        title: What the model is called.
        findings: By the names of the analyses.
        pictures: Of these, the PNGs by what each shows.
    """
    sections = []
    for name, finding in findings.items():
        embedded = [picture(*each) for each in pictures.get(name, {}).items()]
        sections.append(Section(name, title_of(name, finding), shown(finding, embedded)))
    views = {finding.view.kind for finding in findings.values() if finding.view is not None}
    scripts = [asset("attention.js")] if "attention" in views else []
    return document("analyses.html", title, scripts, sections=sections)
