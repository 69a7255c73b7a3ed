"""The Secrets of a cluster, and the processes that have them."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

from firesteel._proto import resource_manager_pb2, resource_manager_pb2_grpc
from firesteel.common.config import Configuration, options
from firesteel.common.security.authority import identity_of
from firesteel.common.security.client import ClientSecurity
from firesteel.common.security.folder import MASTERS, TASK_EXECUTORS, UnusableSecurityFolder
from firesteel.common.security.keys import Keys
from firesteel.common.security.roles import Role
from firesteel.common.security.security import Security
from firesteel.common.service.platform import GrpcTransport
from firesteel.errors import FiresteelError
from firesteel.kubernetes.security import DIRECTORY, METRICS, cluster_secrets, pod_security
from resourcemanager.kubernetes.manifest import Manifests
from resourcemanager.kubernetes.settings import kubernetes_settings

VALUES = {
    options.KUBERNETES_CLUSTER_ID.key: "orders",
    options.KUBERNETES_IMAGE.key: "firesteel:1",
    options.DATABASE_URL.key: "postgresql://firesteel:hunter22@db/jobs",
    options.S3_SECRET_KEY.key: "secret-of-s3",
    "spark.hadoop.fs.s3a.secret.key": "secret-of-spark",
}
SERVICE = "ResourceManager"
CONF = Configuration(VALUES)


def data_of(holder: str, conf: Configuration = CONF) -> dict[str, bytes]:
    for secret in cluster_secrets(conf).secrets:
        if secret["metadata"]["name"] == f"orders-{holder}":
            return {name: base64.b64decode(text) for name, text in secret["data"].items()}
    return {}


@pytest.fixture
def secrets() -> dict[str, dict[str, bytes]]:
    found = cluster_secrets(CONF).secrets
    return {
        secret["metadata"]["name"].removeprefix("orders-"): {
            name: base64.b64decode(text) for name, text in secret["data"].items()
        }
        for secret in found
    }


def mounted(folder: Path, files: dict[str, bytes]) -> Keys:
    """Returns the keys of a pod that mounts these files, as it may read them."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        unfinished = folder / f".{name}"
        unfinished.write_bytes(content)
        unfinished.chmod(0o440)
        unfinished.replace(folder / name)
    return Keys.open(folder)


def security(keys: Keys, role: Role) -> Security:
    return Security(keys, subject=role.value, role=role, tls=True, hosts=("127.0.0.1",))


def test_task_executors_have_neither_the_authority_nor_the_key_of_tokens(secrets) -> None:
    assert secrets[TASK_EXECUTORS].keys() == {
        *("authority.pem", "tokens.pem", "jobs.key", "taskexecutors.pem", "taskexecutors.key"),
        *("holder", "FIRESTEEL_SECRETS"),
    }
    assert "authority.key" in secrets[MASTERS] and "tokens.key" in secrets[MASTERS]
    assert not any("admin.token" in data for data in secrets.values())
    assert secrets[METRICS].keys() == {
        *("authority.pem", "metrics.token", "metrics.pem", "metrics.key"),
    }


def test_a_task_executor_proves_who_it_is_without_a_token(tmp_path: Path, secrets) -> None:
    keys = mounted(tmp_path / "taskexecutor", secrets[TASK_EXECUTORS])
    task_executor = security(keys, Role.TASK_EXECUTOR)
    assert not task_executor.carries_tokens
    assert identity_of(task_executor.certificate().certificate).role is Role.TASK_EXECUTOR
    slot = task_executor.slot_credentials("slot-1")
    assert task_executor.verifier.verify(slot.token).role is Role.SLOT
    assert identity_of(slot.certificate.certificate).role is Role.SLOT
    before = set(keys.path.iterdir())
    keys.renew()
    assert set(keys.path.iterdir()) == before
    masters = security(mounted(tmp_path / "masters", secrets[MASTERS]), Role.DISPATCHER)
    with pytest.raises(FiresteelError, match="not one of this cluster"):
        masters.verifier.verify(slot.token)
    assert masters.job_keys("a" * 32) == task_executor.job_keys("a" * 32)


