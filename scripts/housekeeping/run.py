"""Measure the tree against its budgets: size per package, small and large files, modules with one importer, translated
phrases, the files that example changes touch, and with --walks those that a delta, a request, a verified recording and
a lab cell pass through.

The exit code is 1 when a budget is exceeded, with --strict also for a limit or a target. docs/design.md ("Sizes") says
what budgets are for.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "bridge"
FOUNDATIONS = "foundations"
"""The modules directly in `bridge/`."""

BUDGETS = Path(__file__).with_name("budgets.toml")
STEP = 50
"""A budget of lines is rounded up to a multiple of this, so that a fix of a few lines need not raise it."""
SMALL, LARGE = 60, 400
EDGE, EDGE_CODE = ("connection", "wire", "head", "listener", "websocket"), 900
"""The modules in `http/` that serve connections, and how many lines of code they may have together."""
PHRASES = re.compile(
    # "There is no key" and "tool_choice is none" are plain English; "this is no key" is not.
    r"(?<!here )\b(is|are) no (?!longer|more|such|need|way)[a-z]|(?<!here )(?<!hoice )\bis none\b|\bof before\b"
    r"|\b[Ww]hoever\b|\banew\b|\bmend(s|ed|ing)?\b|\b(is|are|was|were|be|been) (told|said)\b|, and has\.|\bnobody\b"
    r"|\bgoes? on (?!to\b)|\bso many\b|\bWho [a-z]+s\b|\bthat is due\b|\ball the same\b|\bTested further\b"
    r"|\bstands? (in|on|there|behind|elsewhere|among)\b|\bfell silent\b|\bnone of its own\b|\bof equals\b"
)
"""Phrases that a native reader stumbles over."""

PROTOCOLS = {
    "gemini": re.compile(r"gemini", re.IGNORECASE),
    # "messages" alone is a word of its own, and a member of chat's bodies.
    "messages": re.compile(r"(?i:anthropic|protocols\.messages|/v1/messages)|\bMESSAGES\b"),
}
"""How a file names a client protocol."""
PROVIDERS = re.compile(
    r"(upstream|routing|settings|cli/exec|protocols/chat)/|protocols/upstream\.py|core/(models|thoughts)\.py|redact\.py"
)
"""Files that name the same companies as providers: a backend is not a client protocol."""
MOST_NAMES = 6
"""Files outside its package that may name a client protocol."""

EXAMPLES = (
    ("TurnEvent", "CallDelta", 8),
    ("request field", "verbosity", 5),
    ("member of turn_end", "invalid_arguments", 3),
)
"""(kind of change, the name that an example of it has brought, how many files it may touch)."""


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
    """A package, or the whole, with its budget. `code` is the lines without blanks, comments and docstrings."""

    name: str
    lines: int
    files: int
    code: int
    most_lines: int
    most_files: int

    @property
    def is_over(self) -> bool:
        return self.lines > self.most_lines or self.files > self.most_files

    def __str__(self) -> str:
        return f"{self.lines:,} lines in {self.files} files (budget {self.most_lines:,} in {self.most_files})"


def budgets() -> dict[str, tuple[int, int]]:
    """Lines and files of each package, in the order of the layers."""
    found = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))
    return {name: (entry["lines"], entry["files"]) for name, entry in found.items()}


def sizes(found: list[Module]) -> tuple[list[Size], Size]:
    """Each package and the whole. A package that is not in the table has a budget of nothing."""
    known = budgets()
    names = dict.fromkeys([*known, *(module.package for module in found)])
    rows = []
    for name in names:
        own = [module for module in found if module.package == name]
        lines, code = sum(module.lines for module in own), sum(module.code for module in own)
        rows.append(Size(name, lines, len(own), code, *known.get(name, (0, 0))))
    numbers = ([row.lines, row.files, row.code, row.most_lines, row.most_files] for row in rows)
    return rows, Size("total", *(sum(column) for column in zip(*numbers, strict=True)))


def naming(found: list[Module], name: str) -> list[Module]:
    """The files outside its package that name a client protocol."""
    own = f"protocols/{name}/"
    return [
        module
        for module in found
        if not str(module).startswith(own) and not PROVIDERS.match(str(module)) and PROTOCOLS[name].search(module.text)
    ]


def touching(found: list[Module], name: str) -> list[Module]:
    """The files that name what a change has added: about as many as the next change of its kind would touch."""
    return [module for module in found if re.search(rf"\b{name}\b", module.text)]


def report_changes(found: list[Module], *, verbose: bool) -> list[str]:
    """Print what the example changes touch; returns what is over its target."""
    rows = [(f"client protocol, outside its package: {name}", naming(found, name), MOST_NAMES) for name in PROTOCOLS]
    rows += [(f"{kind}: {name}", touching(found, name), most) for kind, name, most in EXAMPLES]
    print(f"\n{'files that the example changes touch':<52}files / target")
    for title, files, most in rows:
        print(f"{title:<52}{beside(len(files), most)}".rstrip())
        if verbose:
            print(*(f"  {module}" for module in files), sep="\n")
    return [f"{title}: {len(files)} files, at most {most}" for title, files, most in rows if len(files) > most]


def set_budgets(found: list[Module], chosen: list[str]) -> None:
    """Set the budgets of these packages, or of all, to the size that they have now."""
    rows, _ = sizes(found)
    if unknown := [name for name in chosen if name not in {row.name for row in rows}]:
        sys.exit(f"Unknown package {unknown[0]!r}. Choose from {', '.join(row.name for row in rows)}.")
    text = (
        '# Written by `scripts/house --set-budgets [PACKAGE…]`; docs/design.md ("Sizes") says what budgets are for.\n'
    )
    for row in rows:
        most = row.most_lines, row.most_files
        if not chosen or row.name in chosen:
            most = -(-row.lines // STEP) * STEP, row.files
        if row.files:  # else the package is gone
            text += f'"{row.name}" = {{ lines = {most[0]}, files = {most[1]} }}\n'
    BUDGETS.write_text(text, encoding="utf-8")


def beside(value: int, budget: int) -> str:
    return f"{value:>7,} / {budget:<6,}" + ("!" if value > budget else " ")


def over_budget(packages: list[Size]) -> list[str]:
    return [
        f"{row.name} has {row}. Delete or merge what is not needed: `scripts/house -v` lists candidates. If the "
        f"growth is intended, run `scripts/house --set-budgets {row.name}` and say why in the commit."
        for row in packages
        if row.is_over
    ]


def report(found: list[Module], *, verbose: bool) -> list[str]:
    """Print the tables; returns the limits that are exceeded."""
    packages, total = sizes(found)
    print(f"{'package':<16}{'lines / budget':<17}{'files / budget':<17}{'code':>6}   (! is over budget)")
    for row in (*packages, total):
        lines, files = beside(row.lines, row.most_lines), beside(row.files, row.most_files)
        print(f"{row.name:<14}{lines}{files}{row.code:>9,}")
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
    limits = [f"{module}: {module.lines} lines, at most {LARGE}" for module in large]
    return limits + [f"the edge: {edge} lines of code, at most {EDGE_CODE}"] * (edge > EDGE_CODE)


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
    parser.add_argument("--strict", action="store_true", help="exit with 1 also when a limit or a target is exceeded")
    parser.add_argument("--quick", action="store_true", help="check the budgets only, as scripts/check does")
    parser.add_argument(
        "--set-budgets",
        nargs="*",
        metavar="PACKAGE",
        help="set these budgets (default: all) to the sizes",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list the files behind each number")
    options = parser.parse_args()
    found = modules()
    if options.set_budgets is not None:
        set_budgets(found, options.set_budgets)
    packages, total = sizes(found)
    over, limits = over_budget(packages), list[str]()
    if options.quick or options.set_budgets is not None:
        print(f"size: {total}, {total.code:,} of them code")
    else:
        limits = report(found, verbose=options.verbose)
        limits += report_changes(found, verbose=options.verbose)
        limits += report_walks(verbose=options.verbose) if options.walks else []
        print()
    print(*over, *limits, sep="\n", end="\n" if over or limits else "")
    sys.exit(1 if over or (limits and options.strict) else 0)


if __name__ == "__main__":
    main()
