"""The fields with which Flink's clients run a program."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import make_mocked_request

from dispatcher.rest.firesteel import programs
from dispatcher.rest.flink.jars import _arguments, _fields, _overrides
from dispatcher.rest.requests import Refusal


def test_the_body_wins_over_the_parameters_of_the_url() -> None:
    # Flink's dashboard sends both, and the arguments as savepointPath of the URL.
    url = "/jars/1/run?entry-class=a.B&parallelism=2&program-args=x&savepointPath=x"
    body = {"entryClass": None, "programArgs": "y z", "savepointPath": "/savepoint"}
    assert _fields(body, make_mocked_request("POST", url)) == {
        "entryClass": "a.B",
        "parallelism": "2",
        "programArgs": "y z",
        "savepointPath": "/savepoint",
    }


@pytest.mark.parametrize(
    ("fields", "arguments"),
    [
        ({}, []),
        ({"programArgs": "--name 'two words'"}, ["--name", "two words"]),
        ({"programArgsList": ["two words", ""]}, ["two words", ""]),
    ],
)
def test_arguments_are_a_list_or_a_line(fields: dict[str, Any], arguments: list[str]) -> None:
    assert _arguments(fields) == arguments


def test_options_of_the_run_win_over_its_configuration() -> None:
    fields = {
        "flinkConfiguration": {"parallelism.default": "1", "pipeline.max-parallelism": "8"},
        "parallelism": 4,
        "savepointPath": "/savepoint",
        "allowNonRestoredState": True,
        "claimMode": "CLAIM",
    }
    assert _overrides(fields) == {
        "parallelism.default": "4",
        "pipeline.max-parallelism": "8",
        "execution.state-recovery.path": "/savepoint",
        "execution.state-recovery.ignore-unclaimed-state": "true",
        "execution.state-recovery.claim-mode": "CLAIM",
    }
    assert _overrides({"parallelism": "", "allowNonRestoredState": False}) == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"programArgs": "'open"}, "cannot be split"),
        ({"programArgs": "a", "programArgsList": ["b"]}, "both given"),
        ({"programArgsList": [1]}, "list of strings"),
        ({"flinkConfiguration": {"a": 1}}, "object with strings"),
        ({"claimMode": "LEGACY"}, "CLAIM, NO_CLAIM"),
        ({"flinkConfiguration": {"execution.checkpointing.dir": "here"}}, "relative path"),
        ({"savepointPath": 1}, "must be a string"),
    ],
)
def test_bad_fields_are_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(Refusal, match=words):
        _ = _arguments(fields), _overrides(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"options": '{"execution.checkpointing.dir": "here"}'},
        {"options": '{"execution.checkpointing.savepoint-dir": "here"}'},
        {"savepoint": "here"},
    ],
)
def test_a_program_with_its_request_names_absolute_paths(fields: dict[str, str]) -> None:
    with pytest.raises(Refusal, match="relative path"):
        programs._overrides(fields)
