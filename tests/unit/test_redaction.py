"""Secrets in configurations and texts."""

from __future__ import annotations

import pytest

from firesteel.common.config import redaction
from firesteel.common.config.redaction import hidden, redacted, remember
from firesteel.common.error_report import error_info
from firesteel.common.logs import _render
from firesteel.common.rpc.status import Reason, status_of


@pytest.mark.parametrize(
    "key",
    [
        "database.url",
        "s3.access-key",
        "s3.secret-key",
        "high-availability.zookeeper.client.authorization",
        "spark.hadoop.fs.s3a.secret.key",
        "spark.ssl.keyPassword",
        "ssl.key.pem",
        "sasl.jaas.config",
        "basic.auth.user.info",
        "spark.my.apiKey",
        "firesteel.auth-token",
        "spark.service.key",
    ],
)
def test_values_of_such_keys_are_redacted(key: str) -> None:
    assert redacted({key: "hush"}) == {key: "******"}


def test_other_values_are_shown() -> None:
    shown = {"security.token-file": "/run/token", "spark.sql.shuffle.partitions": "2"}
    assert redacted(shown) == shown
    url = {"spark.my.url": "jdbc:postgresql://ada:hush@db/x"}
    assert redacted(url) == {"spark.my.url": "jdbc:postgresql://******@db/x"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cannot reach postgresql://ada:hush@db:5432/jobs", "//******@db:5432/jobs"),
        ("options: password=hush host=db", "password=****** host=db"),
        ("https://h/p?token=hush&x=1", "?token=******&x=1"),
        ('{"secret": "hush", "x": 1}', '{"secret": ******, "x": 1}'),
        ("connect(secret_key='hush', x=1)", "connect(secret_key=******, x=1)"),
        ("Authorization: Bearer abcdefghij0123456789", "Authorization: Bearer ******"),
        ("got eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl here", "got ****** here"),
    ],
)
def test_secrets_are_recognised_by_their_form(text: str, expected: str) -> None:
    assert expected in hidden(text)
    assert "hush" not in hidden(text)


@pytest.mark.parametrize(
    "text",
    [
        "no token 'x' was created on this cluster; `firesteel token list` shows them",
        "the token cannot be read (security.token-file): No such file",
        "hdfs://namenode:8020/user/ada@example.com",
        "    token = self.next_token()",
        "token_id=4f1c09d2a7be31c6",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert hidden(text) == text


def test_secrets_of_the_configuration_are_hidden_in_all_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redaction, "_remembered", set())
    monkeypatch.setattr(redaction, "_values", redaction._values)
    remember(
        {
            "s3.secret-key": "planted-1",
            "database.url": "postgresql+psycopg2://ada:planted%2D2@db/jobs",
            "high-availability.zookeeper.client.authorization": "digest:ada:planted-3",
            "spark.hadoop.fs.s3a.secret.key": "planted-4 (x",
            "spark.short.password": "ab",
            "parallelism.default": "2222222",
        }
    )
    text = "planted-1, planted-2, planted%2D2, planted-3, planted-4 (x, ab, 2222222"
    assert hidden(text) == ", ".join(["******"] * 5) + ", ab, 2222222"
    logged = _render(None, "info", {"event": "x", "reason": text, "exception": f"E: {text}"})
    refused = status_of(Reason.INVALID_REQUEST, text, hash=text)
    try:
        raise ValueError(text)
    except ValueError as error:
        described = error_info(error)
    assert "planted" not in f"{logged} {refused} {described}"
