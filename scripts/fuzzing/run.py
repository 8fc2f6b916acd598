"""Fuzz the targets of tests/fuzz for a while, and keep what reaches more of the code than before.

Each target runs in a process of its own (`one.py`), on inputs that atheris mutates from those in fixtures/corpus. What
it finds is written to fixtures/corpus/TARGET/found-…, where the plain tests replay it: fix the code, and name a test
after it. With `--keep` the corpus is built again from all inputs that count, as few and as small as possible.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from shlex import quote

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORPUS = ROOT / "fixtures" / "corpus"
PROPERTIES = "properties"
MAX_FILES = 100
MAX_BYTES = 4096
FOUND = "found-"
EXAMPLES_PER_MINUTE = 250

sys.path.insert(0, str(ROOT / "tests"))


def targets() -> list[str]:
    """The names of all targets."""
    from fuzz.targets import TARGETS

    return [*TARGETS, PROPERTIES]


def fuzz(target: str, seconds: float, *, keep: bool) -> bool:
    """Run one target for so long; whether nothing was found."""
    kept = CORPUS / target
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="turnbridge-fuzz-") as name:
        work = Path(name)
        (work / "new").mkdir()
        limits = [f"-max_total_time={seconds:.0f}", f"-max_len={MAX_BYTES}", "-timeout=20", "-rss_limit_mb=2048"]
        artifacts = f"-artifact_prefix={work}/{FOUND}"
        code = one(target, work, [*limits, artifacts, "-print_final_stats=1", str(work / "new"), str(kept)])
        found = [path for path in work.iterdir() if path.name.startswith(FOUND)]
        for path in found:
            shutil.copy(path, kept / path.name[:24])
            print(f"FOUND by {target}: {kept / path.name[:24]}", flush=True)
        if keep:
            minimise(target, work, kept)
    return code == 0 and not found


def one(target: str, work: Path, options: list[str]) -> int:
    """One run of libFuzzer on a target. To merge it runs itself again, and so has to be a program."""
    program = work / "fuzzer"
    script = quote(str(HERE / "one.py"))
    program.write_text(f'#!/bin/sh\nexec {quote(sys.executable)} -Wignore {script} "$0" {target} "$@"\n')
    program.chmod(0o755)
    return subprocess.run([program, *options], cwd=ROOT, check=False).returncode


def minimise(target: str, work: Path, kept: Path) -> None:
    """The fewest inputs that reach as much as all do: at most MAX_FILES, the small ones first."""
    (work / "merged").mkdir()
    # By what is reached, not by how often: else hundreds of inputs would count.
    options = ["-merge=1", "-use_counters=0", f"-max_len={MAX_BYTES}", f"-artifact_prefix={work}/merging-"]
    one(target, work, [*options, str(work / "merged"), str(work / "new"), str(kept)])
    merged = sorted((work / "merged").iterdir(), key=lambda path: path.stat().st_size)
    if not merged:
        raise SystemExit(f"the corpus of {target} could not be merged; it is left as it was")
    found = [path for path in kept.iterdir() if path.name.startswith(FOUND)]
    for path in kept.iterdir():
        if path not in found:
            path.unlink()
    # An even choice from the small to the large: the large ones reach what the small ones cannot.
    room = MAX_FILES - len(found)
    step = max(1.0, len(merged) / room)
    for number in range(min(room, len(merged))):
        path = merged[int(number * step)]
        shutil.copy(path, kept / path.name[:16])
    print(f"{target}: {len(list(kept.iterdir()))} inputs are kept, of {len(merged)} that count", flush=True)


def run_properties(minutes: float) -> bool:
    """All properties, with as many examples as fit into this time on a free core; whether all hold."""
    examples = max(100, int(EXAMPLES_PER_MINUTE * minutes))
    environment = os.environ | {"HYPOTHESIS_PROFILE": "deep", "HYPOTHESIS_EXAMPLES": str(examples)}
    files = [str(path) for path in sorted((ROOT / "tests" / "property").glob("test_*_properties.py"))]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-v", *files]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="*", help=f"{', '.join(targets())}; all of them when none is named")
    parser.add_argument("--minutes", type=float, default=10, help="for each target (default 10)")
    parser.add_argument("--keep", action="store_true", help="build the corpus again from the inputs that add coverage")
    options = parser.parse_args()
    unknown = set(options.target) - set(targets())
    if unknown:
        parser.error(f"unknown target {', '.join(sorted(unknown))}; known: {', '.join(targets())}")
    broken = []
    for target in options.target or targets():
        print(f"-- {target}: {options.minutes:g} minutes", flush=True)
        if target == PROPERTIES:
            well = run_properties(options.minutes)
        else:
            well = fuzz(target, 60 * options.minutes, keep=options.keep)
        if not well:
            broken.append(target)
    print(f"found something: {', '.join(broken)}" if broken else "nothing was found")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
