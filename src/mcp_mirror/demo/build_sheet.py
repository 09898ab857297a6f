"""Build the example safety data sheet: `python -m mcp_mirror.demo.build_sheet` (needs reportlab).

The sheet has the 16 sections of GHS. Product, company and telephone numbers are invented; the ingredients, their CAS
and EC numbers, formulae, hazard classes and limits are those of real substances. Two builds give the same bytes.
"""

from pathlib import Path
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle, getSampleStyleSheet
from reportlab.lib.units import mm
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table

SHEET = Path(__file__).parent / "data" / "safety_data_sheet.pdf"
PRODUCT = "Brightwell GC-40 Glass and Surface Cleaner"

Section = tuple[str, tuple[str, ...]]

INGREDIENTS = (
    ("Chemical name", "CAS No.", "EC No.", "Concentration", "Formula", "Classification (CLP)"),
    (
        "Propan-2-ol",
        "67-63-0",
        "200-661-7",
        "10 - 20 %",
        "C3H8O",
        "Flam. Liq. 2, H225; Eye Irrit. 2, H319; STOT SE 3, H336",
    ),
    (
        "2-Butoxyethanol",
        "111-76-2",
        "203-905-0",
        "3 - 5 %",
        "C6H14O2",
        "Acute Tox. 4, H302; Skin Irrit. 2, H315; Eye Irrit. 2, H319",
    ),
    (
        "Ammonia, aqueous solution",
        "1336-21-6",
        "215-647-6",
        "0.5 - 1 %",
        "NH4OH",
        "Skin Corr. 1B, H314; Aquatic Acute 1, H400",
    ),
)

BEFORE: tuple[Section, ...] = (
    (
        "SECTION 1: Identification of the substance/mixture and of the company/undertaking",
        (
            "1.1 Product identifier",
            f"Product name: {PRODUCT}",
            "Product code: GC-40",
            "1.2 Relevant identified uses of the substance or mixture and uses advised against",
            "Cleaning agent for glass and hard surfaces, for professional users. Not for use on food contact surfaces.",
            "1.3 Details of the supplier of the safety data sheet",
            "Tarnmoor Chemicals Ltd, 12 Example Wharf, Tarnmoor. Telephone: +44 1632 960 143. sds@tarnmoor.example",
            "1.4 Emergency telephone number",
            "+44 1632 960 199 (24 hours)",
        ),
    ),
    (
        "SECTION 2: Hazards identification",
        (
            "2.1 Classification of the substance or mixture",
            "Flammable liquids, Category 3 (H226). Serious eye irritation, Category 2 (H319).",
            "2.2 Label elements",
            "Signal word: Warning",
            "H226 Flammable liquid and vapour. H319 Causes serious eye irritation.",
            "P210 Keep away from heat, hot surfaces, sparks, open flames and other ignition sources. No smoking.",
            "P280 Wear protective gloves and eye protection.",
            "P305+P351+P338 IF IN EYES: Rinse cautiously with water for several minutes.",
            "2.3 Other hazards",
            "The mixture holds no substance assessed to be PBT or vPvB at 0.1 % or more.",
        ),
    ),
)

