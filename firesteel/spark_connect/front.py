"""The gRPC server that programs connect to: it answers the commands of streaming queries, and
passes every other call to the Spark Connect server in the JVM.

Calls pass as bytes, in both directions, with their metadata, deadlines, errors and trailers, so
the front needs no knowledge of most of the protocol.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

import grpc
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status
from pyspark.sql.connect import proto

from firesteel.common.logs import get_logger
from firesteel.common.security.credentials import BEARER
from firesteel.errors import FiresteelError
from firesteel.spark_connect.admission import Admission, NotAdmitted, NotAllowed, TooManyCalls
from firesteel.spark_connect.failures import Reports
from firesteel.spark_connect.kafka_table import renamed
from firesteel.spark_connect.operations import (
    Operation,
    Operations,
    SessionKey,
    UnknownResponse,
)

SERVICE = proto.base_pb2.DESCRIPTOR.services_by_name["SparkConnectService"]  # type: ignore[attr-defined]
MAX_CALLS = 256  # at a time: each query that a program awaits takes one
_UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
_OPTIONS = [
    *_UNLIMITED,
    ("grpc.so_reuseport", 0),
    # PySpark's clients ping every minute, even without calls.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_FAR_S = 10 * 365 * 86_400.0
_HOP = ("authorization", "user-agent", "te", "content-type")  # metadata of one connection

log = get_logger(__name__)


class Commands(Protocol):
    """Answers commands in place of Spark."""

    def handler(self, command: proto.Command) -> Callable[[Operation], None] | None:
        """Returns what executes the command; None if Spark does."""

    def before(self, session: SessionKey, plan: proto.Plan) -> None:
        """Called before Spark runs or analyses a plan of the session, which it may change."""

    def release(self, session: SessionKey) -> None:
        """Called when a session ends."""


class SparkServer(NamedTuple):
    """A Spark Connect server."""

    address: str  # host and port
    token: str


class Front:
    """Serves on `host` and `port`, 0 for any free one, from `start` to `stop`; with TLS if there
    are `credentials`.

    `server` returns Spark's server, and may wait for its start. `why_lost` says why the server is
    gone, or returns "" if it is not: clients repeat calls to a server that may come back. Raises
    FiresteelError if the port is taken.
    """

    def __init__(
        self,
        admission: Admission,
        server: Callable[[], SparkServer],
        commands: Commands,
        why_lost: Callable[[], str] = lambda: "",
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._admission = admission
        self._server = server
        self._commands = commands
        self._why_lost = why_lost
        self._operations = Operations()
        self._reports = Reports()
        self._connecting = threading.Lock()
        self._connection: tuple[grpc.Channel, str] | None = None  # and the server's token
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="front")
        # Calls beyond that end with RESOURCE_EXHAUSTED, instead of waiting for others.
        self._grpc = grpc.server(self._pool, options=_OPTIONS, maximum_concurrent_rpcs=MAX_CALLS)
        self._grpc.add_generic_rpc_handlers((_Calls(self),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is None:
                self.port = self._grpc.add_insecure_port(address)
            else:
                self.port = self._grpc.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise FiresteelError(f"Spark Connect cannot listen on {address}: {error}") from None

    def start(self) -> None:
        self._grpc.start()

    def stop(self) -> None:
        """Ends all calls."""
        self._grpc.stop(grace=0.2).wait()
        if self._connection is not None:
            self._connection[0].close()
        self._pool.shutdown(wait=False, cancel_futures=True)

    # -- calls

    def handlers(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        """Returns the handler of each method of the service, by its path."""
        own: dict[str, Callable[[Any, grpc.ServicerContext], Any]] = {
            "ExecutePlan": self._execute_plan,
            "AnalyzePlan": self._analyze_plan,
            "ReattachExecute": self._reattach_execute,
            "ReleaseExecute": self._release_execute,
            "ReleaseSession": self._release_session,
            "Interrupt": self._interrupt,
            "FetchErrorDetails": self._fetch_error_details,
        }
        handlers = {}
        for method in SERVICE.methods:
            path = f"/{SERVICE.full_name}/{method.name}"
            kind = (
                f"{'stream' if method.client_streaming else 'unary'}_"
                f"{'stream' if method.server_streaming else 'unary'}"
            )
            behavior = own.get(method.name) or self._passing(path, kind)
            make = getattr(grpc, f"{kind}_rpc_method_handler")
            handlers[path] = make(self._checked(behavior, method))
        return handlers

    def _checked(self, behavior: Callable[..., Any], method: Any) -> Callable[..., Any]:
        """Refuses callers who are not admitted, and reports errors as Spark does."""
        message = GetMessageClass(method.input_type)

        def session_of(request: bytes) -> Callable[[], SessionKey]:
            return lambda: SessionKey.of(message.FromString(request))

        def admitted(request: Any, context: grpc.ServicerContext) -> Any:
            """Returns what surrounds the call, and its request."""
            first = request
            if method.client_streaming:
                first = next(request, b"")
                request = itertools.chain([first], request)
            header = dict(context.invocation_metadata()).get("authorization", "")
            use = self._admission.admit(str(header), session_of(first), context.peer())
            return use, request

        def unary(request: Any, context: grpc.ServicerContext) -> Any:
            with _Reported(context, self._reports, self._why_lost):
                use, request = admitted(request, context)
                with use:
                    return behavior(request, context)

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _Reported(context, self._reports, self._why_lost):
                use, request = admitted(request, context)
                with use:
                    yield from behavior(request, context)

        return stream if method.server_streaming else unary

    def _connected(self) -> tuple[grpc.Channel, str]:
        """Returns the channel to Spark's server, and the token of its calls."""
        with self._connecting:
            if self._connection is None:
                server = self._server()
                channel = grpc.insecure_channel(server.address, options=_UNLIMITED)
                self._connection = channel, server.token
            return self._connection

    def _passing(self, path: str, kind: str) -> Callable[[Any, grpc.ServicerContext], Any]:
        """Returns a handler that passes a call to Spark's server."""

        def call_of(context: grpc.ServicerContext) -> tuple[Any, list[tuple[str, str | bytes]]]:
            channel, token = self._connected()
            metadata = [*_passed_on(context), ("authorization", f"{BEARER}{token}")]
            return getattr(channel, kind)(path), metadata

        def unary(request: Any, context: grpc.ServicerContext) -> Any:
            call, metadata = call_of(context)
            response, passed = call.with_call(
                request, metadata=metadata, timeout=_timeout_s(context)
            )
            context.set_trailing_metadata(passed.trailing_metadata() or ())
            return response

        def stream(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            call, metadata = call_of(context)
            responses = call(request, metadata=metadata, timeout=_timeout_s(context))
            if not context.add_callback(responses.cancel):  # the caller has gone
                responses.cancel()
            yield from responses
            context.set_trailing_metadata(responses.trailing_metadata() or ())

        return stream if kind.endswith("_stream") else unary

    # -- calls that the front answers, or observes

    def _execute_plan(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        parsed = proto.ExecutePlanRequest.FromString(request)
        session = SessionKey.of(parsed)
        handler = self._handler(parsed.plan)
        if handler is None:
            known = _knowing_kafka(proto.ExecutePlanRequest, request)
            if parsed.plan.HasField("command"):
                parsed = proto.ExecutePlanRequest.FromString(known)
                self._commands.before(session, parsed.plan)
                known = parsed.SerializeToString()
            else:
                self._commands.before(session, proto.Plan())
            yield from self._pass("ExecutePlan", "unary_stream", known, context)
            return
        operation = Operation(parsed)
        self._operations.add(operation)
        operation.start(handler)
        try:
            yield from self._read(operation, "", context)
        finally:
            if not _is_reattachable(parsed):
                self._operations.release(session, operation.operation_id)

    def _handler(self, plan: proto.Plan) -> Callable[[Operation], None] | None:
        command = plan.command
        if plan.WhichOneof("op_type") == "compressed_operation":
            command = _decompressed(plan.compressed_operation)
        return self._commands.handler(command)

    def _read(
        self, operation: Operation, after: str, context: grpc.ServicerContext
    ) -> Iterator[bytes]:
        context.add_callback(operation.wake)
        for response in operation.responses(after, context.is_active):
            yield response.SerializeToString()

    def _analyze_plan(self, request: bytes, context: grpc.ServicerContext) -> Any:
        session = SessionKey.of(proto.AnalyzePlanRequest.FromString(request))
        self._commands.before(session, proto.Plan())
        known = _knowing_kafka(proto.AnalyzePlanRequest, request)
        return self._pass("AnalyzePlan", "unary_unary", known, context)

    def _reattach_execute(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        parsed = proto.ReattachExecuteRequest.FromString(request)
        operation = self._operations.get(SessionKey.of(parsed), parsed.operation_id)
        if operation is None:
            yield from self._pass("ReattachExecute", "unary_stream", request, context)
            return
        yield from self._read(operation, parsed.last_response_id, context)

    def _release_execute(self, request: bytes, context: grpc.ServicerContext) -> Any:
        parsed = proto.ReleaseExecuteRequest.FromString(request)
        session = SessionKey.of(parsed)
        operation = self._operations.get(session, parsed.operation_id)
        if operation is None:
            return self._pass("ReleaseExecute", "unary_unary", request, context)
        if parsed.WhichOneof("release") == "release_until":
            operation.release(parsed.release_until.response_id)
        else:
            self._operations.release(session, operation.operation_id)
        return proto.ReleaseExecuteResponse(
            session_id=session.session_id,
            server_side_session_id=parsed.client_observed_server_side_session_id,
            operation_id=operation.operation_id,
        ).SerializeToString()

    def _release_session(self, request: bytes, context: grpc.ServicerContext) -> Any:
        session = SessionKey.of(proto.ReleaseSessionRequest.FromString(request))
        self._commands.release(session)
        self._operations.release_session(session)
        return self._pass("ReleaseSession", "unary_unary", request, context)

    def _interrupt(self, request: bytes, context: grpc.ServicerContext) -> Any:
        parsed = proto.InterruptRequest.FromString(request)
        session = SessionKey.of(parsed)
        kind = parsed.WhichOneof("interrupt")

        def chosen(operation: Operation) -> bool:
            if kind == "operation_id":
                return operation.operation_id == parsed.operation_id
            return kind is None or parsed.operation_tag in operation.tags

        own = self._operations.interrupt(session, chosen)
        if own and kind == "operation_id":
            return proto.InterruptResponse(
                session_id=session.session_id,
                server_side_session_id=parsed.client_observed_server_side_session_id,
                interrupted_ids=own,
            ).SerializeToString()
        response = proto.InterruptResponse.FromString(
            self._pass("Interrupt", "unary_unary", request, context)
        )
        response.interrupted_ids.extend(own)
        return response.SerializeToString()

    def _fetch_error_details(self, request: bytes, context: grpc.ServicerContext) -> Any:
        details = self._reports.details(proto.FetchErrorDetailsRequest.FromString(request))
        if details is not None:
            return details.SerializeToString()
        return self._pass("FetchErrorDetails", "unary_unary", request, context)

    def _pass(self, method: str, kind: str, request: Any, context: grpc.ServicerContext) -> Any:
        return self._passing(f"/{SERVICE.full_name}/{method}", kind)(request, context)


class _Calls(grpc.GenericRpcHandler):  # type: ignore[misc, type-arg]
    def __init__(self, front: Front) -> None:
        self._handlers = front.handlers()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        return self._handlers.get(details.method)


class _Reported:
    """Ends a call with the error that is raised inside, as Spark's server would report it."""

    def __init__(
        self, context: grpc.ServicerContext, reports: Reports, why_lost: Callable[[], str]
    ) -> None:
        self._context = context
        self._reports = reports
        self._why_lost = why_lost

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, grpc.RpcError) and isinstance(error, grpc.Call):
            lost = self._why_lost() if error.code() is grpc.StatusCode.UNAVAILABLE else ""
            if lost:
                self._context.abort(grpc.StatusCode.INTERNAL, lost)
            self._context.set_trailing_metadata(error.trailing_metadata() or ())
            self._context.abort(error.code(), error.details() or "")
        if isinstance(error, NotAdmitted):
            self._context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        if isinstance(error, NotAllowed):
            self._context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        if isinstance(error, TooManyCalls):
            self._context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        if isinstance(error, UnknownResponse):
            self._context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"INVALID_CURSOR.POSITION_NOT_AVAILABLE: response {error} is not available",
            )
        if isinstance(error, Exception) and self._context.is_active():
            self._context.abort_with_status(rpc_status.to_status(self._reports.status_of(error)))


def _passed_on(context: grpc.ServicerContext) -> list[tuple[str, str | bytes]]:
    """Returns the metadata of a call, without those of its connection."""
    return [
        (key, value)
        for key, value in context.invocation_metadata()
        if key not in _HOP and not key.startswith(("grpc-", ":"))
    ]


def _timeout_s(context: grpc.ServicerContext) -> float | None:
    """Returns the time until the call's deadline, which gRPC sets to the far future if there is
    none.
    """
    remaining_s = context.time_remaining()
    return None if remaining_s is None or remaining_s > _FAR_S else remaining_s


def _is_reattachable(request: proto.ExecutePlanRequest) -> bool:
    return any(
        option.reattach_options.reattachable
        for option in request.request_options
        if option.WhichOneof("request_option") == "reattach_options"
    )


def _decompressed(operation: proto.Plan.CompressedOperation) -> proto.Command:
    """Returns a command that the client has compressed; an empty one for a relation."""
    kinds = proto.Plan.CompressedOperation.OpType
    if operation.op_type != kinds.OP_TYPE_COMMAND:
        return proto.Command()
    import zstandard  # clients compress only if they have it

    with zstandard.ZstdDecompressor().stream_reader(operation.data) as reader:
        return proto.Command.FromString(reader.read())


def _knowing_kafka(kind: Any, request: bytes) -> bytes:
    """Returns the request with the name that Firesteel's format for Kafka has in Spark."""
    if b"kafka" not in request.lower():
        return request
    content: bytes = renamed(kind.FromString(request)).SerializeToString()
    return content
