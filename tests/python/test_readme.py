"""The README's Python snippets run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)


def test_there_are_snippets():
    assert SNIPPETS


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet(snippet, capsys):
    exec(compile(snippet, str(README), "exec"), {})
    assert "taken" in capsys.readouterr().out
