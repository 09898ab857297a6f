"""The text of PDF files, and the example sheet."""

from pathlib import Path

import pytest
from build_sheet import PRODUCT, SHEET, build_sheet
from mcp.server.mcpserver.exceptions import ToolError
from pypdf import PdfReader, PdfWriter

from mcp_mirror.demo.documents import read_text
from mcp_mirror.demo.sds import Ingredient, extract


def test_the_shipped_sheet_is_found_by_its_bare_name_from_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    text = read_text("safety_data_sheet.pdf")
    assert all(f"SECTION {number}:" in text for number in range(1, 17))
    assert len(PdfReader(SHEET).pages) > 1


def test_the_shipped_sheet_gives_its_product_and_three_ingredients() -> None:
    found = extract(read_text("safety_data_sheet.pdf"))
    assert found.product_name == PRODUCT
    assert found.ingredients == (
        Ingredient("Propan-2-ol", "67-63-0", "10 - 20 %", "C3H8O"),
        Ingredient("2-Butoxyethanol", "111-76-2", "3 - 5 %", "C6H14O2"),
        Ingredient("Ammonia, aqueous solution", "1336-21-6", "0.5 - 1 %", "NH4OH"),
    )


def test_the_sheet_is_built_reproducibly_with_the_shipped_text(tmp_path: Path) -> None:
    for name in ("first.pdf", "second.pdf"):
        build_sheet(tmp_path / name)
    assert (tmp_path / "first.pdf").read_bytes() == (tmp_path / "second.pdf").read_bytes()
    assert read_text(str(tmp_path / "first.pdf")) == read_text("safety_data_sheet.pdf")


def test_a_file_beside_the_caller_goes_before_the_shipped_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "safety_data_sheet.pdf").write_text("not this one")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ToolError, match="is not a PDF"):
        read_text("safety_data_sheet.pdf")


def save_pdf(path: Path, password: str = "") -> Path:
    writer = PdfWriter()
    writer.add_blank_page(100, 100)
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)
    return path


def test_an_unusable_file_error_names_the_cause(tmp_path: Path) -> None:
    (tmp_path / "text.pdf").write_text("hello")
    data = SHEET.read_bytes()
    (tmp_path / "damaged.pdf").write_bytes(b"%PDF-1.4\n" + b"\x00garbage" * 20)
    (tmp_path / "cut.pdf").write_bytes(data[: len(data) // 3])
    cases = {
        str(tmp_path / "absent.pdf"): "No file at",
        str(tmp_path): "No file at",
        "absent.pdf": "safety_data_sheet.pdf for the shipped one",
        "../library.csv": "No file at",
        str(tmp_path / "text.pdf"): "is not a PDF",
        str(tmp_path / "damaged.pdf"): "is damaged",
        str(tmp_path / "cut.pdf"): "is damaged",
        str(save_pdf(tmp_path / "blank.pdf")): "contains no text",
        str(save_pdf(tmp_path / "secret.pdf", "swordfish")): "is encrypted with a password",
    }
    for path, message in cases.items():
        with pytest.raises(ToolError, match=message):
            read_text(path)
