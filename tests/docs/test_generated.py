"""Generated pages and drawings are current, and texts of the sources refer to pages that exist."""

import re
import subprocess
from pathlib import Path

import pytest
from client_pages import CLIENT_PAGES
from doc_pages import ROOT
from generate import GENERATED, layers

from mcp_mirror import errors
from mcp_mirror.errors import RefusalReason
from mcp_mirror.memory.tools.table import RUN, TOOLS
from mcp_mirror.observability.audit import AuditRecord

SOURCES = ("src", "configs", "evals", "calibration", "docker", "tests", "examples")


@pytest.mark.parametrize("file", GENERATED, ids=lambda file: file.name)
def test_a_generated_file_is_current(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == GENERATED[file](), "run `make reference`"


@pytest.mark.parametrize("page", ["zensical.toml", "README.md", "docs/getting-started/index.md"])
def test_the_page_of_each_client_is_linked(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert [file.name for file in CLIENT_PAGES if file.name not in text] == [], (
        f"Link the page of the client in {page}."
    )


def test_the_page_of_memory_tools_describes_each() -> None:
    page = (ROOT / "docs" / "guides" / "memory-tools.md").read_text(encoding="utf-8")
    assert [name for name in (*TOOLS, RUN) if f"`{name}`" not in page] == [], "Describe it in memory-tools.md."


def test_the_architecture_page_describes_every_package() -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    packages = {path.parent.name for path in (ROOT / "src" / "mcp_mirror").glob("*/__init__.py")}
    assert packages - {"demo", "evals"} <= described
    assert described <= {name for layer in layers() for name in layer}


def test_test_files_import_no_other_test_file() -> None:
    argv = ["git", "grep", "-nE", r"^\s*(from|import) (tests\.[a-z_.]*)?test_[a-z]", "--", "tests"]
    found = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30).stdout
    assert found == ""  # what two of them need is in tests/helpers or in a conftest.py


def test_sources_name_only_pages_that_exist() -> None:
    argv = ["git", "grep", "-IohE", r"docs/[a-z/-]+\.md", "--", *SOURCES]
    named = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30).stdout.split()
    assert [name for name in sorted(set(named)) if not (ROOT / name).exists()] == []


def test_the_errors_page_lists_every_reason_of_a_refusal() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    reasons = page.partition("## Reasons of a refusal")[2].partition("\n## ")[0]
    listed = {
        name for row in re.findall(r"^\| ([^|]+) \|", reasons, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    }
    assert {reason.value for reason in RefusalReason} <= listed, "Add a row for it to docs/reference/errors.md."
    auth = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src" / "mcp_mirror" / "server").rglob("*.py"))
    assert [reason for reason in listed - set(RefusalReason) if f'"{reason}"' not in auth] == []


def test_the_guide_describes_every_member_of_an_audit_record() -> None:
    page = (ROOT / "docs" / "guides" / "logs-and-audit.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[^|]+) \|", page.partition("## The audit log")[2], re.MULTILINE)
    described = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert {*AuditRecord.__struct_fields__} - {"detail"} <= described, "Add a row for it to logs-and-audit.md."


def test_the_errors_page_lists_every_error_class() -> None:
    page = (ROOT / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")
    classes = page.partition("## Error classes")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| `(\w+Error)`", classes, re.MULTILINE))
    assert listed == {
        name for name, found in vars(errors).items() if isinstance(found, type) and name.endswith("Error")
    }
