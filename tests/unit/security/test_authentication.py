from __future__ import annotations

import importlib
import pkgutil
from collections.abc import AsyncIterator

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

import firesteel._proto
from firesteel._proto import dispatcher_pb2, dispatcher_pb2_grpc, job_master_pb2
from firesteel.common.config import Configuration
from firesteel.common.rpc.authentication import Authentication, Call
from firesteel.common.rpc.bearer import CALLER_ADDRESS, REST_TOKEN, caller, carry_token
from firesteel.common.rpc.server import aio_channel, bind, new_server
from firesteel.common.rpc.status import Reason, reason_of
from firesteel.common.security.access import METHODS, access_of
from firesteel.common.security.limits import CallLimits
from firesteel.common.security.roles import PEOPLE, Identity, Role
from firesteel.common.security.tokens import TokenIssuer, TokenVerifier
from tests.credentials import fixed_key


class Clock:
    now_s = 1_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Answers(dispatcher_pb2_grpc.DispatcherServicer):
    """Answers every call with the caller."""

    async def ListJobs(self, request, context):
        jobs = [dispatcher_pb2.JobOverview(name=str(caller()))]
        return dispatcher_pb2.ListJobsResponse(jobs=jobs)

    async def RemoveJob(self, request, context):
        return dispatcher_pb2.RemoveJobResponse()

    async def WatchJob(self, request, context):
        yield job_master_pb2.JobDetails(name=str(caller()))

    async def ConnectJobMaster(self, request_iterator, context):
        async for _ in request_iterator:
            yield dispatcher_pb2.DispatcherToJobMaster()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture
def issuer(key, clock) -> TokenIssuer:
    return TokenIssuer(key, now_s=clock)


@pytest.fixture
def audited() -> list[Call]:
    return []


