"""Measure the tree against its budgets: size per package, small and large files, modules with one importer, translated
phrases, and with --walks the files that a delta, a request, a verified recording and a lab cell pass through.

Over budget is a warning. With --strict the exit code is 1.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "bridge"
FOUNDATIONS = "(foundations)"
"""The modules directly in `bridge/`."""

# Lines and files per package. Their sums are the budget of the whole: 40,000 lines in 220 files.
BUDGETS = {
    "cli": (1_900, 13),
    "lab": (4_000, 21),
    "replay": (900, 6),
    "server": (1_600, 10),
    "page": (1_500, 10),
    "playback": (1_000, 6),
    "cap": (1_750, 8),
    "app": (1_700, 10),
    "telemetry": (450, 4),
    "routing": (850, 6),
    "upstream": (1_700, 10),
    "log": (4_300, 24),
    "appserver": (5_200, 24),
    "store": (1_450, 8),
    "protocols": (5_500, 22),
    "http": (1_500, 9),
    "tools": (1_500, 8),
    "core": (1_800, 11),
    "settings": (800, 4),
    FOUNDATIONS: (600, 6),
}
SMALL, LARGE = 60, 400
EDGE, EDGE_CODE = ("connection", "wire", "head", "listener", "watch", "websocket"), 900
"""The modules in `http/` that serve connections, and how many lines of code they may have together."""
PHRASES = re.compile(
    r"\b(is|are) no (?!longer|more|such|need|way)[a-z]|\bis none\b|\b[Ww]hoever\b|\banew\b|\bmend(s|ed|ing)?\b"
    r"|\b(is|are|was|were|be|been) (told|said)\b|, and has\.|\bgoes? on (?!to\b)|\bso many\b|\bnobody\b"
    r"|\bWho [a-z]+s\b|\bthat is due\b|\bstands? (in|on|there|behind|elsewhere)\b"
)
"""Phrases that a native reader stumbles over."""


@dataclass(frozen=True)
class Module:
    path: Path
    text: str

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def code(self) -> int:
        """Lines of code: neither blank, nor comments, nor docstrings and the like."""
        described: set[int] = set()
        for node in ast.walk(ast.parse(self.text)):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                described.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        lines = enumerate(map(str.strip, self.text.splitlines()), 1)
        return sum(1 for number, line in lines if line and not line.startswith("#") and number not in described)

    @property
    def name(self) -> str:
        """As it is imported."""
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")

    @property
    def package(self) -> str:
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else FOUNDATIONS

    def __str__(self) -> str:
        return str(self.path.relative_to(PACKAGE))


def modules() -> list[Module]:
    return [Module(path, path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))]


def sizes(found: list[Module]) -> dict[str, tuple[int, int]]:
    """Lines and files of each package, in the order of the layers."""
    total: dict[str, tuple[int, int]] = dict.fromkeys(BUDGETS, (0, 0))
    for module in found:
        lines, files = total.get(module.package, (0, 0))
        total[module.package] = lines + module.lines, files + 1
    return total


def imported_by(module: Module, names: set[str]) -> set[str]:
    """The modules of the bridge that this one imports, wherever in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            members = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= members & names or {node.module}
    return (found & names) - {module.name}


def sections(found: list[Module]) -> list[tuple[Module, str]]:
    """Modules that one module alone imports, in the same package: likely a section of it in a file of its own."""
    by_name = {module.name: module for module in found}
    importers: dict[str, set[str]] = defaultdict(set)
    for module in found:
        for name in imported_by(module, set(by_name)):
            importers[name].add(module.name)
    result = []
    for name, users in importers.items():
        module, user = by_name[name], by_name[min(users)]
        if len(users) == 1 and module.path.name != "__init__.py" and module.package == user.package != FOUNDATIONS:
            result.append((module, str(user)))
    return sorted(result, key=lambda pair: str(pair[0]))


