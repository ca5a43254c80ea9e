"""The echo of our own status wakes nobody; whatever a person does wakes the worker."""

from __future__ import annotations

from typing import Any

import pytest

from curateevo_operator.handlers import News
from curateevo_operator.workers import Key

KEY = Key("ns", "evo")
META: dict[str, Any] = {"uid": "u", "generation": 1, "resourceVersion": "1", "annotations": {"a": "1"}}


def test_a_status_alone_is_no_news() -> None:
    news = News()
    assert news.tells(KEY, META)
    assert not news.tells(KEY, META | {"resourceVersion": "2", "finalizers": ["curateevo.io/cleanup"]})


@pytest.mark.parametrize(
    "change",
    [{"generation": 2}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"annotations": {"a": "2"}}, {"uid": "v"}],
)
def test_what_a_person_does_is_news(change: dict[str, Any]) -> None:
    news = News()
    news.tells(KEY, META)
    assert news.tells(KEY, META | change)


def test_the_end_is_news_and_so_is_another_of_that_name() -> None:
    news = News()
    news.tells(KEY, META)
    assert news.tells(KEY, None) and news.tells(KEY, META)
    assert news.tells(Key("other", "evo"), META)
