"""Links in the documents lead somewhere, every page is in the site's navigation, every picture is shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob(".github/**/*.md")])
LINK = re.compile(r"(?<!\\)!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+(?:\([^()]*\)[^()\s]*)?)\)")


def links(path: Path) -> Iterator[str]:
    # Spans of code stay: a link's own text may have them.
    text = re.sub(r"^ *(```+).*?^ *\1", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    yield from LINK.findall(text)


def anchors(path: Path) -> set[str]:
    """The anchors of the headings, as GitHub makes them."""
    found: dict[str, int] = {}
    names: set[str] = set()
    text = re.sub(r"^ *(```+).*?^ *\1", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", text, re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found.get(slug, 0)
        found[slug] = count + 1
        names.add(f"{slug}-{count}" if count else slug)
    return names | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_link_is_dead(page: Path) -> None:
    """Files and headings. Addresses on the web are not visited."""
    dead = []
    for link in links(page):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def navigation(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from navigation(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(navigation(site["nav"]))
    assert len(listed) == len(set(listed))
    ours = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    assert ours == {name for name in listed if not name.startswith("project/")}


def test_every_picture_is_shown() -> None:
    shown = {Path(link).name for page in PAGES for link in links(page) if link.endswith(".png")}
    assert {path.name for path in (DOCS / "images").iterdir()} == shown