def phrases() -> dict[str, int]:
    """Translated phrases by file, most first."""
    paths = [path for folder in ("bridge", "docs", "scripts") for path in (ROOT / folder).rglob("*")]
    paths += [ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md")]
    counts = {
        str(path.relative_to(ROOT)): sum(1 for _ in PHRASES.finditer(path.read_text(encoding="utf-8")))
        for path in paths
        if path.suffix in (".py", ".md", ".toml", ".html", ".js")
        and path.is_file()
        and path != Path(__file__).resolve()
    }
    return {name: count for name, count in sorted(counts.items(), key=lambda item: -item[1]) if count}


@dataclass(frozen=True)
class Size:
    """A package, or the whole, with its budget."""

    name: str
    lines: int
    files: int
    most_lines: int
    most_files: int

    @property
    def is_over(self) -> bool:
        return self.lines > self.most_lines or self.files > self.most_files

    def __str__(self) -> str:
        return f"{self.lines:,} lines in {self.files} files, budget {self.most_lines:,} in {self.most_files}"


def compared(found: list[Module]) -> tuple[list[Size], Size]:
    """Each package and the whole. A package that is not in the table has a budget of nothing."""
    rows = [Size(name, *size, *BUDGETS.get(name, (0, 0))) for name, size in sizes(found).items()]
    numbers = ([row.lines, row.files, row.most_lines, row.most_files] for row in rows)
    return rows, Size("total", *(sum(column) for column in zip(*numbers, strict=True)))


def beside(value: int, budget: int) -> str:
    return f"{value:>7,} / {budget:<6,}" + ("!" if value > budget else " ")


def report(found: list[Module], *, verbose: bool) -> list[str]:
    """Print the tables; returns what is over budget."""
    packages, total = compared(found)
    print(f"{'package':<16}{'lines / budget':<17}{'files / budget'}   (! is over budget)")
    for row in (*packages, total):
        print(f"{row.name:<14}{beside(row.lines, row.most_lines)}{beside(row.files, row.most_files)}".rstrip())
    small = [module for module in found if module.lines < SMALL and module.path.name != "__init__.py"]
    large = [module for module in found if module.lines > LARGE]
    translated = phrases()
    print()
    listing(f"files under {SMALL} lines", [f"{module} ({module.lines})" for module in small], verbose=verbose)
    listing(f"files above {LARGE} lines", [f"{module} ({module.lines})" for module in large], verbose=verbose)
    users = [f"{module} (by {user})" for module, user in sections(found)]
    listing("modules with one importer in their package", users, verbose=verbose)
    most = [f"{name} {count}" for name, count in list(translated.items())[: None if verbose else 8]]
    print(f"{sum(translated.values())} translated phrases" + (f", most in: {', '.join(most)}" if most else ""))
    edge = sum(module.code for module in found if str(module) in {f"http/{name}.py" for name in EDGE})
    print(f"{edge} lines of code in the edge (http/{{{','.join(EDGE)}}}), at most {EDGE_CODE}")
    over = [f"{row.name}: {row}" for row in (*packages, total) if row.is_over]
    over += [f"{module}: {module.lines} lines, at most {LARGE}" for module in large]
    return over + [f"the edge: {edge} lines of code, at most {EDGE_CODE}"] * (edge > EDGE_CODE)


def listing(title: str, entries: list[str], *, verbose: bool) -> None:
    print(f"{len(entries)} {title}" + (":" if entries and verbose else ""))
    if verbose:
        print(*(f"  {entry}" for entry in entries), sep="\n", end="\n" if entries else "")


def report_walks(*, verbose: bool) -> list[str]:
    """Print the walks; returns what is over its target."""
    import walks

    print(f"\n{'walk':<52}{'files / target':<19}package changes")
    over = []
    for walk in walks.measured():
        print(f"{walk.name:<52}{beside(walk.distinct, walk.target)}{walk.changes:>15,}")
        if verbose:
            print("  " + " → ".join(dict.fromkeys(walk.files)))
        if walk.distinct > walk.target:
            over.append(f"{walk.name}: {walk.distinct} files, target {walk.target}")
    return over


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/house", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--walks", action="store_true", help="also run the bridge and measure the walks (20 seconds)")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a budget or a target is exceeded")
    parser.add_argument("--quick", action="store_true", help="print one line, as scripts/check does")
    parser.add_argument("-v", "--verbose", action="store_true", help="list the files behind each number")
    options = parser.parse_args()
    found = modules()
    if options.quick:
        packages, total = compared(found)
        over = [row.name for row in packages if row.is_over]
        print(f"size: {total}" + (f"; over budget: {', '.join(over)}" if over else ""))
    else:
        over = report(found, verbose=options.verbose)
        if options.walks:
            over += report_walks(verbose=options.verbose)
        if over:
            print(f"\n{len(over)} over budget:", *(f"  {line}" for line in over), sep="\n")
    sys.exit(1 if over and options.strict else 0)


if __name__ == "__main__":
    main()
