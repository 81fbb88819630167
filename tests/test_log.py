"""Log lines: one each, whatever is in them, in either form."""

import json
import logging
import subprocess
import sys

import pytest

from app.log import JsonFormatter, TextFormatter, fields, visible
from tests.servers import environment

FORGED = 'bob\n2026-01-01 00:00:00 INFO request status=200\r\x1b[2K\x85\u2028\u202e"'


def line(formatter: logging.Formatter, message: str, *arguments: object, **values: object) -> str:
    record = logging.LogRecord("segue.test", logging.INFO, "", 0, message, arguments, None)
    record.__dict__.update(fields(**values))
    return formatter.format(record)


def test_a_text_line_has_the_message_and_its_fields() -> None:
    said = line(TextFormatter(), "request %d", 7, status=200, user="ann", seconds=0.12345, nothing=None)
    assert said.endswith(" INFO request 7 status=200 user=ann seconds=0.123")


def test_a_json_line_has_the_same_as_an_object() -> None:
    said = json.loads(line(JsonFormatter(), "request %d", 7, status=200, seconds=0.123456789, nothing=None))
    assert said.pop("time").startswith("20")
    assert said == {
        "level": "INFO", "logger": "segue.test", "message": "request 7",
        "status": 200, "seconds": 0.123457, "nothing": None,
    }  # fmt: skip


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_no_value_looks_like_another_line(formatter: logging.Formatter) -> None:
    for said in (line(formatter, "request", user=FORGED), line(formatter, "request %s", FORGED)):
        assert said.isprintable()


def test_a_value_with_spaces_or_signs_of_the_form_is_quoted() -> None:
    assert line(TextFormatter(), "m", user="a b").endswith('user="a b"')
    assert line(TextFormatter(), "m", user="x status=200").endswith('user="x status=200"')
    assert line(TextFormatter(), "m", user='a"b').endswith(r'user="a\"b"')
    assert line(TextFormatter(), "m", user="").endswith('user=""')


def test_a_lone_surrogate_is_written_as_an_escape() -> None:
    assert line(TextFormatter(), "m", user="\ud800").encode().endswith(rb"user=\ud800")
    assert line(JsonFormatter(), "m", user="\ud800").encode()


def test_what_prints_stays_as_it_is() -> None:
    assert visible("Grüße, 日本 🙂") == "Grüße, 日本 🙂"


def test_a_traceback_is_set_in_or_part_of_the_object() -> None:
    record = logging.LogRecord("segue.test", logging.ERROR, "", 0, "failed", (), None)
    try:
        raise ValueError(FORGED)
    except ValueError:
        record.exc_info = sys.exc_info()
    first, *others = TextFormatter().format(record).split("\n")
    assert first.endswith("ERROR failed")
    assert "Traceback" in others[0]
    assert all(other.startswith("    ") and other.isprintable() for other in others)
    assert "ValueError" in json.loads(JsonFormatter().format(record))["traceback"]


def test_a_warning_of_pythons_is_a_line_of_the_log() -> None:
    code = 'import warnings; from app.log import set_up; set_up(as_json=True); warnings.warn("look out")'
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment())
    (only,) = said.stderr.splitlines()
    assert "look out" in json.loads(only)["message"]
