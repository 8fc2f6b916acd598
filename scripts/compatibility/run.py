"""Try versions of the real Codex and write docs/compatibility.md: see scripts/codex-matrix."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(HERE)]

from checks import NATIVE_CHECKS, TEXT_CHECKS, Result, try_version  # noqa: E402
from real import codex_binaries  # noqa: E402
from surface import difference, read_schema, surface, used_names  # noqa: E402

PAGE = ROOT / "docs/compatibility.md"
RECORDED = ROOT / "fixtures/codex/surface.txt"
VERSIONS = (
    *("0.107.0", "0.118.0", "0.125.0", "0.132.0", "0.136.0", "0.145.0", "0.150.1", "0.155.1", "0.159.3", "0.161.0"),
    *("0.163.0", "0.164.0", "0.166.0", "0.169.0"),
)
"""Those of the page: every version that changed something for the bridge, and some between them."""
KEPT = (codex_binaries.CURRENT, codex_binaries.LEGACY, codex_binaries.NEWEST)
NATIVE_SINCE = (0, 145)
TESTED_SINCE = (0, 155)
"""What the tests expect of the pinned version does not hold for earlier ones."""
OLD = (0, 120)
"""Before this version a Codex brings prompts and tools of its own that cannot be switched off."""
MOST_BYTES = 2000
"""How much the bridge and Codex may add to a request without tools."""


def published() -> list[str]:
    """All released versions, oldest first."""
    command = ["npm", "view", "@openai/codex", "versions", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        sys.exit(f"npm cannot list the versions of Codex: {done.stderr.strip()[-300:]}")
    found = {
        match[1] for each in json.loads(done.stdout) if (match := re.fullmatch(r"(\d+\.\d+\.\d+)(-linux-x64)?", each))
    }
    return sorted(found, key=numbers)


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def fetched(version: str) -> Path:
    subprocess.run([sys.executable, str(ROOT / "scripts/fetch-codex"), version], check=True)
    binary = codex_binaries.find(version)
    if isinstance(binary, str):
        sys.exit(binary)
    return binary


def run_tests(binary: Path) -> str:
    """Run tests/real with this binary in place of the pinned one. Returns how many passed, of how many."""
    pinned = "TURNBRIDGE_CODEX_" + "_".join(codex_binaries.CURRENT.split(".")[:2])
    command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "not deep", "tests/real"]
    environment = os.environ | {pinned: str(binary)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800, check=False)
    counts = {name: int(count) for count, name in re.findall(r"(\d+) (passed|failed|errors?)", done.stdout[-300:])}
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))))
    return f"{counts.get('passed', 0)} of {sum(counts.values())}"


def examine(version: str, used: frozenset[str], *, tests: bool = False) -> tuple[Result, list[str] | None]:
    """The checks, and the part of the protocol that the bridge uses; with `tests` also the tests of the real Codex."""
    binary = fetched(version)
    print(f"codex {version}: running {len(TEXT_CHECKS)} checks on two endpoints, and the native ones", flush=True)
    result = try_version(version, native=numbers(version) >= NATIVE_SINCE)
    if numbers(version) >= OLD and result.figures.get("bytes, plain", 0) > MOST_BYTES:
        result.failed["overhead"] = f"{result.figures['bytes, plain']} bytes reach the provider for one letter"
    if tests and numbers(version) >= TESTED_SINCE:
        print(f"codex {version}: running tests/real (two minutes)", flush=True)
        result.figures["tests"] = run_tests(binary)
    try:
        lines = surface(read_schema(binary), used)
    except (RuntimeError, subprocess.SubprocessError) as error:
        print(f"codex {version}: no schema: {error}")
        lines = None
    print(f"codex {version}: {result.passed} passed, {len(result.failed)} failed, {result.figures}", flush=True)
    for name, why in result.failed.items():
        print(f"    {name}: {why}", flush=True)
    return result, lines


def record(version: str, lines: list[str]) -> None:
    RECORDED.parent.mkdir(parents=True, exist_ok=True)
    RECORDED.write_text("\n".join([version, *lines]) + "\n", encoding="utf-8")
    print(f"written: {RECORDED.relative_to(ROOT)}")


def nightly(used: frozenset[str]) -> int:
    """Try the newest version against what was recorded. 1 if a check fails or the protocol differs."""
    version = published()[-1]
    result, lines = examine(version, used)
    recorded = RECORDED.read_text(encoding="utf-8").splitlines()
    changes = difference(recorded[1:], lines or [])
    if changes:
        print(f"\nWhat the bridge uses of the protocol differs between {recorded[0]} (recorded) and {version}:")
        print("\n".join(f"    {line}" for line in changes))
    if not result.failed and not changes:
        print(f"\nCodex {version} passes all checks, and nothing that the bridge uses has changed since {recorded[0]}.")
        return 0
    print("\nRead the differences, adapt bridge/appserver, then run scripts/codex-matrix --write.")
    return 1


PAGE_TEXT = """\
# Versions of Codex

