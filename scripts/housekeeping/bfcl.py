"""Import BFCL's single-turn categories, and compare the scoring with BFCL's own checker on made-up answers."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bridge.lab import SHIPPED, Called, Case, Sample, case_from_dict, score
from bridge.lab.imports import checked
from bridge.lab.imports.bfcl import KINDS, Wheel, bfcl_drafts, function_name

CASES, ALL_CASES = 3_470, 3_491
AGREEMENT = 0.995
EACH = 6
"""Answers that are made up for each case."""
SEED = 7
CHECKER = Path(__file__).with_name("bfcl_checker.py")
Json = dict[str, Any]


@dataclass(frozen=True)
class MadeUp:
    """An answer, how it was made, and what both sides are given."""

    case: Case
    category: str
    how: str
    calls: list[Json]
    functions: list[Json]
    answer: list[Json]


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "turnbridge" / "bfcl"


def find_wheel() -> Path:
    """The wheel in the cache, or from the package index; it is downloaded, not installed."""
    directory = cache()
    found = sorted(directory.glob("bfcl_eval-*.whl"))
    if not found:
        directory.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            str(directory),
            "bfcl-eval",
        ]
        subprocess.run(command, check=True, timeout=300)
        found = sorted(directory.glob("bfcl_eval-*.whl"))
    return found[-1]


def make_up(case: Case, row: Json, answer: list[Json], category: str, rng: random.Random) -> Iterator[MadeUp]:
    """An answer with possible values, and others with one thing changed."""
    for number in range(EACH):
        calls = [possible_call(each, rng) for each in answer]
        how = "possible"
        if number:
            how = damage(calls, row["function"], answer, rng)
        yield MadeUp(case, category, how, calls, row["function"], answer)


def possible_call(possible: Json, rng: random.Random) -> Json:
    ((name, arguments),) = possible.items()
    made = {}
    for parameter, values in arguments.items():
        there = [value for value in values if value != ""] if isinstance(values, list) else [values]
        if isinstance(values, list) and "" in values and (not there or rng.random() < 0.5):
            continue
        if there:
            made[parameter] = one_of(rng.choice(there), rng)
    return {function_name(name): made}


def one_of(value: Any, rng: random.Random) -> Any:
    """A value of a possible one: the members of an object are lists of possible values."""
    if isinstance(value, dict):
        members = {}
        for name, values in value.items():
            there = [each for each in values if each != ""] if isinstance(values, list) else [values]
            if there:
                members[name] = one_of(there[0], rng)
        return members
    return [one_of(each, rng) for each in value] if isinstance(value, list) else value


def damage(calls: list[Json], functions: list[Json], answer: list[Json], rng: random.Random) -> str:
    """Change one thing in place; what was changed."""
    index = rng.randrange(len(calls))
    ((_, arguments),) = calls[index].items()
    names = list(arguments)
    kinds = ["extra argument", "other function", "call twice", "no call", "order"]
    kinds += ["without an argument", "other value", "other type", "other spelling", "null", "empty"] if names else []
    how = rng.choice(kinds)
    if how == "extra argument":
        arguments["invented_x"] = 1
    elif how == "other function":
        calls[index] = {function_name(rng.choice(functions)["name"]): arguments}
    elif how == "call twice":
        calls.append(calls[index])
    elif how == "no call":
        del calls[index]
    elif how == "order":
        rng.shuffle(calls)
    else:
        chosen = rng.choice(names)
        value = arguments[chosen]
        if how == "without an argument":
            del arguments[chosen]
        elif how == "other value":
            arguments[chosen] = changed(value)
        elif how == "other type":
            arguments[chosen] = [value] if isinstance(value, str) else str(value)
        elif how == "other spelling":
            arguments[chosen] = respelled(value)
        else:
            arguments[chosen] = None if how == "null" else rng.choice(["", [], {}, 0])
    return how


def changed(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + " zz"
    if isinstance(value, list):
        return [*value, *value[:1]] if value else [1]
    return {**value, "invented": 1} if isinstance(value, dict) else 1


def respelled(value: Any) -> Any:
    """What BFCL does not count in a text, and floats for integers."""
    if isinstance(value, str):
        return value.upper().replace(" ", "_") + "."
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, list):
        return [respelled(each) for each in value]
    if isinstance(value, dict):
        return {name: respelled(each) for name, each in value.items()}
    return value


def ours(made: MadeUp) -> bool:
    calls = tuple(Called(name, json.dumps(each[name])) for each in made.calls for name in each)
    return score(made.case, SHIPPED["native"], Sample(calls=calls)).passed


def theirs(wheel: Path, answers: list[MadeUp]) -> list[Json]:
    """BFCL's verdicts, from its own code in a process and a directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(directory, [name for name in archive.namelist() if name.endswith(".py")])
        lines = "".join(
            json.dumps({"functions": m.functions, "calls": m.calls, "answer": m.answer, "category": m.category}) + "\n"
            for m in answers
        )
        done = subprocess.run(
            [sys.executable, "-I", str(CHECKER), directory],
            input=lines,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            env={"PATH": os.environ.get("PATH", "")},
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="scripts/bfcl")
    parser.add_argument("--wheel", type=Path, help="the wheel; without it, it is downloaded to the cache")
    parser.add_argument("--check", action="store_true", help="exit with 1 below the targets")
    parser.add_argument("--show", type=int, default=20, metavar="N", help="differences that are printed")
    options = parser.parse_args()
    path = options.wheel or find_wheel()
    wheel, rng = Wheel(path), random.Random(SEED)
    answers: list[MadeUp] = []
    imported = total = 0
    for category, kind in KINDS.items():
        found = checked(bfcl_drafts(wheel, category))
        count = len(found.cases) + found.left_out.total()
        imported, total = imported + len(found.cases), total + count
        print(f"{category:24} {len(found.cases):5} of {count:5}", *found.left_out)
        if kind in ("irrelevance", "relevance"):
            continue
        rows = {row["id"]: row for row in wheel.rows(f"bfcl_eval/data/BFCL_v4_{category}.json")}
        listed = wheel.rows(f"bfcl_eval/data/possible_answer/BFCL_v4_{category}.json")
        cases = {case["id"]: case_from_dict(case) for case in found.cases}
        for entry in listed:
            case = cases.get(entry["id"].lower().replace("_", "-"))
            if case is not None:
                answers += make_up(case, rows[entry["id"]], entry["ground_truth"], category, rng)
    print(f"{'in all':24} {imported:5} of {total:5}")
    verdicts = theirs(path, answers)
    differences = [
        (made, verdict, passed)
        for made, verdict in zip(answers, verdicts, strict=True)
        if (passed := ours(made)) != verdict["valid"]
    ]
    agreed = len(answers) - len(differences)
    accepted = sum(verdict["valid"] for verdict in verdicts)
    raised = sum("raised" in verdict for verdict in verdicts)
    print(f"made-up answers: {len(answers)}, of which BFCL accepts {accepted}; its checker raises on {raised}")
    for how, count in sorted(Counter(made.how for made in answers).items()):
        print(f"  {how:20} {count:5}, differences {sum(made.how == how for made, _, _ in differences)}")
    print(f"agreement: {agreed} of {len(answers)} ({agreed / len(answers):.2%})")
    for made, verdict, passed in differences[: options.show]:
        print(f"{made.case.id} ({made.how}): ours {passed}, theirs {verdict['valid']} {str(verdict['error'])[:200]}")
        print(f"  {json.dumps(made.calls)[:300]}")
    good = imported >= CASES and total == ALL_CASES and len(answers) >= 14_000 and agreed / len(answers) >= AGREEMENT
    sys.exit(0 if good or not options.check else 1)


if __name__ == "__main__":
    main()
