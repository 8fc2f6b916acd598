"""Check the built site: every page is there, no link is dead, and no page loads anything from another site."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlparse

ROOT = Path(__file__).resolve().parent.parent.parent
LOADED = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src"}
"""What a browser fetches by itself."""


class Page(HTMLParser):
    """The links, anchors and foreign parts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.foreign: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.anchors.add(found["id"])
        address = found.get(LOADED.get(tag, "href"), "")
        if tag in LOADED and found.get("rel") != "canonical":
            if urlparse(address).netloc:
                self.foreign.append(address)
            elif address:
                self.links.append(address)
        elif tag == "a" and address and not urlparse(address).scheme:
            self.links.append(address)


def problems(site: Path) -> list[str]:
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = [f"{path.relative_to(site)} loads {address}" for path, page in pages.items() for address in page.foreign]
    for path, page in pages.items():
        for link in page.links:
            name, anchor = urldefrag(unquote(link))
            target = (
                site / name.lstrip("/") if name.startswith("/") else (path.parent / name).resolve() if name else path
            )
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                found.append(f"{path.relative_to(site)}: {link} does not exist")
            elif anchor and target in pages and anchor not in pages[target].anchors:
                found.append(f"{path.relative_to(site)}: {link} has no such heading")
    return found


def main() -> int:
    site = ROOT / "build/site"
    count = len(list(site.rglob("index.html")))
    wrong = problems(site)
    for each in wrong:
        print(f"error: {each}", file=sys.stderr)
    if not wrong:
        print(f"build/site has {count} pages, no dead link, and loads nothing from elsewhere")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main())
