from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firesteel.common.resources import UNKNOWN, ResourceProfile

BYTES = st.integers(0, 2**40)
PROFILES = st.builds(
    ResourceProfile,
    cpu_cores=st.integers(0, 64).map(lambda quarters: quarters / 4),
    heap_bytes=BYTES,
    off_heap_bytes=BYTES,
    managed_bytes=BYTES,
    network_bytes=BYTES,
)


@given(PROFILES, PROFILES)
def test_a_part_fits_in_the_whole_and_can_be_taken_out_again(
    one: ResourceProfile, other: ResourceProfile
) -> None:
    assert one.fits_in(one + other)
    assert (one + other) - other == one
    assert one + other == other + one


@given(PROFILES, PROFILES)
def test_what_fits_both_ways_is_equal(one: ResourceProfile, other: ResourceProfile) -> None:
    assert (one.fits_in(other) and other.fits_in(one)) == (one == other)


@given(PROFILES, st.integers(0, 20))
def test_a_multiple_is_a_repeated_sum(profile: ResourceProfile, times: int) -> None:
    assert profile * times == sum([profile] * times, ResourceProfile())


@given(PROFILES)
def test_unknown_fits_anywhere_and_offers_nothing(profile: ResourceProfile) -> None:
    assert UNKNOWN.fits_in(profile)
    assert UNKNOWN.fits_in(UNKNOWN)
    assert not profile.fits_in(UNKNOWN)
    assert UNKNOWN + profile == profile + UNKNOWN == profile
    assert UNKNOWN * 3 == UNKNOWN


def test_each_kind_of_memory_counts_by_itself() -> None:
    offered = ResourceProfile(
        cpu_cores=1, heap_bytes=10, off_heap_bytes=10, managed_bytes=10, network_bytes=10
    )
    for name in ("heap_bytes", "off_heap_bytes", "managed_bytes", "network_bytes"):
        assert not ResourceProfile(**{name: 11}).fits_in(offered)
    assert not ResourceProfile(cpu_cores=1.1).fits_in(offered)
    assert offered.total_bytes == 40


def test_tenths_of_a_core_add_up() -> None:
    tenth = ResourceProfile(cpu_cores=0.1)
    assert sum([tenth] * 10, ResourceProfile()).fits_in(ResourceProfile(cpu_cores=1))
    rest = ResourceProfile(cpu_cores=1)
    for _ in range(10):
        assert tenth.fits_in(rest)
        rest = rest - tenth
    assert not tenth.fits_in(rest)


def test_unknown_cannot_be_subtracted() -> None:
    with pytest.raises(ValueError, match="UNKNOWN"):
        ResourceProfile(cpu_cores=1) - UNKNOWN
    with pytest.raises(ValueError, match="UNKNOWN"):
        UNKNOWN - ResourceProfile(cpu_cores=1)


def test_shown_in_mebibytes() -> None:
    shown = str(ResourceProfile(cpu_cores=0.5, heap_bytes=512 * 2**20))
    assert (
        shown
        == "ResourceProfile(cpu=0.5, heap=512 MiB, off_heap=0 MiB, managed=0 MiB, network=0 MiB)"
    )
    assert str(UNKNOWN) == "ResourceProfile(UNKNOWN)"
