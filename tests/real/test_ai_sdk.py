"""The AI SDK accepts pruned conversations: they fit its schema, and it builds a prompt from them."""

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PATIENCE = 60
"""Seconds that making, or checking, some conversations may take."""


@pytest.mark.slow
def test_pruned_conversations_make_a_prompt_of_the_ai_sdk(node: str) -> None:
    making = [sys.executable, str(TESTS / "chats" / "write_conversations.py"), "15", "vercel"]
    made = subprocess.run(making, capture_output=True, timeout=PATIENCE, check=True).stdout
    checking = [node, str(TESTS / "node" / "check_messages.mjs")]
    checked = subprocess.run(checking, input=made, capture_output=True, timeout=PATIENCE, check=False)
    assert checked.returncode == 0, checked.stderr.decode(errors="replace")
    assert checked.stdout.startswith(b"60 conversations ")
