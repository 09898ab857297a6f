"""Names of tests are plain sentences that fit into a line of a report."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
MOST = 70


def test_names_of_tests_are_short() -> None:
    files = [path for path in TESTS.rglob("test_*.py") if "node_modules" not in path.parts]
    tests = [name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text("utf-8"))]
    assert len(tests) > 1000
    assert [name for name in tests if len(name) > MOST] == []
