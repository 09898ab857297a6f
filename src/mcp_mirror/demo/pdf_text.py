"""Reads the text of a PDF file with pypdf. It must not know the meaning of the text."""

from importlib.resources import files
from pathlib import Path

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

LARGEST_FILE = 100 * 2**20
"""Bytes of a file; larger files are refused unread."""


class PdfError(ValueError):
    """A path does not lead to a readable PDF; the message has the cause and the next step."""


def find_file(pdf_path: str) -> Path:
    """Return the file at the path, or the included file with that name.

    Raises:
        PdfError: The file does not exist, or is larger than LARGEST_FILE.
    """
    path = Path(pdf_path).expanduser()
    if not path.is_file() and path.name == pdf_path:
        path = Path(str(files("mcp_mirror.demo").joinpath("data"))) / pdf_path
    if not path.is_file():
        raise PdfError(
            f"No file at {pdf_path!r}. Give the path of a PDF file, or safety_data_sheet.pdf for the shipped one."
        )
    if path.stat().st_size > LARGEST_FILE:
        raise PdfError(f"{pdf_path!r} is larger than {LARGEST_FILE // 2**20} MiB. Give a smaller PDF file.")
    return path


def read_text(pdf_path: str) -> str:
    """Return the text of a PDF, with a blank line between pages.

    Raises:
        PdfError: The file does not exist, is not a PDF, is damaged, needs a password, or has no text.
    """
    path = find_file(pdf_path)
    with path.open("rb") as file:
        if b"%PDF-" not in file.read(1024):
            raise PdfError(f"{pdf_path!r} is not a PDF. Give the path of a PDF file.")
    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            raise PdfError(f"{pdf_path!r} is encrypted with a password. Give a PDF that opens without one.")
        text = "\n\n".join(page.extract_text() for page in reader.pages).strip()
    except DependencyError as error:
        raise PdfError(
            f"{pdf_path!r} is encrypted in a way that cannot be read here. Give a PDF without encryption."
        ) from error
    except (PyPdfError, OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        if isinstance(error, PdfError):
            raise
        raise PdfError(
            f"{pdf_path!r} is damaged and cannot be read ({type(error).__name__}). Give another PDF file."
        ) from error
    if not text:
        raise PdfError(f"{pdf_path!r} contains no text, only images. Give a PDF with text in it.")
    return text
