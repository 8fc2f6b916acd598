"""Run BFCL's own checker, from its unpacked wheel, over answers on stdin; one verdict per line on stdout.

This runs in a process and an environment of its own: `python -I bfcl_checker.py DIRECTORY`. The modules that import
half of the machine learning ecosystem are replaced by empty ones; the checker itself is as it came.
"""

from __future__ import annotations

import collections
import importlib
import json
import sys
import types
from typing import Any

STUBS = {
    "bfcl_eval.eval_checker.ast_eval.type_convertor.java_type_converter": "java_type_converter",
    "bfcl_eval.eval_checker.ast_eval.type_convertor.js_type_converter": "js_type_converter",
}


class _Model:
    underscore_to_dot = True
    """As for OpenAI's models: names have underscores instead of dots."""


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    config: Any = types.ModuleType("bfcl_eval.constants.model_config")
    config.MODEL_CONFIG_MAPPING = collections.defaultdict(_Model)
    sys.modules["bfcl_eval.constants.model_config"] = config
    for name, function in STUBS.items():
        module = types.ModuleType(name)
        setattr(module, function, None)
        sys.modules[name] = module
    checker = importlib.import_module("bfcl_eval.eval_checker.ast_eval.ast_checker")
    language = importlib.import_module("bfcl_eval.constants.enums").Language.PYTHON
    for line in sys.stdin:
        row = json.loads(line)
        try:
            found = checker.ast_checker(row["functions"], row["calls"], row["answer"], language, row["category"], "m")
            verdict: dict[str, Any] = {"valid": bool(found["valid"]), "error": found.get("error")}
        except Exception as error:
            verdict = {"valid": False, "error": f"{type(error).__name__}: {error}", "raised": True}
        sys.stdout.write(json.dumps(verdict, default=str) + "\n")


if __name__ == "__main__":
    main()
