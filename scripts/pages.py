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
        place = rf"(<!-- table: {re.escape(name)} -->\n).*?(\n<!-- end of table -->)"
        text, count = re.subn(place, lambda match, lines=lines: match[1] + lines + match[2], text, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"<!-- table: {name} --> stands {count} times with an end; it must once")
    return text


def main(description: str, page: Path, tables: dict[str, str]) -> int:
    """Rewrites the page, or with --check only says whether it is as the tables would make it. The exit status."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not as it would be")
    check = parser.parse_args().check
    before = page.read_text()
    after = with_tables(before, tables)
    name = page.relative_to(ROOT)
    if check and after != before:
        print(f"{name}: its tables are out of date; {Path(sys.argv[0]).name} writes them", file=sys.stderr)
        return 1
    if not check:
        page.write_text(after)
        print(f"Written: {name}")
    return 0
