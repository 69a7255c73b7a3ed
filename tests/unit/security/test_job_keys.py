from __future__ import annotations

import pytest

from firesteel.common.security.job_keys import VALID_S, InvalidJobToken, derive, sign, verify

SECRET = b"s" * 32


def test_a_token_proves_that_its_bearer_works_for_the_job():
    key = derive(SECRET, "job")
    verify(sign(key, "job", now_s=1000.0), key, "job", now_s=1000.0)


def test_jobs_have_keys_of_their_own():
    mine, other = derive(SECRET, "mine"), derive(SECRET, "other")
    assert mine != other
    with pytest.raises(InvalidJobToken, match="works for the job other"):
        verify(sign(mine, "other", now_s=1000.0), other, "other", now_s=1000.0)
    with pytest.raises(InvalidJobToken):
        verify(sign(mine, "mine", now_s=1000.0), other, "other", now_s=1000.0)


def test_a_token_expires():
    key = derive(SECRET, "job")
    token = sign(key, "job", now_s=1000.0)
    verify(token, key, "job", now_s=1000.0 + VALID_S - 1)
    with pytest.raises(InvalidJobToken, match="has expired"):
        verify(token, key, "job", now_s=1000.0 + VALID_S)


def test_a_process_without_the_key_refuses_everybody():
    with pytest.raises(InvalidJobToken):
        verify(sign(b"", "job", now_s=1000.0), None, "job", now_s=1000.0)


@pytest.mark.parametrize(
    "forged",
    ["", ".", "x", "1300", "1300.", "1300.00", "9" * 5000 + ".00", "²." + "0" * 64, "-1.0"],
)
def test_forged_tokens_are_refused(forged):
    with pytest.raises(InvalidJobToken):
        verify(forged, derive(SECRET, "job"), "job", now_s=1000.0)


def test_the_expiry_cannot_be_changed():
    key = derive(SECRET, "job")
    _, _, mac = sign(key, "job", now_s=1000.0).partition(".")
    with pytest.raises(InvalidJobToken, match="has not proved"):
        verify(f"9999999.{mac}", key, "job", now_s=1000.0)
