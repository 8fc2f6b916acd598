"""The licences of what an installation with all extras brings, and the list of its parts (SBOM)."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from building import ROOT, Failed, run, say

ALLOWED = {
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "MIT-0",
    "MPL-2.0",  # used as it is; its conditions are about changed files
    "PSF-2.0",
    "Python-2.0",
    "LGPL-3.0-only",  # loaded as a library of its own, which the user can replace
    "Unlicense",
    "Zlib",
}
"""SPDX identifiers. A dependency under another licence needs a decision, and then a line here."""
SPELLED = {
    "3-clause bsd license": "BSD-3-Clause",
    "apache 2.0": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd": "BSD-3-Clause",
    "bsd license": "BSD-3-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "isc license (iscl)": "ISC",
    "lgpl-3.0-only": "LGPL-3.0-only",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
"""Older metadata spells licences out."""


READ = """
import json
from importlib.metadata import distributions
print(json.dumps([
    {
        "name": each.metadata["Name"],
        "expression": each.metadata.get("License-Expression"),
        "classifiers": each.metadata.get_all("Classifier") or [],
        "text": each.metadata.get("License") or "",
    }
    for each in distributions()
]))
"""
"""Runs in the environment that is checked. Its pip may be too old to report the expressions of newer metadata."""


def check(prefix: Path) -> None:
    """Every licence of every package in an environment is allowed; one that is not, or is unknown, fails."""
    found = json.loads(run([prefix / "bin/python", "-c", READ]))
    refused = {each["name"]: licences_of(each) for each in found if not is_allowed(licences_of(each))}
    if refused:
        raise Failed(f"licences that scripts/packaging/licences.py does not allow: {refused}")
    say(f"the licences of {len(found)} packages are allowed")


def licences_of(metadata: dict[str, Any]) -> str:
    """An SPDX expression where there is one, else the classifiers, else the old free text."""
    if expression := metadata["expression"]:
        return str(expression)
    classifiers = (each for each in metadata["classifiers"] if each.startswith("License :: "))
    named = [each.rpartition(" :: ")[2] for each in classifiers]
    named = [each for each in named if each != "OSI Approved"]
    # A text of several lines is the licence itself, whose first line is its name.
    named = named or [metadata["text"].strip().partition("\n")[0]]
    return " AND ".join(SPELLED.get(each.lower(), each) for each in named)


def is_allowed(expression: str) -> bool:
    """Of alternatives one is enough; of a conjunction each is needed."""
    alternatives = re.split(r"\s+OR\s+", expression.replace("(", " ").replace(")", " ").strip())
    return any(all(part.strip() in ALLOWED for part in re.split(r"\s+AND\s+", each)) for each in alternatives)


def write_sbom(prefix: Path, target: Path) -> None:
    """A CycloneDX document of an environment, the same for the same packages."""
    tool = Path(sys.executable).parent / "cyclonedx-py"
    options = ["--pyproject", str(ROOT / "pyproject.toml"), "--output-reproducible", "--output-format", "JSON"]
    text = run([tool, "environment", *options, prefix / "bin/python"])
    document = json.loads(text)
    names = {component["name"].lower() for component in document["components"]}
    if document["bomFormat"] != "CycloneDX" or not {"trio", "pydantic"} <= names:
        raise Failed(f"the SBOM is incomplete: {sorted(names)}")
    target.write_text(text, encoding="utf-8")
    say(f"SBOM with {len(names)} components")
