"""Fixtures of tests that look at pages."""

from collections.abc import Iterator

import pytest

from tests.ringsim.report.pages.headless_chromium import Browser


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One for all pages, as it takes longer to start than to show one."""
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
