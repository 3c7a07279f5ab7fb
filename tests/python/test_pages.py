"""The pages: their Python snippets run as they stand, their tables are up to date, and they stay readable."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fusedsc

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *(page for page in sorted(DOCS.rglob("*.md")) if page.relative_to(DOCS).parts[0] != "log")]
WRITTEN = [page for page in PAGES if "generated" not in page.parts]
"""By people."""
SNIPPET = re.compile(r"(?P<not_run><!-- not run: .+? -->\n)?```python\n(?P<code>.*?)```", re.DOTALL)
LONGEST_LINE = 160


def name(page):
    return page.relative_to(ROOT).as_posix()


def snippets(page):
    """Those of a page that are run, each with empty lines before it, so that errors name the lines of the page."""
    text = page.read_text()
    return [
        "\n" * text.count("\n", 0, match.start("code")) + match["code"]
        for match in SNIPPET.finditer(text)
        if not match["not_run"]
    ]


def prose(text):
    """(number, line) of what is neither code nor a table."""
    is_code = False
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code and not line.lstrip().startswith("|"):
            yield number, line


def test_pages_have_snippets():
    for page in ("README.md", "docs/quickstart.md", "docs/swap.md", "docs/sliding_channel.md"):
        assert snippets(ROOT / page), page


@pytest.mark.parametrize("page", [page for page in PAGES if snippets(page)], ids=name)
def test_snippets(page, capsys, tmp_path, monkeypatch):
    """One after the other, as a reader would type them."""
    monkeypatch.chdir(tmp_path)
    names = {}
    for snippet in snippets(page):
        exec(compile(snippet, str(page), "exec"), names)
    if page == README:
        assert "taken" in capsys.readouterr().out


@pytest.mark.cpu_only("has nothing to do with GPUs")
def test_cpp_snippets_are_the_program_that_ci_builds():
    text = (DOCS / "cpp.md").read_text()
    for language, source in {"cpp": "main.cpp", "cmake": "CMakeLists.txt"}.items():
        (snippet,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        assert snippet == (ROOT / "tests" / "external_project" / source).read_text()


@pytest.mark.cpu_only("has nothing to do with GPUs")
@pytest.mark.parametrize("script", ["kernels_table", "performance_tables"])
def test_tables_are_up_to_date(script):
    command = [sys.executable, ROOT / "scripts" / script, "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_table_of_kernels_has_those_of_this_build():
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (.+?) \|", (DOCS / "architecture.md").read_text(), re.MULTILINE)
    table = {(operator, kernel): directions for operator, kernel, directions in rows}
    one = {"grad_input": "input gradient", "grad_weight": "weight gradient"}
    for role, kernels in fusedsc.kernels().items():
        operator, direction = role.split(".")
        for kernel in kernels:
            forward = kernel.removeprefix("forward_")  # of a forward kernel that computes the input gradient
            row = table.get((operator.removesuffix("_conv2d"), forward), "").split(", ")
            is_forward = direction == "forward" or forward != kernel
            computes = {"forward"} if is_forward else {"gradients", one.get(direction)}
            assert computes & set(row), f"{role} has {kernel}; scripts/kernels_table writes the table"


@pytest.mark.cpu_only("has nothing to do with GPUs")
def test_lines_of_prose_are_short():
    long = [
        f"{name(page)}:{number}: {len(line)}"
        for page in WRITTEN
        for number, line in prose(page.read_text())
        if len(line) > LONGEST_LINE
    ]
    assert not long, f"lines of more than {LONGEST_LINE} characters: break them, or use a table"


@pytest.mark.cpu_only("has nothing to do with GPUs")
def test_every_page_is_linked():
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)", page.read_text())
    }
    assert [name(page) for page in PAGES if page != README and page not in linked] == []
    assert [name(path) for path in linked if not path.exists()] == []


def test_a_new_tables_place_is_empty(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    pages = importlib.import_module("pages")
    page = "<!-- table: a -->\n<!-- end of table -->\n\n<!-- table: b -->\nold\n<!-- end of table -->\n"
    written = pages.with_tables(page, {"a": "| A |", "b": "| B |"})
    assert written == page.replace("a -->\n", "a -->\n| A |\n").replace("old", "| B |")
    assert pages.with_tables(written, {"a": "| A |", "b": "| B |"}) == written
