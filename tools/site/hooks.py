"""What MkDocs calls while it builds the site: generated pages, the navigation, error messages.

Nothing that is made here is written into docs/. A page that the navigation of mkdocs.yml names and
that is missing is an error.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(ROOT / "src"))

import api
import changelog
import cli
import errors
import operators
import packages
import tutorials

Nav = list[Any]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The navigation, folders filled in."""
    config.nav = _filled(config.nav, Path(config.docs_dir))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The files of docs/ and the pages that are generated."""
    folder = ROOT / "build" / "site"
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, str | bytes] = tutorials.pages(folder)  # they measure: nothing runs beside them
    with ThreadPoolExecutor() as both:  # a process each
        list(both.map(lambda tried: tried(folder), (operators.outcomes, errors.messages)))
    for file in [f for f in files if f.src_uri.endswith((".py", ".c", ".txt"))]:
        files.remove(file)
    made |= api.pages()
    made["reference/cli.md"] = cli.page()
    made["reference/operators.md"] = operators.page(folder)
    made["errors/index.md"] = errors.index()
    made["reference/packages.md"] = packages.page()
    made["reference/changelog.md"] = changelog.page()
    for uri, content in made.items():
        files.append(File.generated(config, uri, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Pages of errors with the message as it is printed."""
    if page.file.src_uri.startswith("errors/TW"):
        return errors.with_message(markdown, ROOT / "build" / "site")
    return markdown


def _filled(nav: Any, docs: Path) -> Nav:
    """Entries that end in a slash stand for all pages of a folder."""
    found: Nav = []
    for entry in nav:
        title, target = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(target, list):
            found.append({title: _filled(target, docs)})
        elif target.endswith("/"):
            found.append({title: FOLDERS[target](docs / target)})
        else:
            found.append(entry)
    return found


def _every_page(folder: Path) -> Nav:
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "index.md")
    first = [f"{folder.name}/index.md"] if (folder / "index.md").exists() else []
    return [*first, *(f"{folder.name}/{name}" for name in pages)]


FOLDERS = {
    "internals/": _every_page,
    "decisions/": _every_page,
    "tutorials/": lambda folder: tutorials.nav(),
    "reference/api/": lambda folder: api.nav(),
    "errors/": lambda folder: errors.nav(),
}
