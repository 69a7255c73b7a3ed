"""An API server of Kubernetes, over TLS, with its controllers and its scheduler, in a thread.

with ApiServer(directory) as server:
    access = server.access_for(...)   # for KubernetesClient
    server.kubeconfig                 # for kubectl

python -m tests.kubernetes.api_server DIRECTORY    # prints the path of the kubeconfig
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml
from aiohttp import web

from tests.kubernetes import protobuf
from tests.kubernetes.access import ADMIN, Access, Certificates, Denial, kubeconfig
from tests.kubernetes.controllers import CONTROLLERS, budget_pods
from tests.kubernetes.failure import Failure, bad_request, expired
from tests.kubernetes.faults import Fault, Faults
from tests.kubernetes.kinds import BY_NAME, Kind, Object
from tests.kubernetes.loop_thread import LoopThread
from tests.kubernetes.port_forwards import forwarded
from tests.kubernetes.registry import Registry, change_of, key_of, now
from tests.kubernetes.routes import Route, discovery, openapi, route_of
from tests.kubernetes.scheduler import schedule
from tests.kubernetes.selection import matcher
from tests.kubernetes.store import Key, Store
from tests.kubernetes.watching import Watch, events

BOOKMARK_INTERVAL_S = 1.0
_APPLY = "application/apply-patch+yaml"
_ROUNDS = 100  # of the controllers, until nothing changes
_PROBES = ("/healthz", "/livez", "/readyz")

# Returns the log of a container: namespace, pod, container (or empty), whether the one before.
LogOf = Callable[[str, str, str, bool], Path]


class ApiServer:
    """Use it in a `with`. Methods may be called from any thread."""

    def __init__(
        self,
        directory: Path,
        *,
        bookmark_interval_s: float = BOOKMARK_INTERVAL_S,
        namespaces: tuple[str, ...] = ("default", "kube-system"),
        port: int = 0,
    ) -> None:
        self.certificates = Certificates(directory)
        self.directory = directory
        self.store = Store()
        self.registry = Registry(self.store)
        self.access = Access(self.store)
        self.faults = Faults()
        self.log_of: LogOf | None = None  # the kubelet sets it
        self.requests: list[str] = []  # "verb resource", in the order of their arrival
        self._bookmark_interval_s = bookmark_interval_s
        self._namespaces = namespaces
        self._port = port
        self._pages: dict[str, tuple[int, list[Object]]] = {}
        self._site: web.SockSite | None = None  # None while the server is away
        self._watches: list[asyncio.Transport] = []

    # ---- life cycle

    def __enter__(self) -> Self:
        self.thread = LoopThread("kube-apiserver")
        self.thread.call(self._start())
        self.admin_token = self.access.token()
        self.kubeconfig = self.directory / "kubeconfig"
        self.kubeconfig.write_text(
            kubeconfig(self.url, self.certificates.authority, self.admin_token)
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.thread.call(self._stop())
        self.thread.close()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        return self._port

    # ---- what tests do

    def token_of(self, namespace: str, service_account: str) -> str:
        return self.access.token(f"system:serviceaccount:{namespace}:{service_account}")

    def fail(self, fault: Fault) -> None:
        self.faults.pending.append(fault)

    def deny(self, verb: str = "", resource: str = "", user: str = "") -> None:
        self.access.denials.append(Denial(verb=verb, resource=resource, user=user))

    def compact(self) -> None:
        self.thread.do(self.store.compact)

    def drop_watches(self) -> None:
        """Breaks the connections of all watches."""

        def drop() -> None:
            for transport in self._watches:
                transport.abort()

        self.thread.do(drop)

    def go_away(self) -> None:
        """Stops to listen, and breaks all connections."""
        self.thread.call(self._go_away())

    def come_back(self) -> None:
        self.thread.call(self._listen())

    def objects(self, kind: str, namespace: str = "") -> list[Object]:
        return self.thread.do(lambda: self.store.all(kind, namespace))

    def add_node(self, name: str, **allocatable: str) -> None:
        """Adds a ready node that a scheduler may use."""
        room = {"cpu": "64", "memory": "256Gi", "pods": "110"} | allocatable
        self.thread.do(lambda: self._add_node(name, room))

    def act(self, action: Callable[[Registry], Any]) -> Any:
        """Calls a function with the registry, as a controller of the cluster."""
        return self.thread.do(lambda: action(self.registry))

    # ---- inside

    async def _start(self) -> None:
        for namespace in self._namespaces:
            self.registry.create(BY_NAME["Namespace"], "", {"metadata": {"name": namespace}})
        application = web.Application(client_max_size=4 * 1024 * 1024)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await self._listen()
        self._controllers = asyncio.create_task(self._run_controllers())

    async def _listen(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", self._port))
        site = web.SockSite(self._runner, self._listening, ssl_context=self.certificates.context())
        await site.start()
        self._site, self._port = site, self._listening.getsockname()[1]

    async def _go_away(self) -> None:
        if self._site is not None:
            # asyncio leaves a connection open that it has accepted when its server closes.
            asyncio.get_running_loop().remove_reader(self._listening)
            await asyncio.sleep(0)
            await self._site.stop()
            self._site = None
        server = self._runner.server
        for connection in server.connections if server is not None else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def _stop(self) -> None:
        self._controllers.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._controllers
        await self._go_away()
        await self._runner.cleanup()
        await asyncio.sleep(0.05)  # handshakes of clients that have left fail

    def _add_node(self, name: str, room: dict[str, str]) -> None:
        node = self.registry.create(BY_NAME["Node"], "", {"metadata": {"name": name}})
        ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}
        status = {"allocatable": room, "capacity": room, "conditions": [ready]}
        self.registry.set_status(BY_NAME["Node"], node, status)

    async def _run_controllers(self) -> None:
        while True:
            for _ in range(_ROUNDS):
                seen = self.store.version
                if not self.faults.controllers_stopped:
                    for controller in (*CONTROLLERS, schedule):
                        controller(self.registry)
                if seen == self.store.version:
                    break
            await self.store.changed()

    # ---- requests

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            return await self._answer(request)
        except Failure as failure:
            headers = {}
            if failure.retry_after_s is not None:
                headers["Retry-After"] = str(failure.retry_after_s)
            return web.json_response(failure.status, status=failure.code, headers=headers)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path in _PROBES:
            return web.Response(text="ok")
        user = self._user(request)
        document = discovery(path) or openapi(path)
        if document is not None:
            return web.json_response(document)
        route = route_of(path)
        verb = _verb(request, route)
        self.requests.append(f"{verb} {route.resource}")
        fault = self.faults.take(verb, route.resource)
        if fault is not None and fault.hang:
            await asyncio.get_running_loop().create_future()
        if fault is not None and fault.code:
            message = f"fault of the test: HTTP {fault.code}"
            raise Failure(fault.code, "Fault", message, retry_after_s=fault.retry_after_s)
        self.access.check(user, verb, route.kind, route.namespace, route.name, route.subresource)
        answer = await self._execute(request, route, verb, user)
        if fault is not None and fault.lose_answer:
            assert request.transport is not None
            request.transport.abort()
        return answer

    def _user(self, request: web.Request) -> str:
        assert request.transport is not None
        certificate = request.transport.get_extra_info("peercert")
        user = self.access.user(request.headers.get("Authorization", ""), certificate)
        if user == ADMIN:
            user = request.headers.get("Impersonate-User", user)
        return user

    async def _execute(
        self, request: web.Request, route: Route, verb: str, user: str
    ) -> web.StreamResponse:
        kind, namespace, name = route.kind, route.namespace, route.name
        if verb == "watch":
            return await self._watch(request, route)
        if verb == "list":
            return web.json_response(self._list(request, route))
        body = await _body(request)
        query = request.query
        manager = _manager(request)
        dry_run = query.get("dryRun") == "All"
        if route.subresource not in ("", "status"):
            return await self._execute_subresource(request, route, verb, body)
        if kind.create_only:
            return web.json_response(self._review(body, user), status=201)
        match verb:
            case "get":
                return web.json_response(self.registry.get(kind, namespace, name))
            case "create":
                created = self.registry.create(kind, namespace, body, manager, dry_run=dry_run)
                return web.json_response(_typed(kind, created), status=201)
            case "update":
                subresource = route.subresource
                updated = self.registry.update(
                    *(kind, namespace, name, body, manager),
                    subresource=subresource,
                    dry_run=dry_run,
                )
                return web.json_response(_typed(kind, updated))
            case "patch" if request.content_type == _APPLY:
                force = query.get("force") == "true"
                existed = self.store.get(Key(kind.kind, namespace, name)) is not None
                applied = self.registry.apply(
                    kind, namespace, name, body, manager, force=force, dry_run=dry_run
                )
                return web.json_response(_typed(kind, applied), status=200 if existed else 201)
            case "patch":
                change = change_of(request.content_type, body)
                patched = self.registry.patch(
                    *(kind, namespace, name, change, manager),
                    subresource=route.subresource,
                    dry_run=dry_run,
                )
                return web.json_response(_typed(kind, patched))
            case "delete":
                return web.json_response(self._delete(route, name, _options(body, query)))
            case "deletecollection":
                matches = matcher(
                    kind, query.get("labelSelector", ""), query.get("fieldSelector", "")
                )
                for found in filter(matches, self.store.all(kind, namespace)):
                    self._delete(route, found["metadata"]["name"], _options(body, query))
                return web.json_response(
                    {"kind": "Status", "apiVersion": "v1", "status": "Success"}
                )
            case _:
                raise Failure(405, "MethodNotAllowed", f"{verb} is not supported")

    def _delete(self, route: Route, name: str, options: Object) -> Object:
        if options.get("dryRun"):
            return self.registry.get(route.kind, route.namespace, name)
        deleted = self.registry.delete(route.kind, route.namespace, name, options)
        if self.store.get(Key(route.kind.kind, route.namespace, name)) is not None:
            return deleted
        details = {
            "name": name,
            "group": route.kind.group,
            "kind": route.kind.plural,
            "uid": deleted["metadata"]["uid"],
        }
        status = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
        return status | {"details": details}

    def _list(self, request: web.Request, route: Route) -> Object:
        query = request.query
        if following := query.get("continue"):
            version, rest = self._pages.pop(following, (0, []))
            if version <= self.store.compacted:
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result."
                )
        else:
            matches = matcher(
                route.kind, query.get("labelSelector", ""), query.get("fieldSelector", "")
            )
            version = self.store.version
            rest = list(filter(matches, self.store.all(route.kind, route.namespace)))
        limit = int(query.get("limit", 0)) or len(rest)
        page, rest = rest[:limit], rest[limit:]
        metadata: Object = {"resourceVersion": str(version)}
        if rest:
            metadata["continue"] = f"{version}-{len(self._pages)}-{len(rest)}"
            metadata["remainingItemCount"] = len(rest)
            self._pages[metadata["continue"]] = (version, rest)
        untyped = [{k: v for k, v in o.items() if k not in ("apiVersion", "kind")} for o in page]
        return {
            "kind": f"{route.kind.kind}List",
            "apiVersion": route.kind.api_version,
            "metadata": metadata,
            "items": untyped,
        }

    async def _watch(self, request: web.Request, route: Route) -> web.StreamResponse:
        query = request.query
        watch = Watch(
            kind=route.kind,
            namespace=route.namespace,
            matches=matcher(
                route.kind, query.get("labelSelector", ""), query.get("fieldSelector", "")
            ),
            resource_version=query.get("resourceVersion", ""),
            timeout_s=float(query.get("timeoutSeconds", 3600)),
            bookmarks=query.get("allowWatchBookmarks") == "true",
            bookmark_interval_s=self._bookmark_interval_s,
            initial=query.get("sendInitialEvents") == "true",
        )
        transport = request.transport
        assert transport is not None
        self._watches.append(transport)
        try:
            return await _stream(
                request, events(watch, self.store, self.faults), "application/json"
            )
        finally:
            self._watches.remove(transport)

    async def _execute_subresource(
        self, request: web.Request, route: Route, verb: str, body: Any
    ) -> web.StreamResponse:
        found = self.registry.get(route.kind, route.namespace, route.name)
        match route.subresource:
            case "scale":
                return web.json_response(self._scale(request, route, found, verb, body))
            case "eviction":
                self.evict(found, _options(body.get("deleteOptions"), request.query))
                status = {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}
                return web.json_response(status, status=201)
            case "token":
                token = self.token_of(route.namespace, route.name)
                status = {"token": token, "expirationTimestamp": now(3600)}
                return web.json_response(body | {"status": status}, status=201)
            case "log":
                return await self._log(request, route, found)
            case "portforward":
                return await forwarded(request, found)
            case _:
                raise Failure(404, "NotFound", "the server could not find the requested resource")

    def _scale(
        self, request: web.Request, route: Route, found: Object, verb: str, body: Any
    ) -> Object:
        if verb != "get":
            change = change_of(request.content_type, body) if verb == "patch" else lambda _: body
            replicas = change(_scale_of(found)).get("spec", {}).get("replicas", 0)

            def scaled(current: Object) -> Object:
                current["spec"]["replicas"] = replicas
                return current

            where = (route.kind, route.namespace, route.name)
            found = self.registry.patch(*where, scaled, _manager(request))
        return _scale_of(found)

    def evict(self, pod: Object, options: Object) -> None:
        metadata = pod["metadata"]
        for budget in self.store.all("PodDisruptionBudget", metadata["namespace"]):
            pods, _ = budget_pods(self.registry, budget)
            selected = any(p["metadata"]["uid"] == metadata["uid"] for p in pods)
            if selected and not (budget.get("status") or {}).get("disruptionsAllowed"):
                message = "Cannot evict pod as it would violate the pod's disruption budget."
                cause = {"reason": "DisruptionBudget", "message": budget["metadata"]["name"]}
                raise Failure(429, "TooManyRequests", message, causes=[cause])
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
        }
        conditions = [*(pod["status"].get("conditions") or ()), condition]
        status = pod["status"] | {"conditions": conditions}
        self.registry.set_status(BY_NAME["Pod"], pod, status)
        key = key_of(BY_NAME["Pod"], pod)
        self.registry.delete(BY_NAME["Pod"], key.namespace, key.name, options)

    def _review(self, body: Any, user: str) -> Object:
        attributes = body["spec"].get("resourceAttributes") or {}
        plural, group = attributes.get("resource", ""), attributes.get("group", "")
        kind = next((k for k in BY_NAME.values() if (k.plural, k.group) == (plural, group)), None)
        allowed = kind is not None and self.access.may(
            user,
            attributes.get("verb", ""),
            kind,
            attributes.get("namespace", ""),
            attributes.get("name", ""),
            attributes.get("subresource", ""),
        )
        return body | {"status": {"allowed": allowed}}

    async def _log(self, request: web.Request, route: Route, pod: Object) -> web.StreamResponse:
        query = request.query
        container = query.get("container", "")
        statuses = pod["status"].get("containerStatuses") or ()
        started = any(
            "waiting" not in (s.get("state") or {}) or s.get("lastState")
            for s in statuses
            if container in ("", s["name"])
        )
        if self.log_of is None or not started:
            name = container or pod["spec"]["containers"][0]["name"]
            raise bad_request(
                f'container "{name}" in pod "{route.name}" is waiting to start: ContainerCreating'
            )
        path = self.log_of(route.namespace, route.name, container, query.get("previous") == "true")
        if not path.exists():
            raise bad_request(f'previous terminated container "{container}" not found')
        if query.get("follow") == "true":
            return await _stream(request, self._follow(route, path), "text/plain")
        text = path.read_bytes()
        if tail := query.get("tailLines"):
            lines = text.splitlines(keepends=True)
            text = b"".join(lines[len(lines) - min(int(tail), len(lines)) :])
        if limit := query.get("limitBytes"):
            text = text[: int(limit)]
        return web.Response(body=text, content_type="text/plain")

    async def _follow(self, route: Route, path: Path) -> AsyncIterator[bytes]:
        """Yields the log until the pod has ended or is gone."""
        with path.open("rb") as file:
            while True:
                pod = self.store.get(Key("Pod", route.namespace, route.name))
                ended = pod is None or pod["status"]["phase"] in ("Succeeded", "Failed")
                while piece := file.read(65_536):
                    yield piece
                if ended:
                    return
                await asyncio.sleep(0.05)


async def _stream(
    request: web.Request, pieces: AsyncIterator[bytes], content_type: str
) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": content_type})
    response.enable_chunked_encoding()
    with contextlib.suppress(ConnectionError):
        await response.prepare(request)
        async with contextlib.aclosing(pieces):  # type: ignore[type-var]
            async for piece in pieces:
                await response.write(piece)
        await response.write_eof()
    return response


def _verb(request: web.Request, route: Route) -> str:
    named = bool(route.name)
    match request.method:
        case "GET" if named:
            return "get"
        case "GET":
            return "watch" if request.query.get("watch") in ("true", "1") else "list"
        case "POST":
            return "create"
        case "PUT":
            return "update"
        case "PATCH":
            return "patch"
        case "DELETE":
            return "delete" if named else "deletecollection"
        case method:
            raise Failure(405, "MethodNotAllowed", f"{method} is not supported")


def _manager(request: web.Request) -> str:
    agent = request.headers.get("User-Agent", "")
    return request.query.get("fieldManager") or agent.partition("/")[0]


async def _body(request: web.Request) -> Any:
    if "protobuf" in request.content_type and (found := protobuf.decoded(await request.read())):
        return found
    if "protobuf" in request.content_type or "cbor" in request.content_type:
        message = f"{request.content_type} is not supported; send JSON"
        raise Failure(415, "UnsupportedMediaType", message)
    text = await request.text()
    if not text:
        return {}
    try:
        body = yaml.safe_load(text) if request.content_type == _APPLY else json.loads(text)
    except (ValueError, yaml.YAMLError):
        raise bad_request("the body of the request is malformed") from None
    if not isinstance(body, dict) and request.content_type != "application/json-patch+json":
        raise bad_request("the body of the request is not an object")
    return body


def _options(body: Any, query: Any) -> Object:
    options = dict(body or {})
    if "propagationPolicy" in query:
        options["propagationPolicy"] = query["propagationPolicy"]
    if "gracePeriodSeconds" in query:
        options["gracePeriodSeconds"] = int(query["gracePeriodSeconds"])
    if "dryRun" in query:
        options["dryRun"] = [query["dryRun"]]
    return options


def _typed(kind: Kind, found: Object) -> Object:
    return found | {"apiVersion": kind.api_version, "kind": kind.kind}


def _scale_of(found: Object) -> Object:
    metadata = {k: found["metadata"][k] for k in ("name", "namespace", "uid", "resourceVersion")}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": found["spec"]["replicas"]},
        "status": {"replicas": (found.get("status") or {}).get("replicas", 0)},
    }


def main() -> None:
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    directory.mkdir(parents=True, exist_ok=True)
    with ApiServer(directory) as server:
        server.add_node("node-1")
        print(f"export KUBECONFIG={server.kubeconfig}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