def test_the_authority_of_task_executors_gives_no_other_role(tmp_path: Path, secrets) -> None:
    keys = mounted(tmp_path / "taskexecutor", secrets[TASK_EXECUTORS])
    forged = keys.authority().certify("evil", Role.DISPATCHER, hosts=(), valid_s=60)
    with pytest.raises(FiresteelError, match="may not give 'evil' the role dispatcher"):
        identity_of(forged.certificate)


def test_a_task_executor_without_tokens_needs_tls(tmp_path: Path, secrets) -> None:
    keys = mounted(tmp_path / "taskexecutor", secrets[TASK_EXECUTORS])
    conf = Configuration({options.SECURITY_DIRECTORY.key: str(keys.path)})
    with pytest.raises(UnusableSecurityFolder, match="set security.tls to auto or always"):
        Security.of_process(conf, Role.TASK_EXECUTOR, "127.0.0.1")


def test_a_process_beside_the_masters_is_an_administrator(tmp_path: Path, secrets) -> None:
    keys = mounted(tmp_path / "masters", secrets[MASTERS])
    conf = Configuration({options.SECURITY_DIRECTORY.key: str(keys.path)})
    assert keys.verifier().verify(ClientSecurity(conf).token()).role is Role.ADMIN


def test_secret_values_are_split_by_role(secrets) -> None:
    of_masters = json.loads(secrets[MASTERS]["FIRESTEEL_SECRETS"])
    of_task_executors = json.loads(secrets[TASK_EXECUTORS]["FIRESTEEL_SECRETS"])
    assert of_masters == {key: VALUES[key] for key in list(VALUES)[2:]}
    assert of_task_executors == {key: VALUES[key] for key in list(VALUES)[3:]}


def test_without_security_there_are_secret_values_only() -> None:
    conf = CONF.with_overrides({options.SECURITY_ENABLED.key: "false"})
    made = cluster_secrets(conf)
    assert [secret["data"].keys() for secret in made.secrets] == [{"FIRESTEEL_SECRETS"}] * 2
    assert made.client == {} and not pod_security(conf, MASTERS).volumes


def test_new_credentials_are_of_the_existing_keys(tmp_path: Path) -> None:
    first = data_of(MASTERS)
    again = cluster_secrets(CONF, first)
    keys = mounted(tmp_path / "masters", first)
    assert base64.b64decode(again.secrets[0]["data"]["jobs.key"]) == first["jobs.key"]
    token = again.client["client.token"].decode().strip()
    assert keys.verifier().verify(token).role is Role.ADMIN
    assert again.client["authority.pem"] == first["authority.pem"]


def test_pods_mount_their_keys_read_only() -> None:
    pod = Manifests(kubernetes_settings(CONF, initial_workers=1)).pod(
        name="orders-taskexecutor-1-1",
        attempt=1,
        number=1,
        worker_id="w",
        resource_manager_address="10.0.0.1:6124",
        owner=None,
    )
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "firesteel-security"]
    assert volume["secret"]["secretName"] == "orders-taskexecutors"
    assert volume["secret"]["defaultMode"] == 0o400
    (main,) = pod["spec"]["containers"]
    (mount,) = [m for m in main["volumeMounts"] if m["mountPath"] == DIRECTORY]
    assert mount["readOnly"]
    assert f"security.directory={DIRECTORY}" in main["args"]
    text = json.dumps(pod)
    assert "hunter22" not in text and "secret-of" not in text


def test_keys_that_a_user_mounts_are_used() -> None:
    conf = CONF.with_overrides(
        {options.KUBERNETES_SECRETS.key: "own:/etc/own", options.SECURITY_DIRECTORY.key: "/etc/own"}
    )
    security = pod_security(conf, TASK_EXECUTORS)
    assert not security.volumes
    assert security.values == {options.SECURITY_DIRECTORY.key: "/etc/own"}


