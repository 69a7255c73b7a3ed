from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from firesteel.common.security.folder import UnusableSecurityFolder
from firesteel.common.security.keys import TOKENS_VALID_S, Keys
from firesteel.common.security.roles import Role


@pytest.fixture
def folder(tmp_path: Path) -> Keys:
    return Keys.open(tmp_path / "security")


def test_only_its_user_can_read_the_folder(folder):
    assert folder.path.stat().st_mode & 0o777 == 0o700
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.path.iterdir()}
    assert set(modes) == {
        "admin.token",
        "authority.key",
        "authority.pem",
        "jobs.key",
        "lock",
        "metrics.key",
        "metrics.pem",
        "metrics.token",
        "tokens.key",
        "tokens.pem",
    }
    assert {mode for name, mode in modes.items() if name != "lock"} == {0o600}


@pytest.mark.parametrize("role", [Role.ADMIN, Role.VIEWER])
def test_its_tokens_are_an_administrators_and_a_viewers(folder, role):
    name = "admin" if role is Role.ADMIN else "metrics"
    identity = folder.verifier().verify(folder.token(f"{name}.token"))
    assert (identity.subject, identity.role) == (name, role)


def test_it_keeps_what_it_has(folder):
    again = Keys.open(folder.path)
    assert again.token() == folder.token()
    assert again.authority().certificate == folder.authority().certificate


def test_its_tokens_are_renewed_in_time(tmp_path):
    now_s = [1_000_000.0]
    folder = Keys.open(tmp_path, now_s=lambda: now_s[0])
    first = folder.token()
    now_s[0] += TOKENS_VALID_S / 2 - 1
    folder.renew()
    assert folder.token() == first
    now_s[0] += 2
    folder.renew()
    second = folder.token()
    assert second != first
    folder.verifier().verify(first)  # both are valid until they expire
    now_s[0] += 10 * TOKENS_VALID_S  # without a renewal for years
    folder.renew()
    assert folder.verifier().verify(folder.token()).role is Role.ADMIN


@pytest.mark.parametrize("name", ["tokens.key", "authority.key", "admin.token"])
def test_a_key_that_others_can_read_is_refused(name, folder):
    (folder.path / name).chmod(0o644)
    with pytest.raises(UnusableSecurityFolder, match=f"{name} can be read by other users") as error:
        folder.authority(), folder.issuer(), folder.token()
    assert "chmod 600" in str(error.value)


@pytest.mark.parametrize("name", ["tokens.key", "tokens.pem", "authority.key", "authority.pem"])
def test_a_missing_file_is_named(name, folder):
    (folder.path / name).unlink()
    with pytest.raises(UnusableSecurityFolder, match=f"{name} is missing"):
        folder.authority(), folder.issuer(), folder.verifier()


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableSecurityFolder, match="Not a directory; name another one"):
        Keys.open(tmp_path / "file" / "security")


def _token_of(path: Path) -> str:
    return Keys.open(path).token()


def test_processes_that_start_together_share_one_folder(tmp_path):
    with multiprocessing.get_context("fork").Pool(8) as pool:
        tokens = pool.map(_token_of, [tmp_path / "security"] * 16)
    assert len(set(tokens)) == 1
    assert not [name for name in os.listdir(tmp_path / "security") if name.endswith(".part")]
