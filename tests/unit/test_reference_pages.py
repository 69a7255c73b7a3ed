"""The generated pages of docs/reference are up to date with the code."""

from __future__ import annotations

import pytest

from firesteel.common.config import parse
from firesteel.common.config.options import OPTIONS
from scripts.reference_pages import FOLDER, PAGES, default_text


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (FOLDER / page).read_text() == PAGES[page](), "run `make reference`"


@pytest.mark.parametrize("key", OPTIONS)
def test_a_default_may_be_written_as_the_page_has_it(key: str) -> None:
    option = OPTIONS[key]
    assert parse(option, default_text(option)) == option.default
