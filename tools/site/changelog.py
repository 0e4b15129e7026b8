"""The changelog as a page."""

from __future__ import annotations

import re
from pathlib import Path

PATH = Path(__file__).resolve().parents[2] / "CHANGELOG.md"


def page() -> str:
    """CHANGELOG.md, its mentions of pages as links that work here."""
    return re.sub(
        r"\(`docs/([a-z/0-9-]+\.md)`\)",
        lambda found: (
            f"([{found[1].split('/')[-1]}](../{found[1]}))"
            if (PATH.parent / "docs" / found[1]).exists()
            else found[0]
        ),
        PATH.read_text(encoding="utf-8"),
    )
