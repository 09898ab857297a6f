"""The word check finds excluded words, and the documentation has none."""

import pytest
import words


def test_the_documentation_has_no_excluded_words() -> None:
    assert list(words.find_excluded()) == []


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("A mistake is told with file and line.", "told"),
        ("Nobody sees it.", "nobody"),
        ("It is no error.", "is no"),
        (
            "What is stored goes there. What the model may not see is left out.",
            "What the model may not see is left out.",
        ),
    ],
)
def test_an_excluded_word_is_found(line: str, word: str) -> None:
    assert word in [found for found, _ in words.words_in(line)]


@pytest.mark.parametrize("line", ["It is not an error.", "untold", "What is stored?", "said_of"])
def test_similar_words_are_not_found(line: str) -> None:
    assert not [found for found, _ in words.words_in(line) if found != "said"]
