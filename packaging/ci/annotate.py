#!/usr/bin/env python3
"""Prints what failed in a JUnit report as GitHub's annotations, ten at most: more are not shown.

usage: annotate.py REPORT
"""

import sys
import xml.etree.ElementTree as ElementTree

LIMIT = 10


def escaped(text, more=""):
    """As a workflow command has it; in a property also without what ends one."""
    for character in "%\r\n" + more:
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def main():
    cases = ElementTree.parse(sys.argv[1]).iter("testcase")
    failed = [(case, case[0]) for case in cases if len(case) and case[0].tag in ("failure", "error")]
    for case, failure in failed[:LIMIT]:
        text = failure.get("message") or failure.text or ""
        print(f"::error title={escaped('anyring chaos: ' + case.get('name', ''), ':,')}::{escaped(text)}")
    if len(failed) > LIMIT:
        print(f"::notice::{len(failed) - LIMIT} more seeds fail: see the report")


main()
