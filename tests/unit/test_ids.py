from __future__ import annotations

from firesteel.common.ids import IdSource, is_id, random_id, stable_id


def test_a_seed_determines_the_ids() -> None:
    one, other = IdSource(b"seed"), IdSource(b"seed")
    ids = [one.next() for _ in range(100)]
    assert ids == [other.next() for _ in range(100)]
    assert len(set(ids)) == 100
    assert all(map(is_id, ids))
    assert IdSource(b"another seed").next() not in ids


def test_without_a_seed_sources_differ() -> None:
    assert IdSource().next() != IdSource().next()
    assert random_id() != random_id()


def test_stable_ids_depend_on_where_the_words_end() -> None:
    assert stable_id("a", "b") == stable_id("a", "b")
    assert len({stable_id("a", "b"), stable_id("ab"), stable_id("a b"), stable_id("b", "a")}) == 4
    assert is_id(stable_id())


def test_what_an_id_is() -> None:
    assert not any(
        map(is_id, ["", "0" * 31, "0" * 33, "g" * 32, "A" * 32, "../" + "0" * 29, "0" * 32 + "\n"])
    )
