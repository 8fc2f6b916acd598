"""Put together what the site is made from: docs/, and the project's own pages, with links that hold there.

In the repository a page may link to any file. The site has only pages, so a link to another file becomes its name.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
TARGET = ROOT / "build/site-source"
PROJECT = {
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",
}
"""Pages outside docs/, and what shows them in the site."""
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def adapted(text: str, page: Path, place: Path) -> str:
    """The text of `page`, which stands at `place` in the site."""

    def link(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        name, mark, anchor = target.partition("#")
        if not name or re.match(r"[a-z][a-z+.-]*:", target):
            return found[0]
        file = (page.parent / name).resolve()
        if file.is_relative_to(ROOT / "docs"):
            there = file.relative_to(ROOT / "docs")
        elif (own := str(file.relative_to(ROOT))) in PROJECT:
            there = Path(PROJECT[own])
            if own == "README.md":
                mark = anchor = ""  # the site's first page has other headings
        else:
            return label if label.startswith("`") else f"{label} (`{file.relative_to(ROOT)}`)"
        return f"[{label}]({os.path.relpath(there, place.parent)}{mark}{anchor})"

    kept = re.split(r"(^ *```.*?^ *```)", text, flags=re.M | re.S)
    return "".join(part if number % 2 else LINK.sub(link, part) for number, part in enumerate(kept))


def main() -> int:
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(ROOT / "docs", TARGET)
    pages = {path: path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    pages |= {ROOT / name: Path(place) for name, place in PROJECT.items() if name != "README.md"}
    for page, place in pages.items():
        (TARGET / place).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / place).write_text(adapted(page.read_text(encoding="utf-8"), page, place), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
