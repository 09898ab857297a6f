"""Build the example safety data sheet of the demo: `python packaging/demo/build_sheet.py` (needs reportlab).

The text is in `safety_data_sheet.txt`: sections with a title, paragraphs, and rows of a table. The sheet has the 16
sections of GHS. Product, company and telephone numbers are invented; the ingredients, their CAS and EC numbers,
formulae, hazard classes and limits are those of real substances. Two builds give the same bytes.
"""

from collections.abc import Iterator
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle, getSampleStyleSheet
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table

TEXT = Path(__file__).with_name("safety_data_sheet.txt")
SHEET = Path(str(files("mcp_mirror.demo").joinpath("data/safety_data_sheet.pdf")))
PRODUCT = "Brightwell GC-40 Glass and Surface Cleaner"
_CELL = " | "
_WIDTHS = [31 * mm, 21 * mm, 22 * mm, 26 * mm, 20 * mm, 50 * mm]


def build_sheet(path: Path) -> None:
    """Write the sheet to the path."""
    styles = getSampleStyleSheet()
    title, heading, text = styles["Title"], styles["Heading3"], styles["BodyText"]
    text.fontSize, text.leading = 9, 12
    story: list[Any] = [Paragraph("SAFETY DATA SHEET", title)]
    story.append(Paragraph("According to Regulation (EC) No 1907/2006 (REACH), Annex II", text))
    for section in TEXT.read_text(encoding="utf-8").split("\n\n"):
        story += lay_out_section(section, heading, text)
    document = SimpleDocTemplate(str(path), pagesize=A4, title=f"Safety data sheet: {PRODUCT}", invariant=1)
    document.build(story, onFirstPage=print_footer, onLaterPages=print_footer)


def lay_out_section(section: str, heading: ParagraphStyle, text: ParagraphStyle) -> Iterator[Any]:
    """Yield the heading, the paragraphs and the table of a section; long cells wrap."""
    title, *lines = section.splitlines()
    yield from (Spacer(1, 4 * mm), Paragraph(title, heading))
    for is_table, group in groupby(lines, key=lambda line: _CELL in line):
        if is_table:
            cells = [[Paragraph(cell, text) for cell in row.split(_CELL)] for row in group]
            table = Table(cells, colWidths=_WIDTHS, repeatRows=1)
            grid = ("GRID", (0, 0), (-1, -1), 0.4, colors.grey)
            table.setStyle([grid, ("BACKGROUND", (0, 0), (-1, 0), colors.whitesmoke)])
            yield from (Spacer(1, 2 * mm), table, Spacer(1, 2 * mm))
        else:
            yield from (Paragraph(line, text) for line in group)


def print_footer(canvas: Canvas, document: SimpleDocTemplate) -> None:
    """Print product, revision and page number at the foot of a page."""
    canvas.setFont("Helvetica", 8)
    canvas.drawString(20 * mm, 12 * mm, f"{PRODUCT}   Revision date: 12.02.2025   Version 2.0   Page {document.page}")


if __name__ == "__main__":
    build_sheet(SHEET)
