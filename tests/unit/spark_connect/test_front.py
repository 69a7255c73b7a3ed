"""The front between PySpark's generated client and a Spark Connect server of this process, which
records calls, and answers or fails as each test requires.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from pyspark.errors import AnalysisException
from pyspark.sql.connect import proto
from pyspark.sql.connect.proto import base_pb2_grpc

from firesteel.errors import InvalidProgram
from firesteel.spark_connect.admission import OneToken
from firesteel.spark_connect.failures import QueryFailed
from firesteel.spark_connect.front import Front, SparkServer
from firesteel.spark_connect.operations import Operation, SessionKey
from tests.waiting import PATIENCE_S

TOKEN, SERVER_TOKEN = "of-programs", "of-the-server"
SESSION = str(uuid.uuid4())
USER = proto.UserContext(user_id="ada")
CALLER = (("authorization", f"Bearer {TOKEN}"), ("x-own", "yes"))


class Server(base_pb2_grpc.SparkConnectServiceServicer):
    def __init__(self) -> None:
        self.metadata: dict[str, Any] = {}
        self.requests: list[Any] = []
        self.cancelled = threading.Event()  # or ended

    def ExecutePlan(self, request: Any, context: Any) -> Iterator[Any]:
        self.metadata = dict(context.invocation_metadata())
        self.requests.append(request)
        context.add_callback(self.cancelled.set)
        for number in range(3):
            yield proto.ExecutePlanResponse(response_id=str(number), session_id=SESSION)
        if request.tags:
            self.cancelled.wait(30)
        context.set_trailing_metadata((("x-end", "1"),))

    def AnalyzePlan(self, request: Any, context: Any) -> Any:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\x0a\x00"), ("x-why", "z")))
        context.abort(grpc.StatusCode.INTERNAL, "cannot resolve")

    def AddArtifacts(self, requests: Any, context: Any) -> Any:
        self.requests += requests
        return proto.AddArtifactsResponse(session_id=SESSION)

    def Interrupt(self, request: Any, context: Any) -> Any:
        return proto.InterruptResponse(session_id=SESSION, interrupted_ids=["of-spark"])

    def ReleaseSession(self, request: Any, context: Any) -> Any:
        return proto.ReleaseSessionResponse(session_id=SESSION)


class Answers:
    """The commands of a test: `work` executes streaming commands."""

    def __init__(self) -> None:
        self.work: Callable[[Operation], None] = lambda operation: None
        self.before_plans: list[SessionKey] = []
        self.released: list[SessionKey] = []

    def handler(self, command: proto.Command) -> Callable[[Operation], None] | None:
        return self.work if command.HasField("streaming_query_command") else None

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        self.before_plans.append(session)

    def release(self, session: SessionKey) -> None:
        self.released.append(session)


@pytest.fixture
def server() -> Iterator[Server]:
    servicer = Server()
    with ThreadPoolExecutor(8) as pool:
        running = grpc.server(pool)
        base_pb2_grpc.add_SparkConnectServiceServicer_to_server(servicer, running)
        servicer.port = running.add_insecure_port("127.0.0.1:0")  # type: ignore[attr-defined]
        running.start()
        yield servicer
        running.stop(0).wait()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def stub(server: Any, answers: Answers) -> Iterator[base_pb2_grpc.SparkConnectServiceStub]:
    front = Front(
        OneToken(TOKEN), lambda: SparkServer(f"127.0.0.1:{server.port}", SERVER_TOKEN), answers
    )
    front.start()
    with grpc.insecure_channel(f"127.0.0.1:{front.port}") as channel:
        yield base_pb2_grpc.SparkConnectServiceStub(channel)
    front.stop()


def plan(command: bool = False, **fields: Any) -> proto.ExecutePlanRequest:
    request = proto.ExecutePlanRequest(session_id=SESSION, user_context=USER, **fields)
    if command:
        request.plan.command.streaming_query_command.status = True
        option = request.request_options.add()
        option.reattach_options.reattachable = True
    else:
        request.plan.root.range.end = 3
    return request


def test_a_plan_passes_with_its_metadata_and_trailers(stub: Any, server: Server) -> None:
    call = stub.ExecutePlan(plan(), metadata=CALLER)
    assert [response.response_id for response in call] == ["0", "1", "2"]
    assert server.requests == [plan()]
    assert server.metadata["authorization"] == f"Bearer {SERVER_TOKEN}"
    assert server.metadata["x-own"] == "yes"
    assert dict(call.trailing_metadata())["x-end"] == "1"


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer guess"),)])
def test_a_caller_without_the_token_is_refused(stub: Any, server: Server, metadata: Any) -> None:
    for call in (
        lambda: list(stub.ExecutePlan(plan(), metadata=metadata)),
        lambda: stub.Interrupt(proto.InterruptRequest(), metadata=metadata),
        lambda: stub.AddArtifacts(iter([proto.AddArtifactsRequest()]), metadata=metadata),
    ):
        with pytest.raises(grpc.RpcError) as failed:
            call()
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert not server.requests


def test_an_error_passes_with_its_code_text_and_trailers(stub: Any, answers: Answers) -> None:
    request = proto.AnalyzePlanRequest(session_id=SESSION, user_context=USER)
    with pytest.raises(grpc.RpcError) as failed:
        stub.AnalyzePlan(request, metadata=CALLER)
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "cannot resolve"
    trailers = dict(failed.value.trailing_metadata())
    assert trailers["x-why"] == "z"
    assert trailers["grpc-status-details-bin"] == b"\x0a\x00"
    assert answers.before_plans == [SessionKey("ada", SESSION)]


def test_a_lost_server_is_an_error_that_clients_do_not_retry(answers: Answers) -> None:
    front = Front(
        OneToken(TOKEN),
        lambda: SparkServer("127.0.0.1:1", SERVER_TOKEN),
        answers,
        why_lost=lambda: "the JVM ended",
    )
    front.start()
    with grpc.insecure_channel(f"127.0.0.1:{front.port}") as channel:
        stub = base_pb2_grpc.SparkConnectServiceStub(channel)
        with pytest.raises(grpc.RpcError) as failed:
            list(stub.ExecutePlan(plan(), metadata=CALLER))
    front.stop()
    assert failed.value.code() is grpc.StatusCode.INTERNAL
    assert failed.value.details() == "the JVM ended"


def test_a_stream_of_requests_passes(stub: Any, server: Server) -> None:
    sent = [proto.AddArtifactsRequest(session_id=str(number)) for number in range(5)]
    assert stub.AddArtifacts(iter(sent), metadata=CALLER).session_id == SESSION
    assert server.requests == sent


def test_cancelling_a_call_cancels_it_at_the_server(stub: Any, server: Server) -> None:
    call = stub.ExecutePlan(plan(tags=["waits"]), metadata=CALLER)
    assert next(call).response_id == "0"
    call.cancel()
    assert server.cancelled.wait(PATIENCE_S)


def test_an_answered_command_can_be_reattached_and_released(stub: Any, answers: Answers) -> None:
    more = threading.Event()

    def work(operation: Operation) -> None:
        for text in ("a", "b"):
            operation.respond(sql_command_result={"relation": {"sql": {"query": text}}})
        more.wait(PATIENCE_S)

    answers.work = work
    call = stub.ExecutePlan(plan(command=True, operation_id="op"), metadata=CALLER)
    first, second = next(call), next(call)
    call.cancel()
    assert first.sql_command_result.relation.sql.query == "a"
    assert {first.session_id, second.session_id} == {SESSION}
    assert {first.operation_id, second.operation_id} == {"op"}

    attach = proto.ReattachExecuteRequest(
        session_id=SESSION,
        user_context=USER,
        operation_id="op",
        last_response_id=first.response_id,
    )
    again = stub.ReattachExecute(attach, metadata=CALLER)
    assert next(again) == second
    more.set()
    assert next(again).HasField("result_complete")
    assert not list(again)

    release = proto.ReleaseExecuteRequest(session_id=SESSION, user_context=USER, operation_id="op")
    release.release_until.response_id = first.response_id
    stub.ReleaseExecute(release, metadata=CALLER)
    attach.last_response_id = ""
    assert next(stub.ReattachExecute(attach, metadata=CALLER)) == second
    release.release_all.SetInParent()
    stub.ReleaseExecute(release, metadata=CALLER)
    with pytest.raises(grpc.RpcError) as unknown:  # the server, which has no such method, decides
        list(stub.ReattachExecute(attach, metadata=CALLER))
    assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_client_attaches_only_after_a_response_that_exists(stub: Any) -> None:
    list(stub.ExecutePlan(plan(command=True, operation_id="op"), metadata=CALLER))
    attach = proto.ReattachExecuteRequest(
        session_id=SESSION, user_context=USER, operation_id="op", last_response_id="other"
    )
    with pytest.raises(grpc.RpcError) as failed:
        list(stub.ReattachExecute(attach, metadata=CALLER))
    assert "INVALID_CURSOR" in failed.value.details()


@pytest.mark.parametrize(
    ("error", "java_class", "condition"),
    [
        (
            AnalysisException(
                errorClass="STREAMING_OUTPUT_MODE.INVALID",
                messageParameters={"outputMode": "x"},
                message="unknown mode",
            ),
            "org.apache.spark.sql.AnalysisException",
            "STREAMING_OUTPUT_MODE.INVALID",
        ),
        (InvalidProgram("not supported"), "org.apache.spark.sql.AnalysisException", None),
        (
            QueryFailed("no", "DIVIDE_BY_ZERO", {"id": "a", "runId": "b"}),
            "org.apache.spark.sql.streaming.StreamingQueryException",
            "STREAM_FAILED",
        ),
        (RuntimeError("x" * 100_000), "org.apache.spark.SparkException", None),
    ],
)
def test_an_error_of_a_command_is_reported_as_spark_does(
    stub: Any, answers: Answers, error: Exception, java_class: str, condition: str | None
) -> None:
    def work(operation: Operation) -> None:
        raise error

    answers.work = work
    with pytest.raises(grpc.RpcError) as failed:
        list(stub.ExecutePlan(plan(command=True), metadata=CALLER))
    status = rpc_status.from_call(failed.value)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.reason == java_class
    assert info.metadata.get("errorClass") == condition
    assert status.message.startswith(str(error)[:100])
    if isinstance(error, QueryFailed):
        shown = json.loads(info.metadata["messageParameters"])
        assert shown == {"id": "a", "runId": "b", "message": "no"}


@pytest.mark.parametrize("kind", ["operation_id", "tag", "all"])
def test_an_interrupt_ends_the_chosen_commands(stub: Any, answers: Answers, kind: str) -> None:
    waiting = threading.Event()

    def work(operation: Operation) -> None:
        waiting.set()
        assert operation.cancelled.wait(PATIENCE_S)

    answers.work = work
    call = stub.ExecutePlan(plan(command=True, operation_id="op", tags=["mine"]), metadata=CALLER)
    assert waiting.wait(PATIENCE_S)
    request = proto.InterruptRequest(session_id=SESSION, user_context=USER)
    if kind == "operation_id":
        request.operation_id = "op"
    elif kind == "tag":
        request.operation_tag = "mine"
    interrupted = stub.Interrupt(request, metadata=CALLER).interrupted_ids
    assert list(interrupted) == (["op"] if kind == "operation_id" else ["of-spark", "op"])
    assert next(call).HasField("result_complete")


def test_a_released_session_cancels_its_commands(stub: Any, answers: Answers) -> None:
    cancelled = threading.Event()
    waiting = threading.Event()

    def work(operation: Operation) -> None:
        operation.on_cancel(cancelled.set)
        waiting.set()
        operation.cancelled.wait(PATIENCE_S)

    answers.work = work
    call = stub.ExecutePlan(plan(command=True), metadata=CALLER)
    assert waiting.wait(PATIENCE_S)
    stub.ReleaseSession(
        proto.ReleaseSessionRequest(session_id=SESSION, user_context=USER), metadata=CALLER
    )
    assert cancelled.wait(PATIENCE_S)
    assert answers.released == [SessionKey("ada", SESSION)]
    assert [response.HasField("result_complete") for response in call] == [True]


def test_a_compressed_command_is_recognised(stub: Any, answers: Answers, server: Server) -> None:
    zstandard = pytest.importorskip("zstandard")
    request = plan(command=True)
    data = zstandard.compress(request.plan.command.SerializeToString())
    kinds = proto.Plan.CompressedOperation.OpType
    request.plan.compressed_operation.data = data
    request.plan.compressed_operation.op_type = kinds.OP_TYPE_COMMAND
    assert [each.HasField("result_complete") for each in stub.ExecutePlan(request, metadata=CALLER)]
    assert not server.requests