@pytest.fixture
async def address(key, clock, audited) -> AsyncIterator[str]:
    verifier = TokenVerifier(fixed_key(key.public_key()), now_s=clock)
    server = new_server(
        [dispatcher_pb2.DESCRIPTOR.services_by_name["Dispatcher"]],
        authentication=Authentication(
            verifier, audited.append, owner_of={"mine": "ada", "other": "bob", "old": ""}.get
        ),
    )
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(Answers(), server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    yield address
    await server.stop(None)


def _stub(channel: grpc.aio.Channel, token: str | None) -> dispatcher_pb2_grpc.DispatcherStub:
    if token is not None:
        carry_token(channel, lambda: token)
    return dispatcher_pb2_grpc.DispatcherStub(channel)


async def _list(address: str, token: str | None) -> str | Reason | None:
    async with aio_channel(address) as channel:
        try:
            answer = await _stub(channel, token).ListJobs(dispatcher_pb2.ListJobsRequest())
        except grpc.aio.AioRpcError as error:
            return reason_of(error)
        return str(answer.jobs[0].name)


def test_every_method_of_every_service_is_in_the_table():
    methods = {
        f"/{service.full_name}/{method.name}"
        for module in pkgutil.iter_modules(firesteel._proto.__path__)
        if module.name.endswith("_pb2")
        for service in importlib.import_module(
            f"firesteel._proto.{module.name}"
        ).DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    others = {name for name in METHODS if not name.startswith("/firesteel.")}
    assert methods == METHODS.keys() - others
    assert {name.split("/")[1] for name in others} == {
        health_pb2.DESCRIPTOR.services_by_name["Health"].full_name,
        reflection.SERVICE_NAME,
    }


@pytest.mark.parametrize("voucher", [None, "forged", *Role])
async def test_only_a_rest_server_vouches_for_the_address_of_its_caller(
    voucher, address, issuer, audited
):
    token = issuer.issue("x", voucher, valid_s=60) if isinstance(voucher, Role) else voucher
    metadata = [(CALLER_ADDRESS, "ipv4:192.0.2.1:1234")]
    metadata += [(REST_TOKEN, token)] if token else []
    async with aio_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await _stub(channel, None).ListJobs(
                dispatcher_pb2.ListJobsRequest(), metadata=tuple(metadata)
            )
    (call,) = audited
    assert call.peer.startswith("ipv4:192.0.2.1" if voucher is Role.REST else "ipv4:127.0.0.1")


def test_the_address_of_a_caller_is_asked_for_before_its_call_ends(key, clock, audited):
    """Later, gRPC may crash."""

    class Context:
        underway = True

        def invocation_metadata(self):
            return ()

        def peer(self):
            assert self.underway
            return "ipv4:192.0.2.1:1234"

    verifier = TokenVerifier(fixed_key(key.public_key()), now_s=clock)
    authentication = Authentication(verifier, audited.append, owner_of={}.get)
    context, identity = Context(), Identity(subject="ada", role=Role.ADMIN)
    with authentication._audited("/a/Method", context, identity, ""):
        context.underway = False
    assert [call.peer for call in audited] == ["ipv4:192.0.2.1:1234"]


@pytest.fixture
async def limited(key, clock, audited) -> AsyncIterator[str]:
    """The address of a service that allows two calls, and two failures, in a burst."""
    conf = Configuration(
        {"rpc.limit.calls-per-second": "1", "rpc.limit.failures-per-second": "0.1"}
    )
    server = new_server(
        [],
        authentication=Authentication(
            TokenVerifier(fixed_key(key.public_key()), now_s=clock),
            audited.append,
            limits=CallLimits(conf, now_s=clock),
        ),
    )
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(Answers(), server)
    address = bind(server, "127.0.0.1", 0)
    await server.start()
    yield address
    await server.stop(None)


async def test_a_person_who_calls_too_often_is_refused_for_a_while(limited, issuer, clock):
    ada, bob = (issuer.issue(name, Role.VIEWER, valid_s=600) for name in ("ada", "bob"))
    others = (issuer.issue("ada", Role.VIEWER, valid_s=600), ada)
    assert [await _list(limited, token) for token in others] == ["ada (viewer)"] * 2
    assert await _list(limited, ada) is Reason.TOO_MANY_CALLS
    assert await _list(limited, bob) == "bob (viewer)"
    clock.now_s += 1.0
    assert await _list(limited, ada) == "ada (viewer)"


def test_services_call_as_often_as_they_need(clock):
    limits = CallLimits(Configuration({"rpc.limit.calls-per-second": "1"}), now_s=clock)
    for role, refused in ((Role.JOB_MASTER, False), (Role.SUBMITTER, True)):
        identity = Identity(subject="x", role=role, expires_s=clock.now_s + 60)
        assert any(limits.called(identity) for _ in range(10)) is refused


async def test_failures_from_one_address_are_limited_and_not_recorded(
    limited, issuer, clock, audited
):
    failures = [await _list(limited, "forged") for _ in range(4)]
    assert failures == [*[Reason.CREDENTIAL_INVALID] * 2, *[Reason.TOO_MANY_CALLS] * 2]
    assert len(audited) == 2
    assert await _list(limited, issuer.issue("ada", Role.VIEWER, valid_s=60)) == "ada (viewer)"
    clock.now_s += 10.0
    assert await _list(limited, None) is Reason.NO_CREDENTIAL


def test_only_health_is_public():
    public = {name for name, access in METHODS.items() if access.public}
    assert public == {"/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch"}


def test_an_unknown_method_is_for_nobody(issuer, key, clock):
    access = access_of("/firesteel.v1.Dispatcher/SomethingNew")
    verifier = TokenVerifier(fixed_key(key.public_key()), now_s=clock)
    for role in Role:
        assert not access.allows(verifier.verify(issuer.issue("x", role, valid_s=1)))
    assert str(access) == "nobody"


@pytest.mark.parametrize("role", Role)
async def test_a_call_is_for_the_roles_in_the_table(role: Role, address, issuer):
    answer = await _list(address, issuer.issue("ada", role, valid_s=60))
    assert answer == (f"ada ({role.value})" if role in PEOPLE else Reason.NOT_ALLOWED)


async def test_callers_without_a_valid_token_are_refused(address, issuer, clock):
    other = TokenIssuer(Ed25519PrivateKey.generate(), now_s=clock)
    token = issuer.issue("ada", Role.ADMIN, valid_s=60)
    assert await _list(address, None) is Reason.NO_CREDENTIAL
    assert await _list(address, "") is Reason.CREDENTIAL_INVALID
    assert await _list(address, other.issue("eve", Role.ADMIN, valid_s=60)) is (
        Reason.CREDENTIAL_INVALID
    )
    clock.now_s += 60
    assert await _list(address, token) is Reason.CREDENTIAL_EXPIRED


async def test_a_channel_carries_the_token_of_its_time(address, issuer, clock):
    tokens = [issuer.issue("ada", Role.ADMIN, valid_s=60)]
    async with aio_channel(address) as channel:
        carry_token(channel, lambda: tokens[-1])
        stub = dispatcher_pb2_grpc.DispatcherStub(channel)
        await stub.ListJobs(dispatcher_pb2.ListJobsRequest())
        clock.now_s += 60
        tokens.append(issuer.issue("ada", Role.ADMIN, valid_s=60))
        await stub.ListJobs(dispatcher_pb2.ListJobsRequest())


@pytest.mark.parametrize(
    ("job_id", "message"),
    [
        ("mine", None),
        ("unknown", None),  # the servicer refuses it
        ("other", "ada (operator of own jobs) may not act on the job other, which is bob's"),
        ("old", "ada (operator of own jobs) may not act on the job old"),
        ("", "may not act on anything but its own jobs"),
    ],
)
async def test_a_bearer_limited_to_own_jobs_acts_on_these_alone(job_id, message, address, issuer):
    token = issuer.issue("ada", Role.OPERATOR, valid_s=60, own_jobs=True)
    async with aio_channel(address) as channel:
        stub = _stub(channel, token)
        request = dispatcher_pb2.RemoveJobRequest(job_id=job_id)
        if message is None:
            await stub.RemoveJob(request)
        else:
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.RemoveJob(request)
            assert reason_of(error.value) is Reason.NOT_ALLOWED
            assert message in str(error.value.details())
        request = job_master_pb2.JobDetailsRequest(job_id=job_id)  # all jobs are shown
        assert [one.name async for one in stub.WatchJob(request)] != []


async def test_streams_are_checked_before_they_begin(address, issuer):
    async with aio_channel(address) as channel:
        stub = _stub(channel, issuer.issue("ada", Role.VIEWER, valid_s=60))
        details = [one async for one in stub.WatchJob(job_master_pb2.JobDetailsRequest())]
        assert [one.name for one in details] == ["ada (viewer)"]
        call = stub.ConnectJobMaster(iter([dispatcher_pb2.JobMasterToDispatcher()]))
        with pytest.raises(grpc.aio.AioRpcError) as error:
            await call.read()
        assert reason_of(error.value) is Reason.NOT_ALLOWED


async def test_health_answers_everybody(address):
    async with aio_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
