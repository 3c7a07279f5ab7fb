"""What mkdocs does not do by itself for docs/: links to files of the repository, and a log that search leaves out."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
LINK_OUT = re.compile(r"(!?)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)\)")
LEFT_OUT = ("log/", "generated/")
log = logging.getLogger("mkdocs.hooks.fusedsc")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Plots of kept results are files of the site, too."""
    for plot in (ROOT / "benchmarks" / "results").rglob("*.png"):
        name = "benchmarks/" + plot.relative_to(ROOT / "benchmarks" / "results").as_posix()
        files.append(File.generated(config, name, abs_src_path=str(plot)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.file.src_uri.startswith(LEFT_OUT):
        page.meta["search"] = {"exclude": True}
    folder = Path(page.file.abs_src_path).parent
    docs = Path(config.docs_dir)

    def replaced(match: re.Match) -> str:
        """The link as it is if it stays in docs/; to a plot of the site; else the file's name."""
        is_image, text, target = match.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(docs):
            return match[0]
        if not path.exists():
            log.warning(f"{page.file.src_uri} links to {target}, which does not exist")
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".png":
            up = "../" * page.file.src_uri.count("/")
            return f"{is_image}[{text}]({up}{name.replace('benchmarks/results/', 'benchmarks/')})"
        return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"

    return LINK_OUT.sub(replaced, markdown)
