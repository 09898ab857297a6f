"""The rules for safety data sheets, over sheets of many layouts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Paragraph, SimpleDocTemplate, Table
from samples import at_most

from mcp_mirror.demo.documents import read_text
from mcp_mirror.demo.sds import extract
from mcp_mirror.demo.sds_fields import CAS_SHAPE, is_cas_number, is_formula, read_fields, tidy_concentration

SHEETS = sorted((Path(__file__).parent / "sheets").glob("*.txt"))


def extracted(content: str) -> Any:
    return json.loads(json.dumps(asdict(extract(content))))


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda path: path.stem)
def test_a_sheet_gives_its_product_and_ingredients(sheet: Path) -> None:
    expected = json.loads(sheet.with_suffix(".json").read_text(encoding="utf-8"))
    assert extracted(sheet.read_text(encoding="utf-8")) == expected


def test_a_printed_table_of_another_column_order_is_read_through_its_pdf(tmp_path: Path) -> None:
    body = getSampleStyleSheet()["BodyText"]
    rows = [
        ["CAS-No.", "EC-No.", "Substance name", "Formula", "Content"],
        ["7681-52-9", "231-668-3", "Sodium hypochlorite, solution", "NaClO", "5 - <10%"],
        ["1310-73-2", "215-185-5", "Sodium hydroxide", "NaOH", "0,5 - 2 %"],
        ["1643-20-5", "216-700-6", "Dodecyldimethylamine oxide, also named lauramine oxide", "C14H31NO", "≤ 3 %"],
    ]
    story = [
        Paragraph("SAFETY DATA SHEET", body),
        Paragraph("Section 1. Product and company identification", body),
        Paragraph("Trade name: Whitecliff Mould Remover", body),
        Paragraph("Section 2. Composition / information on ingredients", body),
        Table([[Paragraph(cell, body) for cell in row] for row in rows], colWidths=[70, 70, 150, 80, 80]),
        Paragraph("Section 3. Hazards identification", body),
        Paragraph("Chlorine (CAS 7782-50-5) is set free by acids.", body),
    ]
    path = tmp_path / "table.pdf"
    SimpleDocTemplate(str(path), pagesize=A4).build(story)
    assert extracted(read_text(str(path))) == {
        "product_name": "Whitecliff Mould Remover",
        "ingredients": [
            {
                "name": "Sodium hypochlorite, solution",
                "cas_rn": "7681-52-9",
                "concentration": "5 - < 10 %",
                "formula": "NaClO",
            },
            {"name": "Sodium hydroxide", "cas_rn": "1310-73-2", "concentration": "0.5 - 2 %", "formula": "NaOH"},
            {
                "name": "Dodecyldimethylamine oxide, also named lauramine oxide",
                "cas_rn": "1643-20-5",
                "concentration": "≤ 3 %",
                "formula": "C14H31NO",
            },
        ],
    }


def test_lines_placed_on_two_pages_are_read_from_the_pdf(tmp_path: Path) -> None:
    path = tmp_path / "drawn.pdf"
    canvas = Canvas(str(path), pagesize=A4)
    pages = [
        [(60, "Safety Data Sheet"), (60, "1. Identification"), (60, "Product name   Ostrava Parts Cleaner")],
        [(60, "3. Composition/information on ingredients"), (60, "Chemical name"), (250, "CAS number"), (380, "%")],
    ]
    for page in pages:
        for line, (x, text) in enumerate(page):
            canvas.drawString(x, 780 - 20 * (line if x == 60 else 1), text)
        if page is pages[-1]:
            table = [("Tetrachloroethylene", "127-18-4", "70 - 80"), ("n-Heptane", "142-82-5", "20 - 30")]
            for row, cells in enumerate(table):
                for x, text in zip((60, 250, 380), cells, strict=True):
                    canvas.drawString(x, 720 - 20 * row, text)
            canvas.drawString(60, 640, "4. First-aid measures")
            canvas.drawString(60, 620, "Toluene 108-88-3 25 %")
        canvas.showPage()
    canvas.save()
    found = extract(read_text(str(path)))
    assert found.product_name == "Ostrava Parts Cleaner"
    assert [(i.name, i.cas_rn, i.concentration) for i in found.ingredients] == [
        ("Tetrachloroethylene", "127-18-4", "70 - 80 %"),
        ("n-Heptane", "142-82-5", "20 - 30 %"),
    ]


@pytest.mark.parametrize(
    "number", ["7732-18-5", "64-17-5", "50-00-0", "1310-73-2", "9003-01-4", "68439-50-9", "10025-87-3"]
)
def test_real_cas_numbers_verify(number: str) -> None:
    assert is_cas_number(number)


@pytest.mark.parametrize(
    "text", ["7732-18-4", "200-578-6", "01-2119457610-43", "603-002-00-5", "64-17-55", "", "0-00-0"]
)
def test_other_numbers_are_not_cas_numbers(text: str) -> None:
    assert not is_cas_number(text)


@given(st.integers(10, 9_999_999), st.integers(0, 99), st.integers(1, 9))
def test_one_check_digit_verifies_and_every_other_fails(first: int, second: int, wrong: int) -> None:
    digits = f"{first}{second:02d}"
    check = sum(weight * int(digit) for weight, digit in enumerate(reversed(digits), start=1)) % 10
    assert is_cas_number(f"{first}-{second:02d}-{check}")
    assert not is_cas_number(f"{first}-{second:02d}-{(check + wrong) % 10}")


@pytest.mark.parametrize(
    ("found", "tidied"),
    [
        ("10-30%", "10 - 30 %"),
        ("10 - 30 %", "10 - 30 %"),
        ("10% - 30%", "10 - 30 %"),
        (">= 50 - < 70 %", ">= 50 - < 70 %"),
        ("≥60-≤80", "≥ 60 - ≤ 80 %"),
        ("<1%", "< 1 %"),
        ("60-80% w/w", "60 - 80 % w/w"),
        ("60-80 % (w/w)", "60 - 80 % w/w"),
        ("2,5 to 10 %", "2.5 - 10 %"),
        ("10 - 30*", "10 - 30 %"),
        ("Up to 5 %", "up to 5 %"),
        ("max. 0,5", "max. 0.5 %"),
        ("<.1%", "< 0.1 %"),
        ("Balance", "balance"),
    ],
)
def test_a_concentration_is_tidied(found: str, tidied: str) -> None:
    assert tidy_concentration(found) == tidied


@pytest.mark.parametrize(
    "word", ["C2H6O", "C2H5OH", "H2O", "NaOH", "HCl", "KOH", "Ca(OH)2", "CuSO4·5H2O", "HCOOH", "TiO2", "(NH4)2SO4"]
)
def test_formulae_are_recognized(word: str) -> None:
    assert is_formula(word)


@pytest.mark.parametrize(
    "word", ["H225", "P210", "Water", "CAS", "ACID", "In", "C12", "PVC", "Tin", "No", "R36", "OSHA"]
)
def test_other_words_are_not_formulae(word: str) -> None:
    assert not is_formula(word)


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        (
            "Ethanol 64-17-5 200-578-6 10 - 20 %",
            [("name", "Ethanol"), ("cas", "64-17-5"), ("concentration", "10 - 20 %")],
        ),
        ("64-17-5 01-2119457610-43-XXXX", [("cas", "64-17-5")]),
        ("Ethanol 64-17-6", [("name", "Ethanol"), ("bad_cas", "64-17-6")]),
        ("Trade secret 1 - 5 %", [("name", "Trade secret"), ("concentration", "1 - 5 %")]),
        ("2-Butoxyethanol", [("name", "2-Butoxyethanol")]),
        (
            "Polysorbate 80 9005-65-6 1-5%",
            [("name", "Polysorbate 80"), ("cas", "9005-65-6"), ("concentration", "1 - 5 %")],
        ),
        ("Quartz (<10 microns) 14808-60-7", [("name", "Quartz (<10 microns)"), ("cas", "14808-60-7")]),
        (">= 10 %: Skin Irrit. 2, H315", []),
        ("Flam. Liq. 2, H225; Eye Irrit. 2, H319; STOT SE 3, H336", []),
    ],
)
def test_a_line_is_read_into_its_fields(line: str, fields: list[tuple[str, str]]) -> None:
    assert [tuple(field) for field in read_fields(line)] == fields


@pytest.mark.parametrize("content", ["", "\n\n", "no sheet at all", "SECTION 3: Composition\n", "Product name:"])
def test_missing_information_is_none(content: str) -> None:
    assert extracted(content) == {"product_name": None, "ingredients": []}


@at_most(200)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=80),
            st.sampled_from(
                [
                    "SECTION 3: Composition",
                    "Acetone",
                    "67-64-1",
                    "10 - 20 %",
                    "CAS-No.: 67-64-1",
                    "4. First aid",
                    "(",
                    "C3H6O",
                ]
            ),
        ),
        max_size=30,
    )
)
def test_found_cas_numbers_are_valid_and_in_the_text(lines: list[str]) -> None:
    content = "\n".join(lines)
    for ingredient in extract(content).ingredients:
        assert ingredient.name or ingredient.cas_rn
        if ingredient.cas_rn:
            assert is_cas_number(ingredient.cas_rn)
            assert CAS_SHAPE.search(content)


def test_a_line_without_end_is_read_in_bounded_time() -> None:
    content = "SECTION 3: Composition\n" + "67-64-1 acetone 10 % ( " * 50_000 + "\n" + "x" * 1_000_000
    assert extract(content).ingredients[0].cas_rn == "67-64-1"
