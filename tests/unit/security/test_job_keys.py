from __future__ import annotations

from collections.abc import Callable

import pytest

from firesteel.common.security.job_keys import (
    VALID_S,
    WINDOW_S,
    InvalidJobToken,
    JobKeys,
    derive,
    issue,
    sign,
    verify,
)

SECRET = b"s" * 32
NOW_S = 10.5 * WINDOW_S


def _issued(job_id: str = "job", epoch: int = 1, now_s: float = NOW_S) -> JobKeys:
    return issue(SECRET, job_id, epoch, now_s=now_s)


def _held(keys: JobKeys) -> Callable[[str, int, int], bytes | None]:
    """The keys of a slot."""

    def find(job_id: str, epoch: int, expiry_s: int) -> bytes | None:
        of_job = (job_id, epoch) == (keys.job_id, keys.epoch)
        return keys.by_expiry.get(expiry_s) if of_job else None

    return find


def _derived(job_id: str, epoch: int, expiry_s: int) -> bytes:
    """Any key, as a TaskExecutor finds it."""
    return derive(SECRET, job_id, epoch, expiry_s)


@pytest.mark.parametrize("find", [_held(_issued()), _derived])
def test_a_token_proves_that_its_bearer_works_for_the_job(find) -> None:
    verify(sign(_issued(), now_s=NOW_S), find, "job", now_s=NOW_S)


@pytest.mark.parametrize("signer", [_issued("other"), _issued(epoch=2)])
def test_keys_of_another_job_or_epoch_prove_nothing(signer: JobKeys) -> None:
    token = sign(signer, now_s=NOW_S)
    with pytest.raises(InvalidJobToken, match="has not proved that it works for the job job"):
        verify(token, _held(_issued()), "job", now_s=NOW_S)


@pytest.mark.parametrize("windows", [-1.0, -0.6, 0.0, 0.6, 1.0])
def test_slots_whose_keys_are_replaced_at_different_times_accept_each_other(windows) -> None:
    early, late = _issued(), _issued(now_s=NOW_S + windows * WINDOW_S)
    verify(sign(early, now_s=NOW_S), _held(late), "job", now_s=NOW_S)
    verify(sign(late, now_s=NOW_S), _held(early), "job", now_s=NOW_S)


def test_a_token_expires() -> None:
    token = sign(_issued(), now_s=NOW_S)
    verify(token, _derived, "job", now_s=NOW_S + VALID_S - 1)
    with pytest.raises(InvalidJobToken, match="has expired"):
        verify(token, _derived, "job", now_s=NOW_S + VALID_S)


def test_keys_expire() -> None:
    later_s = NOW_S + 3 * WINDOW_S
    with pytest.raises(InvalidJobToken, match="has expired"):
        verify(sign(_issued(), now_s=later_s), _derived, "job", now_s=later_s)
    with pytest.raises(InvalidJobToken, match="has not proved"):
        verify(sign(_issued(), now_s=later_s), _held(_issued(now_s=later_s)), "job", now_s=later_s)


@pytest.mark.parametrize(
    "forged", ["", "...", "1.1.1", "1.1.1.x", f"-1.1.1.{'0' * 64}", f"².1.1.{'0' * 64}", "9" * 5000]
)
def test_forged_tokens_are_refused(forged: str) -> None:
    with pytest.raises(InvalidJobToken):
        verify(forged, _derived, "job", now_s=NOW_S)


@pytest.mark.parametrize("part", [0, 1, 2, 3])
def test_no_part_of_a_token_can_be_changed(part: int) -> None:
    parts = sign(_issued(), now_s=NOW_S).split(".")
    parts[part] = f"{int(parts[part], 16) ^ 1:x}".rjust(len(parts[part]), "0")
    with pytest.raises(InvalidJobToken, match="has not proved"):
        verify(".".join(parts), _derived, "job", now_s=NOW_S)
