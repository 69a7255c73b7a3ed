"""docs/configuration.md is what the options say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from firesteel.common.config import parse
from firesteel.common.config.options import OPTIONS
from firesteel.common.config.reference import default_text, markdown

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_in_step_with_the_options() -> None:
    assert PAGE.read_text() == markdown(), (
        "python -m firesteel.common.config.reference > docs/configuration.md"
    )


def test_the_module_prints_it() -> None:
    completed = subprocess.run(
        [sys.executable, "-m", "firesteel.common.config.reference"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert completed.stdout == markdown()


@pytest.mark.parametrize("key", OPTIONS)
def test_a_default_may_be_written_as_the_page_has_it(key: str) -> None:
    option = OPTIONS[key]
    assert parse(option, default_text(option)) == option.default