AFTER: tuple[Section, ...] = (
    (
        "SECTION 4: First aid measures",
        (
            "4.1 Description of first aid measures",
            "Inhalation: Move the person to fresh air. Get medical advice if breathing stays difficult.",
            "Skin contact: Take off soiled clothing and wash the skin with soap and water.",
            "Eye contact: Rinse with water for at least 15 minutes, holding the lids apart. Get medical advice.",
            "Ingestion: Rinse the mouth. Do not induce vomiting. Get medical advice.",
            "4.2 Most important symptoms and effects, both acute and delayed",
            "Redness and watering of the eyes; headache and drowsiness after breathing much vapour.",
        ),
    ),
    (
        "SECTION 5: Firefighting measures",
        (
            "Suitable media: alcohol-resistant foam, carbon dioxide, dry powder. Unsuitable: full water jet.",
            "Hazardous combustion products: carbon monoxide, carbon dioxide, oxides of nitrogen.",
            "Firefighters wear self-contained breathing apparatus. Cool closed containers with water spray.",
        ),
    ),
    (
        "SECTION 6: Accidental release measures",
        (
            "Remove sources of ignition, ventilate, and keep people without protection away.",
            "Keep the product out of drains and surface water.",
            "Take up with sand or another inert absorbent and dispose of it as section 13 says.",
        ),
    ),
    (
        "SECTION 7: Handling and storage",
        (
            "Use in well ventilated places. Avoid contact with the eyes. Take precautions against static discharge.",
            "Store in the closed original container at 5 to 30 degrees Celsius, away from oxidising agents and acids.",
        ),
    ),
    (
        "SECTION 8: Exposure controls/personal protection",
        (
            "8.1 Control parameters (EH40/2005 workplace exposure limits)",
            "Propan-2-ol (CAS 67-63-0): 400 ppm, 999 mg/m3 (8 h); 500 ppm, 1250 mg/m3 (15 min)",
            "2-Butoxyethanol (CAS 111-76-2): 25 ppm, 123 mg/m3 (8 h); 50 ppm, 246 mg/m3 (15 min)",
            "Ammonia (CAS 7664-41-7): 25 ppm, 18 mg/m3 (8 h); 35 ppm, 25 mg/m3 (15 min)",
            "8.2 Exposure controls",
            "Safety glasses with side shields; gloves of nitrile rubber, 0.4 mm, breakthrough time over 480 minutes.",
        ),
    ),
    (
        "SECTION 9: Physical and chemical properties",
        (
            "Physical state: liquid. Colour: pale blue. Odour: of alcohol and ammonia.",
            "pH: 10.2. Boiling point: 82 degrees Celsius. Flash point: 31 degrees Celsius, closed cup.",
            "Relative density: 0.97. Solubility in water: miscible. Vapour pressure: no data available.",
        ),
    ),
    (
        "SECTION 10: Stability and reactivity",
        (
            "Stable under the storage conditions of section 7. Reacts with strong oxidising agents and acids.",
            "Do not mix with bleach: sodium hypochlorite (CAS 7681-52-9) and ammonia form toxic chloramines.",
        ),
    ),
    (
        "SECTION 11: Toxicological information",
        (
            "Propan-2-ol (67-63-0): LD50 oral, rat, 5840 mg/kg; LD50 dermal, rabbit, 13900 mg/kg",
            "2-Butoxyethanol (111-76-2): LD50 oral, guinea pig, 1414 mg/kg",
            "The mixture irritates the eyes. It is not classified for skin irritation or sensitisation.",
        ),
    ),
    (
        "SECTION 12: Ecological information",
        (
            "Propan-2-ol and 2-butoxyethanol are readily biodegradable and do not accumulate in organisms.",
            "Ammonia is very toxic to fish; in use the product is diluted far below harmful levels.",
        ),
    ),
    (
        "SECTION 13: Disposal considerations",
        ("Dispose of product and containers under local rules. Waste code: 20 01 29*. Do not empty into drains.",),
    ),
    (
        "SECTION 14: Transport information",
        (
            "UN number: UN 1993. Proper shipping name: FLAMMABLE LIQUID, N.O.S. (propan-2-ol solution).",
            "Class: 3. Packing group: III. Tunnel code: D/E. Not a marine pollutant.",
        ),
    ),
    (
        "SECTION 15: Regulatory information",
        (
            "Regulation (EC) No 648/2004 on detergents: perfume none; preservatives none.",
            "No chemical safety assessment has been carried out for the mixture.",
        ),
    ),
    (
        "SECTION 16: Other information",
        (
            "H225 Highly flammable liquid and vapour. H302 Harmful if swallowed. H315 Causes skin irritation.",
            "H314 Causes severe skin burns and eye damage. H319 Causes serious eye irritation.",
            "H336 May cause drowsiness or dizziness. H400 Very toxic to aquatic life.",
            "This sheet describes an invented product and serves as an example alone.",
        ),
    ),
)


def print_footer(canvas: Canvas, document: SimpleDocTemplate) -> None:
    """Print product, revision and page number at the foot of a page."""
    canvas.setFont("Helvetica", 8)
    canvas.drawString(20 * mm, 12 * mm, f"{PRODUCT}   Revision date: 12.02.2025   Version 2.0   Page {document.page}")


def lay_out_section(section: Section, heading: ParagraphStyle, text: ParagraphStyle) -> list[Any]:
    """Return the heading and the paragraphs of a section."""
    title, paragraphs = section
    return [Spacer(1, 4 * mm), Paragraph(title, heading), *(Paragraph(line, text) for line in paragraphs)]


def lay_out_ingredients(heading: ParagraphStyle, text: ParagraphStyle) -> list[Any]:
    """Return section 3 with its table; long cells wrap."""
    cells = [[Paragraph(cell, text) for cell in row] for row in INGREDIENTS]
    table = Table(cells, colWidths=[31 * mm, 21 * mm, 22 * mm, 26 * mm, 20 * mm, 50 * mm], repeatRows=1)
    table.setStyle([("GRID", (0, 0), (-1, -1), 0.4, colors.grey), ("BACKGROUND", (0, 0), (-1, 0), colors.whitesmoke)])
    title = "SECTION 3: Composition/information on ingredients"
    after = "For the full text of the H-statements see section 16."
    opening = lay_out_section((title, ("3.2 Mixtures", "Aqueous solution of the following substances:")), heading, text)
    return [*opening, Spacer(1, 2 * mm), table, Spacer(1, 2 * mm), Paragraph(after, text)]


def build_sheet(path: Path) -> None:
    """Write the sheet to the path."""
    styles = getSampleStyleSheet()
    title, heading, text = styles["Title"], styles["Heading3"], styles["BodyText"]
    text.fontSize, text.leading = 9, 12
    story: list[Any] = [Paragraph("SAFETY DATA SHEET", title)]
    story.append(Paragraph("According to Regulation (EC) No 1907/2006 (REACH), Annex II", text))
    for section in BEFORE:
        story += lay_out_section(section, heading, text)
    story += lay_out_ingredients(heading, text)
    for section in AFTER:
        story += lay_out_section(section, heading, text)
    document = SimpleDocTemplate(str(path), pagesize=A4, title=f"Safety data sheet: {PRODUCT}", invariant=1)
    document.build(story, onFirstPage=print_footer, onLaterPages=print_footer)


def main() -> None:
    """Write the sheet beside the other data."""
    build_sheet(SHEET)


if __name__ == "__main__":
    main()
