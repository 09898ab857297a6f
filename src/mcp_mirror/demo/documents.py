"""The documents server: `python -m mcp_mirror.demo.documents` (stdio).

One tool returns the text of a PDF, the other reads the text of a safety data sheet.
"""

import logging
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from mcp_mirror.demo.pdf_text import PdfError, read_text
from mcp_mirror.demo.sds import SafetyDataSheet, extract

READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)

server: MCPServer[Any] = MCPServer(
    "documents",
    instructions="The text of PDF files, and the ingredients that the text of a safety data sheet states.",
    log_level="WARNING",
)


@server.tool(annotations=READ_ONLY, structured_output=False)
def tika(
    pdf_path: Annotated[
        str,
        Field(description="Path of a PDF file; safety_data_sheet.pdf alone is the example that comes with this server"),
    ],
) -> str:
    """Extract the text of a PDF file."""
    try:
        return read_text(pdf_path)
    except PdfError as error:
        raise ToolError(str(error)) from error


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
