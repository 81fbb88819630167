"""The audit: a known fault fails, and what could not be asked is not called clean."""

import json
from typing import Any

import pytest

CLEAN = {"name": "a", "version": "1.0", "vulns": []}
FAULTY = {"name": "b", "version": "2.0", "vulns": [{"id": "PYSEC-2026-1", "fix_versions": ["2.1", "3.0"]}]}
UNKNOWN = {"name": "c", "skip_reason": "Dependency not found on PyPI and could not be audited: c (3.0)"}


@pytest.fixture
def said(audit: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The exit code and the words for a report of pip-audit's."""

    def run(*packages: dict[str, Any]) -> tuple[int, str]:
        report = json.dumps({"dependencies": packages}) if packages else ""
        monkeypatch.setattr(audit, "ask", lambda: report)
        code = audit.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return run


def test_a_known_fault_fails_and_is_named_with_its_remedy(said: Any) -> None:
    code, words = said(CLEAN, FAULTY, UNKNOWN)
    assert code == 1
    assert "b 2.0: PYSEC-2026-1, mended in 2.1, 3.0" in words
    assert "2 of 3" in words


def test_clean_packages_pass(said: Any) -> None:
    assert said(CLEAN) == (0, "scripts/audit: 1 of 1 packages looked up, 0 known faults\n")


def test_without_an_answer_it_is_not_run_and_does_not_fail(said: Any) -> None:
    for packages in ((), (UNKNOWN, UNKNOWN)):
        code, words = said(*packages)
        assert code == 0
        assert "not run" in words


def test_it_is_not_run_where_pip_audit_is_missing(audit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit.sys, "executable", "/bin/false")
    assert audit.ask() == ""
