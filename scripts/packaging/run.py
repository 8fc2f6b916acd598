"""Build the packages, prove them, and describe them: see scripts/package."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import licences
from building import ROOT, Failed, build_twice, check_contents
from installed import Environment, check_commands, check_completion, check_tools


def main() -> int:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    try:
        with tempfile.TemporaryDirectory(prefix="turnbridge-package-") as scratch:
            directory = Path(scratch)
            wheel, sdist = build_twice(directory / "builds", out)
            check_contents(wheel, sdist)
            environment = Environment(directory / "empty environment", wheel)
            check_commands(environment, directory / "work")
            check_completion(environment)
            check_tools(wheel, directory / "tools")
            environment.add_extras(wheel)
            licences.check(environment.prefix)
            licences.write_sbom(environment.prefix, wheel.with_name(f"{wheel.stem}.cdx.json"))
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in sorted(out.glob(f"turnbridge-{wheel.name.split('-')[1]}*")):
        print(f"{path}  {path.stat().st_size // 1024} KiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
