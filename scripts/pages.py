"""Tables of docs/ that scripts write: each stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table of Markdown, the last ``numbers`` columns aligned to the right."""
    lines = [headings, ["-"] * (len(headings) - numbers) + ["-:"] * numbers, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def with_tables(text: str, tables: dict[str, str]) -> str:
    """The text of a page with these tables in their places.

    Raises:
        ValueError: a table has no place, or a place no table.
    """
    places = set(re.findall(r"<!-- table: (.*?) -->", text))
    if places != set(tables):
        raise ValueError(f"the page has places for {sorted(places)}, but the tables are {sorted(tables)}")
    for name, lines in tables.items():
        place = rf"(<!-- table: {re.escape(name)} -->\n).*?(<!-- end of table -->)"  # empty, too: a new one
        text, count = re.subn(place, lambda match, lines=lines: f"{match[1]}{lines}\n{match[2]}", text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"<!-- table: {name} --> stands {count} times with an end; it must once")
    return text


def main(description: str, pages: dict[Path, dict[str, str]]) -> int:
    """Rewrites the pages, or with --check only says whether they are up to date. Returns the exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not as it would be")
    check = parser.parse_args().check
    texts = {page: with_tables(page.read_text(), tables) for page, tables in pages.items()}
    changed = [page for page, text in texts.items() if text != page.read_text()]
    for page in changed:
        if check:
            program = Path(sys.argv[0]).name
            print(
                f"{page.relative_to(ROOT)}: its tables are out of date; scripts/{program} writes them", file=sys.stderr
            )
        else:
            page.write_text(texts[page])
            print(f"Written: {page.relative_to(ROOT)}")
    return int(check and bool(changed))
