"""Names that are similar to a name."""

import pytest
from computing import least_seconds

from mcp_mirror.core.similar_names import find_nearest, measure_similarity, sort_by_similarity
from mcp_mirror.memory.tools.table import RETRIEVE

TOOLS = ("read_text_file_mirrored", "read_file_mirrored", "docs_get_file_info_mirrored", RETRIEVE)


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("read_text_file", ["read_text_file_mirrored", "read_file_mirrored"]),
        ("READ_FILE_MIRRORED", ["read_file_mirrored", "read_text_file_mirrored"]),
        ("get_file_info", ["docs_get_file_info_mirrored"]),
        ("read_flie", ["read_file_mirrored"]),
        ("retrieve_final_answer", [RETRIEVE]),
        *((name, []) for name in ("xyz", "", "r", "nothing", "send_mail")),
    ],
)
def test_only_names_that_share_something_with_the_query_are_near(name: str, likely: list[str]) -> None:
    assert find_nearest(name, TOOLS)[: len(likely) or None] == likely


def test_all_names_have_an_order_whatever_they_have_in_common() -> None:
    assert sort_by_similarity("rows", ["x", "shape", "ROW", "rows"]) == ["rows", "ROW", "shape", "x"]


def test_similarity_is_the_ratio_of_equal_characters_without_case() -> None:
    assert measure_similarity("READ", "read") == 1
    assert measure_similarity("3f2b8c1e", "3f2b8ce1") == 0.875
    assert measure_similarity("abc", "xyz") == 0


def test_long_names_of_few_different_characters_are_compared_fast() -> None:
    alike = "a" * 100 + "b" * 100
    names = [alike[at:] + alike[:at] for at in range(200)]
    assert least_seconds(lambda: find_nearest("ab" * 100, names)) < 0.15
    assert find_nearest("ab" * 100, [*names, "ab" * 99])[0] == "ab" * 99
    assert find_nearest("a" * 1000, ["a" * 999]) == ["a" * 999]
