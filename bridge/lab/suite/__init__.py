"""Suites: files of cases, read and checked. See `schema.json` for the format of a file.

Every fault names the file, the line and the key; all faults of a suite are told at once, and nothing of it is given
before there are none.
"""

from bridge.lab.suite.load import Suite, case_from_dict, load_suite

__all__ = ["Suite", "case_from_dict", "load_suite"]
