"""The text of a PDF file, by pypdf. Knows nothing of what the text means."""

from importlib.resources import files
from pathlib import Path

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

LARGEST_FILE = 100 * 2**20
"""Size in bytes past which a file is refused unread."""


class PdfError(ValueError):
    """A path that leads to no readable PDF; the message says why and what to give instead."""


def find_file(pdf_path: str) -> Path:
    """Return the file at the path, or the shipped file of that bare name.

    Raises:
        PdfError: There is no such file, or it is larger than LARGEST_FILE.
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
    """Return the text of a PDF, its pages parted by a blank line.

    Raises:
        PdfError: No such file, no PDF, damaged, encrypted with a password, or without text.
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
        raise PdfError(f"{pdf_path!r} holds no text, only images. Give a PDF with text in it.")
    return text
