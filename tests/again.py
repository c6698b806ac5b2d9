"""A plugin of pytest: `--again` runs tests that failed beside others once more, each alone in a process of its own.

Invariant: both results are printed. The run fails if one of these tests fails alone, too, or if more than `MOST`
failed.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from _pytest.terminal import TerminalReporter

MOST: Final = 3
RERUN: Final = "rerun alone"  # in pytest's closing line, beside "passed"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--again", action="store_true", help=f"if at most {MOST} tests failed: run them again, each alone")


@pytest.hookimpl(trylast=True)  # when the workers have ended
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    config = session.config
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if not config.getoption("--again") or hasattr(config, "workerinput") or not isinstance(reporter, TerminalReporter):
        return
    reports = [report for kind in ("failed", "error") for report in reporter.stats.get(kind, [])]
    failed = list(dict.fromkeys(report.nodeid for report in reports))
    if exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail or session.shouldstop or not failed:
        return
    if not all(isinstance(report, pytest.TestReport) for report in reports):
        return  # a file that cannot be imported
    reporter.ensure_newline()
    if len(failed) > MOST:
        reporter.write_line(f"{len(failed)} tests failed; at most {MOST} are run once more, alone.")
        return
    reporter.summary_errors()
    reporter.summary_failures()
    reporter.write_sep("=", "once more, each alone")
    passed = [nodeid for nodeid in failed if _passes_alone(config, reporter, nodeid)]
    if passed:
        _count(reporter, passed)
        reporter.write_line(f"{len(passed)} tests failed beside the others and passed alone: {', '.join(passed)}")
    if len(passed) == len(failed):
        session.exitstatus = pytest.ExitCode.OK


def _passes_alone(config: pytest.Config, reporter: TerminalReporter, nodeid: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={results}", nodeid]
        done = subprocess.run(command, cwd=config.invocation_params.dir, capture_output=True, text=True, check=False)
        reporter.write(done.stdout + done.stderr)
        skipped = [suite.get("skipped") for suite in ElementTree.parse(results).iter("testsuite")]
    return done.returncode == 0 and skipped == ["0"]


def _count(reporter: TerminalReporter, passed: list[str]) -> None:
    """Their results are those of the second run."""
    for kind in ("failed", "error"):
        left = [report for report in reporter.stats.pop(kind, []) if report.nodeid not in passed]
        if left:
            reporter.stats[kind] = left
    known = {report.nodeid for report in reporter.stats.get("passed", [])}  # what failed at its end has passed, too
    reporter._add_stats("passed", [_result(nodeid) for nodeid in passed if nodeid not in known])
    reporter._add_stats(RERUN, [_result(nodeid) for nodeid in passed])


def _result(nodeid: str) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", None, ""), {}, "passed", None, "call")
