from __future__ import annotations

import random

from firesteel.common.backoff import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_after_a_success_the_first_pause_comes_again() -> None:
    backoff = Backoff(1.0, 60.0, factor=3.0)
    assert [backoff.next(), backoff.next()] == [1.0, 3.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_a_first_pause_beyond_the_longest_is_cut() -> None:
    assert Backoff(5.0, 2.0).next() == 2.0


def test_it_stays_at_the_longest_however_often_it_fails() -> None:
    backoff = Backoff(1.0, 10.0)
    assert [backoff.next() for _ in range(5000)][-1] == 10.0


def test_jitter_spreads_the_pauses_as_the_seed_decides() -> None:
    def pauses() -> list[float]:
        backoff = Backoff(1.0, 1.0, jitter=0.25, source=random.Random(7))
        return [backoff.next() for _ in range(100)]

    assert pauses() == pauses()
    assert all(0.75 <= pause_s <= 1.25 for pause_s in pauses())
    assert len(set(pauses())) > 50
