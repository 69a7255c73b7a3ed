"""`firesteel kafka transactions` shows and ends transactions that a broker has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaException, Producer

from firesteel.client.cli import main
from tests.kafka.broker import Kafka
from tests.kafka.records import create_topic, produce, read
from tests.waiting import eventually

PATIENCE_S = 120.0

# After a refused connection, kafka-python leaves a socket to the collector of garbage.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def run(*arguments: str, kafka: Kafka, answer: str = "") -> Result:
    command = ["kafka", "transactions", *arguments, "-b", kafka.bootstrap]
    return CliRunner().invoke(main, command, input=answer)


def write(kafka: Kafka, transactional_id: str, *topics: str) -> Producer:
    """Returns a producer whose transaction is open."""
    producer = Producer({**kafka.settings(), "transactional.id": transactional_id})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for topic in topics:
        producer.produce(topic, transactional_id.encode())
    assert producer.flush(PATIENCE_S) == 0
    return producer


def identity(listed: str, transactional_id: str) -> list[str]:
    """Returns the options that name the producer, with the numbers in a list."""
    match = re.search(rf"^{transactional_id} +Ongoing +(\d+) +(\d+) ", listed, re.M)
    assert match is not None, listed
    return ["--producer-id", match[1], "--epoch", match[2]]


def values(kafka: Kafka, topic: str) -> list[bytes | None]:
    return [record.value for record in read(kafka, topic)]


def test_open_transactions_are_listed_committed_and_aborted(kafka: Kafka) -> None:
    topic, other = create_topic(kafka), create_topic(kafka)
    names = [f"{topic}-{number}" for number in range(4)]
    producers = [write(kafka, name, topic, other) for name in names]
    produce(kafka, topic, [b"later"])
    assert values(kafka, topic) == []  # blocked
    listed = run("list", "--prefix", topic, kafka=kafka).output
    assert [line.split()[0] for line in listed.splitlines()] == ["Transactional", *names]
    assert listed.count("blocked") == 4
    assert f"{topic}/0" in listed and f"{other}/0" in listed

    committed = run("commit", names[0], *identity(listed, names[0]), kafka=kafka, answer="y\n")
    assert "the records are written twice" in committed.output
    assert committed.output.endswith(f"Committed the transaction of {names[0]} in 2 partitions.\n")
    refused = run("abort", names[1], *identity(listed, names[1]), kafka=kafka, answer="n\n")
    assert refused.exit_code == 1 and "Aborted the transaction" not in refused.output
    run("abort", names[1], *identity(listed, names[1]), "--yes", kafka=kafka)
    both = run("abort", "--prefix", topic, kafka=kafka, answer="y\n")
    assert "Abort these 2 transactions?" in both.output
    eventually(
        lambda: values(kafka, topic) == [names[0].encode(), b"later"], "nothing blocks readers"
    )
    assert "Found no open transaction" in run("list", "--prefix", topic, kafka=kafka).output
    states = re.findall(r"Complete\w+", run("list", "--prefix", topic, "--all", kafka=kafka).output)
    assert states == ["CompleteCommit", *["CompleteAbort"] * 3]
    with pytest.raises(KafkaException):
        producers[3].commit_transaction(PATIENCE_S)


def test_a_transaction_that_is_not_the_one_listed_is_refused(kafka: Kafka) -> None:
    topic = create_topic(kafka)
    producer = write(kafka, topic, topic)
    options = identity(run("list", "--prefix", topic, kafka=kafka).output, topic)

    def problem(*arguments: str) -> str:
        result = run(*arguments, "--yes", kafka=kafka)
        assert result.exit_code != 0
        return result.output

    assert "--producer-id and --epoch are required" in problem("commit", topic)
    wrong = [*options[:3], str(int(options[3]) + 1)]
    assert re.search(r"belongs to producer \d+, epoch \d+, not to", problem("abort", topic, *wrong))
    assert "know no transactional id" in problem("commit", f"{topic}-x", *options)
    assert "specify the ID of a transaction, or a --prefix" in problem("abort")
    assert "omit --prefix" in problem("abort", "--prefix", topic, *options)
    producer.commit_transaction(PATIENCE_S)
    assert "its state is CompleteCommit" in problem("commit", topic, *options)


def test_users_see_and_end_the_transactions_that_they_may(tmp_path: Path) -> None:
    password = "-".join(["correct", "horse"])
    with Kafka(users={"alice": password}) as kafka:
        topic = create_topic(kafka)
        producer = write(kafka, topic, topic)
        file = tmp_path / "client.properties"

        def result(user: str, *arguments: str, password: str = "env:KAFKA_PASSWORD") -> Result:
            settings = kafka.settings(user) | {"sasl.password": password}
            file.write_text("# of Kafka\n" + "".join(f"{k}={v}\n" for k, v in settings.items()))
            command = ["kafka", "transactions", *arguments, "--properties-file", str(file)]
            servers = ["-b", settings["bootstrap.servers"]]
            secrets = {"KAFKA_PASSWORD": kafka.settings(user)["sasl.password"]}
            found = CliRunner().invoke(main, [*command, *servers], env=secrets)
            assert secrets["KAFKA_PASSWORD"] not in found.output
            return found

        listed = result("admin", "list").output
        options = identity(listed, topic)
        assert "may not describe" in result("alice", "list").output
        denied = result("alice", "abort", topic, *options, "--yes").output
        assert f"no permission for the transactional id {topic}" in denied
        wrong = result("alice", "list", password="not-the-password").output
        assert "do not agree on security" in wrong and "not-the-password" not in wrong
        unset = result("alice", "list", password="env:NO_SUCH_VARIABLE").output
        assert "sasl.password refers to the environment variable NO_SUCH_VARIABLE" in unset
        assert result("admin", "abort", topic, *options, "--yes").exit_code == 0
        with pytest.raises(KafkaException):
            producer.commit_transaction(PATIENCE_S)


def test_properties_that_are_not_readable_are_refused_at_once(tmp_path: Path) -> None:
    def problem(*arguments: str) -> str:
        command = ["kafka", "transactions", "list", "-b", "127.0.0.1:1", *arguments]
        result = CliRunner().invoke(main, command)
        assert result.exit_code != 0
        return result.output

    shown = problem("--property", "sasl.password hunter22")
    assert "'sasl.password' is not followed by =VALUE" in shown and "hunter22" not in shown
    file = tmp_path / "java.properties"
    file.write_text("sasl.jaas.config=PlainLoginModule required password=hunter22;\n")
    shown = problem("--properties-file", str(file))
    assert "set sasl.username and sasl.password instead" in shown and "hunter22" not in shown
    assert 'No such configuration property: "no.such"' in problem("--property", "no.such=1")