Written by `scripts/codex-matrix --write`: do not edit. Each version ran as a real binary behind a bridge, in front of a scripted
provider: {checks} checks on `/v1/responses` and `/v1/chat/completions`, and from 0.145 on {native} of them with native tools.
`scripts/codex-matrix --nightly` tries the newest version, and exits with 1 if a check fails or if Codex has changed something that
the bridge uses.

| Codex | checks | tests/real | plain request | one tool: text, native | tools of its own | first answer | stop |
|---|---|---|---|---|---|---|---|
{rows}

tests/real expects what the pinned version does, so a newer one that reports an error better fails there too (three tests, since
0.166). The sizes are those of the body that reaches the provider for a request of one letter, without tools and with one tool in each
tool mode. A first answer includes the start of the bridge and of Codex.

## Failed checks

{failures}

## Changes of the protocol

Only what the bridge uses: its calls with their required members, the notifications and members that it reads, every request of
the server and every kind of error.

{changes}
"""  # noqa: E501


def row(result: Result) -> str:
    """A version in the table."""
    figures = result.figures
    total = result.passed + len(result.failed)

    def size(name: str) -> str:
        return f"{figures[name]:,} B" if name in figures else "–"

    own = figures.get("tools of its own")
    cells = [
        result.version + (" (pinned)" if result.version == codex_binaries.CURRENT else ""),
        f"{result.passed} of {total}" if result.failed else f"all {total}",
        figures.get("tests", "–"),
        size("bytes, plain"),
        f"{size('bytes, one tool, text')}, {size('bytes, one tool, native')}",
        "–" if own is None else ", ".join(own) or "none",
        f"{figures.get('first answer, s', '–')} s",
        f"{figures.get('stop, s', '–')} s",
    ]
    return f"| {' | '.join(cells)} |"


def page(results: list[Result], changes: dict[str, list[str]]) -> str:
    """docs/compatibility.md."""
    failures = [
        "\n".join([f"**{result.version}**", "", *(f"* {name}: {why}" for name, why in result.failed.items())])
        for result in results
        if result.failed
    ]
    changed = [
        f"**{versions}**\n\n" + ("\n".join(["```diff", *lines, "```"]) if lines else "Nothing.")
        for versions, lines in changes.items()
    ]
    return PAGE_TEXT.format(
        checks=len(TEXT_CHECKS),
        native=len(NATIVE_CHECKS),
        rows="\n".join(map(row, results)),
        failures="\n\n".join(failures) or "None.",
        changes="\n\n".join(changed),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/codex-matrix", description="Try versions of the real Codex.")
    parser.add_argument("versions", nargs="*", help="such as 0.166.0, or newest; by default those of the page")
    parser.add_argument("--write", action="store_true", help="write docs/compatibility.md and the recorded surface")
    parser.add_argument("--nightly", action="store_true", help="try the newest version against what was recorded")
    parser.add_argument("--tests", action="store_true", help="also run tests/real on each version since 0.155")
    parser.add_argument("--tidy", action="store_true", help="delete each version afterwards that the tests do not need")
    parser.add_argument(
        "--record", action="store_true", help="only record what the bridge uses now of the newest protocol"
    )
    options = parser.parse_args()
    used = used_names()
    if options.record:
        record(codex_binaries.NEWEST, surface(read_schema(fetched(codex_binaries.NEWEST)), used))
        return 0
    if options.nightly:
        return nightly(used)
    wanted = {published()[-1] if version == "newest" else version for version in options.versions or VERSIONS}
    results, changes = [], {}
    before: tuple[str, list[str]] | None = None
    for version in sorted(wanted, key=numbers):
        result, lines = examine(version, used, tests=options.tests)
        results.append(result)
        if lines is not None:
            if before is not None:
                changes[f"{before[0]} → {version}"] = difference(before[1], lines)
            before = version, lines
        if options.tidy and version not in KEPT:
            shutil.rmtree(codex_binaries.cache_dir() / version)
    text = page(results, changes)
    if options.write:
        PAGE.write_text(text, encoding="utf-8")
        if before is not None:
            record(*before)
        print(f"written: {PAGE.relative_to(ROOT)}")
    else:
        print(text)
    return int(any(result.failed for result in results if numbers(result.version) >= NATIVE_SINCE))


if __name__ == "__main__":
    sys.exit(main())
