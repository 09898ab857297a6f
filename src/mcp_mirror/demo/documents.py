"""The documents server: `python -m mcp_mirror.demo.documents` (stdio).

One tool returns the text of a PDF, the other reads the text of a safety data sheet.
"""

import logging
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field
from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

from mcp_mirror.demo.sds import SafetyDataSheet, extract

READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

server: MCPServer[Any] = MCPServer(
    "documents",
    instructions="The text of PDF files, and the ingredients that the text of a safety data sheet states.",
    log_level="WARNING",
)

LARGEST_FILE = 100 * 2**20
"""Bytes of a file; larger files are refused unread."""


def find_file(pdf_path: str) -> Path:
    """Return the file at the path, or the included file of that name; ToolError if it is missing or too large."""
    path = Path(pdf_path).expanduser()
    if not path.is_file() and path.name == pdf_path:
        path = Path(str(files("mcp_mirror.demo").joinpath("data"))) / pdf_path
    if not path.is_file():
        raise ToolError(
            f"No file at {pdf_path!r}. Give the path of a PDF file, or safety_data_sheet.pdf for the shipped one."
        )
    if path.stat().st_size > LARGEST_FILE:
        raise ToolError(f"{pdf_path!r} is larger than {LARGEST_FILE // 2**20} MiB. Give a smaller PDF file.")
    return path


def read_text(pdf_path: str) -> str:
    """Return the text of a PDF, with a blank line between pages; ToolError if the file has none that is readable."""
    path = find_file(pdf_path)
    with path.open("rb") as file:
        if b"%PDF-" not in file.read(1024):
            raise ToolError(f"{pdf_path!r} is not a PDF. Give the path of a PDF file.")
    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ToolError(f"{pdf_path!r} is encrypted with a password. Give a PDF that opens without one.")
        text = "\n\n".join(page.extract_text() for page in reader.pages).strip()
    except DependencyError as error:
        raise ToolError(
            f"{pdf_path!r} is encrypted in a way that cannot be read here. Give a PDF without encryption."
        ) from error
    except (PyPdfError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ToolError(
            f"{pdf_path!r} is damaged and cannot be read ({type(error).__name__}). Give another PDF file."
        ) from error
    if not text:
        raise ToolError(f"{pdf_path!r} contains no text, only images. Give a PDF with text in it.")
    return text


@server.tool(annotations=READ_ONLY, structured_output=False)
def tika(
    pdf_path: Annotated[
        str,
        Field(description="Path of a PDF file; safety_data_sheet.pdf alone is the example that comes with this server"),
    ],
) -> str:
    """Extract the text of a PDF file."""
    return read_text(pdf_path)


@server.tool(annotations=READ_ONLY)
def extract_sds(
    content: Annotated[str, Field(description="The whole text of a safety data sheet, as tika returns it")],
) -> SafetyDataSheet:
    """Extract the product and its ingredients (name, CAS number, concentration, formula) from a safety data sheet."""
    return extract(content)


def main() -> None:
    """Serve on stdin and stdout until the client disconnects."""
    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it warns about fonts, once per page
    server.run("stdio")


if __name__ == "__main__":
    main()