def test_replaced_keys_are_used_without_a_restart(tmp_path: Path, secrets) -> None:
    """The new Secret trusts both authorities and both keys, and signs with the new ones."""
    old, new = secrets[MASTERS], data_of(MASTERS)
    both = new | {
        "authority.pem": new["authority.pem"] + old["authority.pem"],
        "tokens.pem": new["tokens.pem"] + old["tokens.pem"],
    }
    keys = mounted(tmp_path / "masters", old)
    masters = security(keys, Role.DISPATCHER)
    old_token, old_certificate = masters.token(), masters.certificate()
    assert masters.token() == old_token and masters.certificate() is old_certificate
    mounted(keys.path, both)
    new_token, new_certificate = masters.token(), masters.certificate()
    assert new_token != old_token and new_certificate.authority == both["authority.pem"]
    for token in (old_token, new_token):
        assert masters.verifier.verify(token).role is Role.DISPATCHER
    issuer, old_issuer = x509.load_pem_x509_certificates(both["authority.pem"])
    x509.load_pem_x509_certificate(new_certificate.certificate).verify_directly_issued_by(issuer)
    x509.load_pem_x509_certificate(old_certificate.certificate).verify_directly_issued_by(
        old_issuer
    )
    mounted(keys.path, new)
    with pytest.raises(FiresteelError, match="not one of this cluster"):
        masters.verifier.verify(old_token)
    assert masters.verifier.verify(new_token).role is Role.DISPATCHER


def test_a_file_that_its_group_may_write_is_refused(tmp_path: Path, secrets) -> None:
    keys = mounted(tmp_path / "masters", secrets[MASTERS])
    (keys.path / "jobs.key").chmod(0o460)
    with pytest.raises(UnusableSecurityFolder, match="jobs.key can be read by other users"):
        keys.job_keys("a" * 32, 1)


class Accepts(resource_manager_pb2_grpc.ResourceManagerServicer):
    async def ConnectTaskExecutor(self, request_iterator, context):
        for answer in ():
            yield answer


@contextlib.asynccontextmanager
async def connected(server: Security, client: Security) -> AsyncIterator[Any]:
    """A call of the client, over TLS."""
    transport = GrpcTransport(server)
    running = transport.server([resource_manager_pb2.DESCRIPTOR.services_by_name[SERVICE]])
    resource_manager_pb2_grpc.add_ResourceManagerServicer_to_server(Accepts(), running)
    address = transport.bind(running, "127.0.0.1", 0)
    await running.start()
    try:
        async with GrpcTransport(client).channel(address) as channel:
            call = resource_manager_pb2_grpc.ResourceManagerStub(channel).ConnectTaskExecutor()
            await call.done_writing()
            yield call
    finally:
        await running.stop(None)


async def test_masters_and_task_executors_trust_each_other(tmp_path: Path, secrets) -> None:
    """gRPC sends the certificate of the intermediate authority, and verifies it."""
    masters = security(mounted(tmp_path / "masters", secrets[MASTERS]), Role.RESOURCE_MANAGER)
    keys = mounted(tmp_path / "taskexecutor", secrets[TASK_EXECUTORS])
    task_executor = security(keys, Role.TASK_EXECUTOR)
    async with connected(masters, task_executor) as call:
        assert await call.code() is grpc.StatusCode.OK
    async with connected(task_executor, masters) as call:
        assert await call.code() is grpc.StatusCode.PERMISSION_DENIED  # its role, after TLS
    async with connected(masters, security(keys, Role.DISPATCHER)) as call:
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED


def test_certificates_name_the_hosts_of_services(tmp_path: Path) -> None:
    conf = Configuration(
        {
            options.SECURITY_DIRECTORY.key: str(tmp_path / "security"),
            options.SECURITY_TLS.key: "always",
            options.REST_HOSTS.key: "orders-rest.default.svc",
            options.SECURITY_HOSTS.key: "balancer.example.com",
        }
    )
    made = Security.of_process(conf, Role.REST, "127.0.0.1")
    assert made is not None
    certificate = x509.load_pem_x509_certificate(made.certificate().certificate)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    found = names.get_values_for_type(x509.DNSName)
    assert {"orders-rest.default.svc", "balancer.example.com"} <= set(found)
