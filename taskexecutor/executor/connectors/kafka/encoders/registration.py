"""The id of a sink's schema in a registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firesteel.connectors.kafka.formats import Confluent
from firesteel.errors import FiresteelError
from firesteel.operator import RuntimeContext
from taskexecutor.executor.connectors.kafka.clients import resolved
from taskexecutor.executor.connectors.kafka.registry import Reference, RegistryClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A schema that another one imports under `name`, which is also its subject."""

    name: str
    text: str
    imports: Sequence[Imported] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """`topic` is empty if rows have different topics."""

    format: Confluent
    topic: str
    key: bool

    def id(
        self,
        context: RuntimeContext,
        text: str,
        kind: str,
        record: str,
        imports: Sequence[Imported] = (),
    ) -> int:
        """Returns the id of the schema, which it registers unless the format forbids it. `record`
        is its name. Waits for the registry. Raises FiresteelError.
        """
        registry = self.format.registry
        client = RegistryClient(registry, resolved(registry.properties), lambda: context.cancelled)
        subject = self._subject(record, context.operator_name)
        references = [self._reference(client, each, kind) for each in imports]
        if self.format.register:
            return client.register(subject, text, kind, references)
        return client.registered(subject, text, kind, references).id

    def _reference(self, client: RegistryClient, imported: Imported, kind: str) -> Reference:
        references = [self._reference(client, each, kind) for each in imported.imports]
        if self.format.register:
            client.register(imported.name, imported.text, kind, references)
        found = client.registered(imported.name, imported.text, kind, references)
        return Reference(name=imported.name, subject=imported.name, version=found.version)

    def _subject(self, record: str, operator: str) -> str:
        part = "key" if self.key else "value"
        if self.format.subject_name != "topic" and not record:
            raise FiresteelError(
                f"{operator}: the subject of the schema is named after its record, but the schema"
                " has no title; pass Confluent(..., schema=...) with a title, or"
                ' subject_name="topic"'
            )
        if self.format.subject_name == "record":
            return record
        if not self.topic:
            raise FiresteelError(
                f"{operator}: the subject of the schema is named after the topic, but the rows have"
                ' a column of topics; use Confluent(..., subject_name="record")'
            )
        return f"{self.topic}-{record if self.format.subject_name == 'topic_record' else part}"
