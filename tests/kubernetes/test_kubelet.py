"""Pods run as processes: their environment, files, ends, probes, logs and deaths."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from firesteel.kubernetes.access.kubeconfig import from_kubeconfig
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.errors import Invalid
from firesteel.kubernetes.resources import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICES,
    Object,
)
from tests.kubernetes import names
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.containers import Image
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.pod_files import ROOT
from tests.waiting import until

NAMESPACE = "default"


@pytest.fixture
def kubelet(api_server: ApiServer, tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(api_server, tmp_path / "pods", nodes=("node-1", "node-2")) as kubelet:
        kubelet.node.probe_speed = 20
        yield kubelet


@pytest.fixture
async def client(api_server: ApiServer, kubelet: Kubelet) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(from_kubeconfig([api_server.kubeconfig])) as client:
        yield client


def pod(name: str, code: str, *, spec: Object | None = None, **container: Any) -> Object:
    """Returns a pod that runs Python code once."""
    main = {"name": "main", "image": "python", "command": [sys.executable, "-uc", code]}
    whole = {"containers": [main | container], "restartPolicy": "Never"} | (spec or {})
    return {"metadata": {"name": name, "labels": {"app": "x"}}, "spec": whole}


FOREVER = "import time; print('running'); time.sleep(3600)"
# SIGTERM is ignored.
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf'); time.sleep(3600)"


async def phase(client: KubernetesClient, name: str, *phases: str) -> Object:
    """Waits for a phase of the pod; returns the pod."""
    found: Object = {}

    async def reached() -> bool:
        nonlocal found
        found = await client.get(PODS, name)
        return found["status"]["phase"] in (phases or ("Succeeded", "Failed"))

    await eventually(reached, f"{name}: {phases}")
    return found


async def eventually(condition: Any, what: str) -> None:
    async with asyncio.timeout(60):
        while not await condition():
            await asyncio.sleep(0.02)


async def is_ready(client: KubernetesClient, name: str) -> bool:
    conditions = (await client.get(PODS, name))["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def state(found: Object) -> Object:
    (status,) = found["status"]["containerStatuses"]
    return status["state"]  # type: ignore[no-any-return]


async def printed(client: KubernetesClient, manifest: Object) -> Any:
    """Runs a pod that prints JSON."""
    await client.create(PODS, manifest)
    name = manifest["metadata"]["name"]
    ended = await phase(client, name)
    log = await client.pod_log(name)
    assert ended["status"]["phase"] == "Succeeded", log
    return json.loads(log)


ENVIRONMENT = "import json, os; print(json.dumps(dict(os.environ)))"


async def test_variables_come_from_fields_maps_and_secrets(client: KubernetesClient) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"A": "1", "B": "2"}})
    await client.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"KEY": "secret"}})
    await client.create(SERVICES, {"metadata": {"name": "svc"}, "spec": {"ports": [{"port": 8}]}})

    def field(path: str) -> Object:
        return {"fieldRef": {"fieldPath": path}}

    environment = {
        "LITERAL": "x",
        "JOINED": "$(LITERAL)-$(FROM_A)-$(MISSING)-$$(LITERAL)",
        "IP": field("status.podIP"),
        "NAME": field("metadata.name"),
        "APP": field("metadata.labels['app']"),
        "NODE": field("spec.nodeName"),
        "B_ONLY": {"configMapKeyRef": {"name": "c", "key": "B"}},
        "OPTIONAL": {"configMapKeyRef": {"name": "none", "key": "B", "optional": True}},
        "SECRET": {"secretKeyRef": {"name": "s", "key": "KEY"}},
        "MEMORY_MB": {"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}},
    }
    variables = [
        {"name": name, "value" if isinstance(value, str) else "valueFrom": value}
        for name, value in environment.items()
    ]
    sources = [{"prefix": "FROM_", "configMapRef": {"name": "c"}}]
    limits = {"limits": {"memory": "1Gi"}}
    manifest = pod("p", ENVIRONMENT, env=variables, envFrom=sources, resources=limits)
    found = await printed(client, manifest)
    ip = (await client.get(PODS, "p"))["status"]["podIP"]
    assert {name: found.get(name) for name in environment} == {
        "LITERAL": "x",
        "JOINED": "x-1-$(MISSING)-$(LITERAL)",
        "IP": ip,
        "NAME": "p",
        "APP": "x",
        "NODE": "node-1",
        "B_ONLY": "2",
        "OPTIONAL": None,
        "SECRET": "secret",
        "MEMORY_MB": "1024",
    }
    assert (found["FROM_A"], found["FROM_B"]) == ("1", "2")
    assert found["SVC_SERVICE_HOST"].startswith("127.96.") and found["SVC_SERVICE_PORT"] == "8"
    assert "KUBECONFIG" not in found


async def test_each_pod_listens_on_its_address(client: KubernetesClient) -> None:
    code = """
import os, socket, time
server = socket.create_server((os.environ["IP"], 8081))
print("listening", flush=True)
time.sleep(3600)
"""
    ip = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    probe = {"tcpSocket": {"port": 8081}, "periodSeconds": 1}
    for name in "ab":
        await client.create(PODS, pod(name, code, env=[ip], readinessProbe=probe))
    addresses = set()
    for name in "ab":
        await eventually(lambda name=name: is_ready(client, name), "ready")  # type: ignore[misc]
        addresses.add((await client.get(PODS, name))["status"]["podIP"])
    assert len(addresses) == 2


async def test_names_of_services_lead_to_ready_pods(client: KubernetesClient) -> None:
    if not names.command_with(Path("/etc/hosts")):
        pytest.skip("this machine permits no mount namespaces")
    spec = {"selector": {"app": "x"}, "ports": [{"port": 8081}]}
    await client.create(SERVICES, {"metadata": {"name": "web"}, "spec": spec})
    await running(client, "server")
    code = """
import json, socket, time
while True:
    try:
        print(json.dumps([socket.gethostbyname(n) for n in ("web", "web.default.svc", "caller")]))
        break
    except OSError:
        time.sleep(0.05)
"""
    manifest = pod("caller", code)
    manifest["metadata"]["labels"] = {}
    found = await printed(client, manifest)
    addresses = [(await client.get(PODS, n))["status"]["podIP"] for n in ("server", "caller")]
    assert found == [addresses[0], *addresses]


FILES = """
import json, os, sys
print(json.dumps({a: open(a).read() if os.path.isfile(a) else sorted(os.listdir(a)) for a in sys.argv[1:]}))
"""


async def test_mounts_are_folders_whose_paths_are_rewritten(
    client: KubernetesClient, tmp_path: Path
) -> None:
    data = {"config.yaml": "a: 1", "log.properties": "x"}
    await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": data})
    await client.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"key": "secret"}})
    claim = {"metadata": {"name": "claim"}, "spec": {"accessModes": ["ReadWriteMany"]}}
    await client.create(PERSISTENT_VOLUME_CLAIMS, claim)
    items = [{"key": "config.yaml", "path": "sub/one.yaml"}]
    volumes = [
        {"name": "conf", "configMap": {"name": "c"}},
        {"name": "one", "configMap": {"name": "c", "items": items}},
        {"name": "secret", "secret": {"secretName": "s"}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "host", "hostPath": {"path": str(tmp_path)}},
        {"name": "claim", "persistentVolumeClaim": {"claimName": "claim"}},
    ]
    paths = {"conf": "/opt/conf", "one": "/one", "secret": "/run/s", "tmp": "/cache"}
    paths |= {"host": "/host", "claim": "/data"}
    mounts = [{"name": name, "mountPath": path} for name, path in paths.items()]
    mounts.append({"name": "conf", "mountPath": "/single.yaml", "subPath": "config.yaml"})
    arguments = ["/opt/conf", "/opt/conf/config.yaml", "/one/sub/one.yaml", "/run/s/key"]
    arguments += ["/cache", "/data", "/single.yaml"]
    (tmp_path / "here").touch()
    manifest = pod("p", FILES, args=arguments, volumeMounts=mounts, spec=None)
    manifest["spec"]["volumes"] = volumes
    found = await printed(client, manifest)
    contents = {path.partition("/root/")[2]: value for path, value in found.items()}
    assert contents == {
        "opt/conf": ["config.yaml", "log.properties"],
        "opt/conf/config.yaml": "a: 1",
        "one/sub/one.yaml": "a: 1",
        "run/s/key": "secret",
        "cache": [],
        "data": [],
        "single.yaml": "a: 1",
    }


async def test_a_changed_config_map_reaches_running_pods(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}, "data": {"n": "1"}})
    code = """
import sys, time
while open(sys.argv[1]).read() != "2":
    time.sleep(0.01)
"""
    mount = {"name": "conf", "mountPath": "/conf"}
    volume = {"name": "conf", "configMap": {"name": "c"}}
    manifest = pod("p", code, args=["/conf/n"], volumeMounts=[mount], spec={"volumes": [volume]})
    await client.create(PODS, manifest)
    await phase(client, "p", "Running")
    await client.patch(CONFIG_MAPS, "c", {"data": {"n": "2"}})
    await phase(client, "p", "Succeeded")


async def test_a_pod_waits_for_what_it_mounts_and_refers_to(client: KubernetesClient) -> None:
    mount = {"name": "conf", "mountPath": "/conf"}
    variable = {"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    volume = {"name": "conf", "configMap": {"name": "c"}}
    manifest = pod("p", "", volumeMounts=[mount], env=[variable], spec={"volumes": [volume]})
    created = await client.create(PODS, manifest)

    async def mount_failed() -> bool:
        return any(e["reason"] == "FailedMount" for e in await client.events_of(created))

    await eventually(mount_failed, "an Event")
    assert state(await client.get(PODS, "p")) == {"waiting": {"reason": "ContainerCreating"}}
    with pytest.raises(Invalid, match="is waiting to start"):
        await client.pod_log("p")
    await client.create(CONFIG_MAPS, {"metadata": {"name": "c"}})

    async def configuration_failed() -> bool:
        waiting = state(await client.get(PODS, "p"))["waiting"]
        return bool(waiting["reason"] == "CreateContainerConfigError")

    await eventually(configuration_failed, "CreateContainerConfigError")
    await client.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"k": "v"}})
    await phase(client, "p", "Succeeded")


@pytest.mark.parametrize(
    ("code", "exit_code", "reason", "ended"),
    [
        ("", 0, "Completed", "Succeeded"),
        ("raise SystemExit(3)", 3, "Error", "Failed"),
        ("import os; os.kill(os.getpid(), 9)", 137, "Error", "Failed"),
    ],
)
async def test_exit_codes_decide_the_phase(
    client: KubernetesClient, code: str, exit_code: int, reason: str, ended: str
) -> None:
    await client.create(PODS, pod("p", code))
    found = await phase(client, "p")
    assert found["status"]["phase"] == ended
    terminated = state(found)["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (exit_code, reason)


async def test_the_message_of_a_failure_is_the_end_of_its_log(client: KubernetesClient) -> None:
    code = "print('one'); print('two'); raise SystemExit('the reason')"
    manifest = pod("p", code, terminationMessagePolicy="FallbackToLogsOnError")
    await client.create(PODS, manifest)
    message = state(await phase(client, "p"))["terminated"]["message"]
    assert message == "one\ntwo\nthe reason"


async def test_a_missing_command_is_an_end_with_a_reason(client: KubernetesClient) -> None:
    await client.create(PODS, pod("p", "", command=["/no/such/command"]))
    terminated = state(await phase(client, "p", "Failed"))["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (128, "StartError")


async def test_images_have_commands(client: KubernetesClient, kubelet: Kubelet) -> None:
    image = Image(
        entrypoint=(sys.executable, "-c", "import os, sys; print(sys.argv[1:], os.environ['V'])"),
        arguments=("default",),
        environment={"V": "1"},
    )
    kubelet.add_image("image:1", image)
    for name, arguments in {"p": [], "q": ["own"]}.items():
        container: Object = {"name": "main", "image": "image:1"}
        container |= {"args": arguments} if arguments else {}
        spec = {"containers": [container], "restartPolicy": "Never"}
        await client.create(PODS, {"metadata": {"name": name}, "spec": spec})
        await phase(client, name, "Succeeded")
    assert await client.pod_log("p") == "['default'] 1\n"
    assert await client.pod_log("q") == "['own'] 1\n"


async def test_a_crashing_container_is_restarted_with_pauses(client: KubernetesClient) -> None:
    manifest = pod("p", "print('crash'); raise SystemExit(1)", spec={"restartPolicy": "Always"})
    await client.create(PODS, manifest)

    async def crashes() -> bool:
        (status,) = (await client.get(PODS, "p"))["status"].get("containerStatuses") or [{}]
        waiting = (status.get("state") or {}).get("waiting") or {}
        return bool(
            status.get("restartCount", 0) >= 2 and waiting.get("reason") == "CrashLoopBackOff"
        )

    await eventually(crashes, "CrashLoopBackOff")
    found = await client.get(PODS, "p")
    assert found["status"]["phase"] == "Running"
    assert found["status"]["containerStatuses"][0]["lastState"]["terminated"]["exitCode"] == 1
    assert await client.pod_log("p", previous=True) == "crash\n"


async def test_a_container_that_succeeds_is_not_restarted_on_failure(
    client: KubernetesClient, tmp_path: Path
) -> None:
    code = f"""
import pathlib
path = pathlib.Path({str(tmp_path / "ran")!r})
ran = path.exists()
path.touch()
raise SystemExit(0 if ran else 1)
"""
    await client.create(PODS, pod("p", code, spec={"restartPolicy": "OnFailure"}))
    found = await phase(client, "p", "Succeeded")
    assert found["status"]["containerStatuses"][0]["restartCount"] == 1


async def test_containers_that_initialize_run_first(client: KubernetesClient) -> None:
    write = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('done')"
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    initial = {
        "name": "init",
        "image": "python",
        "command": [sys.executable, "-c", write, "/shared/x"],
        "volumeMounts": mounts,
    }
    spec = {"initContainers": [initial], "volumes": [{"name": "shared", "emptyDir": {}}]}
    code = "import sys; print(open(sys.argv[1]).read())"
    await client.create(PODS, pod("p", code, args=["/shared/x"], volumeMounts=mounts, spec=spec))
    await phase(client, "p", "Succeeded")
    assert await client.pod_log("p", container="main") == "done\n"


# ---- ends


async def running(client: KubernetesClient, name: str, code: str = FOREVER, **spec: Any) -> Object:
    await client.create(PODS, pod(name, code, spec=spec))
    found = await phase(client, name, "Running")

    async def has_printed() -> bool:
        return bool(await client.pod_log(name))

    await eventually(has_printed, "printed")
    return found


async def gone(client: KubernetesClient, name: str) -> None:
    async def is_gone() -> bool:
        listed = await client.list(PODS, fields=f"metadata.name={name}")
        return not listed.items

    await eventually(is_gone, f"{name} is gone")


def processes(kubelet: Kubelet) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            ours = process.environ().get(ROOT, "").startswith(str(kubelet.root))
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


async def test_a_deleted_pod_gets_sigterm_and_disappears(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    await running(client, "p")
    await client.delete(PODS, "p")
    await gone(client, "p")
    await until(lambda: processes(kubelet) == [], "all processes have ended")


async def test_a_pod_that_ignores_sigterm_is_killed_after_its_grace(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    await running(client, "p", STUBBORN)
    await client.delete(PODS, "p", grace_s=1)
    await gone(client, "p")
    await running(client, "q", STUBBORN)
    await client.delete(PODS, "q")  # 30 s
    assert "deletionTimestamp" in (await client.get(PODS, "q"))["metadata"]
    await client.delete(PODS, "q", grace_s=0)
    await until(lambda: processes(kubelet) == [], "all processes have ended")


async def test_processes_that_a_container_left_are_killed(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    code = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {FOREVER!r}], start_new_session=True)
print("started")
"""
    await client.create(PODS, pod("p", code))
    await phase(client, "p", "Succeeded")
    await until(lambda: processes(kubelet) == [], "all processes have ended")


async def test_an_out_of_memory_kill_has_its_reason(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    await running(client, "p")
    kubelet.oom_kill("p")
    terminated = state(await phase(client, "p", "Failed"))["terminated"]
    assert (terminated["exitCode"], terminated["reason"]) == (137, "OOMKilled")


async def test_an_image_that_cannot_be_pulled_is_tried_again(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    kubelet.break_image("python", "denied")
    created = await client.create(PODS, pod("p", ""))

    async def backs_off() -> bool:
        waiting = state(await client.get(PODS, "p")).get("waiting") or {}
        return bool(waiting.get("reason") == "ImagePullBackOff")

    await eventually(backs_off, "ImagePullBackOff")
    reasons = {e["reason"]: e["message"] for e in await client.events_of(created)}
    assert reasons["Failed"] == 'Failed to pull image "python": denied'
    kubelet.repair_image("python")
    await phase(client, "p", "Succeeded")


async def test_an_evicted_pod_fails_without_containers(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    await running(client, "p")
    kubelet.evict("p")
    status = (await phase(client, "p", "Failed"))["status"]
    assert (status["reason"], status["containerStatuses"]) == ("Evicted", [])
    await until(lambda: processes(kubelet) == [], "all processes have ended")


async def test_pods_of_a_lost_node_stay_until_it_is_removed(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    found = await running(client, "p")
    node = found["spec"]["nodeName"]
    kubelet.lose_node(node)
    assert not await is_ready(client, "p")
    assert (await client.get(PODS, "p"))["status"]["phase"] == "Running"
    await until(lambda: processes(kubelet) == [], "all processes have ended")
    kubelet.evict_from_lost_node(node)
    assert "deletionTimestamp" in (await client.get(PODS, "p"))["metadata"]
    other = await running(client, "q")
    assert other["spec"]["nodeName"] != node
    kubelet.remove_node(node)
    await gone(client, "p")


async def test_a_partitioned_node_runs_on_unseen(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    found = await running(client, "p")
    kubelet.lose_node(found["spec"]["nodeName"], kill=False)
    assert len(processes(kubelet)) == 1
    kubelet.remove_node(found["spec"]["nodeName"])
    await until(lambda: processes(kubelet) == [], "all processes have ended")


# ---- probes and logs

SERVER = """
import http.server, os, threading, pathlib, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path("ready").exists() else 503)
        self.end_headers()
pathlib.Path("ready").touch()
http.server.HTTPServer((os.environ["IP"], 8080), Handler).serve_forever()
"""
IP = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


async def test_readiness_follows_an_http_probe(client: KubernetesClient, kubelet: Kubelet) -> None:
    probe = {"httpGet": {"port": "http", "path": "/"}, "periodSeconds": 1}
    ports = [{"name": "http", "containerPort": 8080}]
    manifest = pod("p", SERVER, env=[IP], ports=ports, readinessProbe=probe)
    created = await client.create(PODS, manifest)
    await eventually(lambda: is_ready(client, "p"), "ready")
    marker = kubelet.root / created["metadata"]["uid"] / "root" / "ready"
    marker.unlink()

    async def is_unready() -> bool:
        return not await is_ready(client, "p")

    await eventually(is_unready, "not ready")
    marker.touch()
    await eventually(lambda: is_ready(client, "p"), "ready again")


async def test_a_command_may_be_a_probe(client: KubernetesClient, kubelet: Kubelet) -> None:
    check = [sys.executable, "-c", "import os, sys; sys.exit(not os.path.exists('ready'))"]
    probe = {"exec": {"command": check}, "timeoutSeconds": 10}
    created = await client.create(PODS, pod("p", FOREVER, readinessProbe=probe))
    await phase(client, "p", "Running")
    assert not await is_ready(client, "p")
    (kubelet.root / created["metadata"]["uid"] / "root" / "ready").touch()
    await eventually(lambda: is_ready(client, "p"), "ready")


async def test_a_grpc_probe_checks_the_health_service(client: KubernetesClient) -> None:
    code = """
import os
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
server = grpc.server(ThreadPoolExecutor())
service = health.HealthServicer()
health_pb2_grpc.add_HealthServicer_to_server(service, server)
service.set("", health_pb2.HealthCheckResponse.SERVING)
server.add_insecure_port(os.environ["IP"] + ":6123")
server.start()
server.wait_for_termination()
"""
    probe = {"grpc": {"port": 6123}, "timeoutSeconds": 10}
    await client.create(PODS, pod("p", code, env=[IP], readinessProbe=probe))
    await eventually(lambda: is_ready(client, "p"), "ready")


async def test_a_container_that_is_not_live_is_restarted(client: KubernetesClient) -> None:
    probe = {"exec": {"command": ["false"]}, "failureThreshold": 1, "timeoutSeconds": 10}
    manifest = pod("p", FOREVER, livenessProbe=probe, spec={"restartPolicy": "Always"})
    await client.create(PODS, manifest)

    async def restarted() -> bool:
        statuses = (await client.get(PODS, "p"))["status"].get("containerStatuses") or ()
        return any(s["restartCount"] for s in statuses)

    await eventually(restarted, "restarted")


async def test_logs_can_be_cut_and_followed(client: KubernetesClient) -> None:
    code = """
import time
for i in range(5):
    print("line", i, flush=True)
    time.sleep(0.05)
"""
    await client.create(PODS, pod("p", code))
    await phase(client, "p", "Running", "Succeeded")
    followed = b"".join([piece async for piece in client.follow_pod_log("p")])
    lines = [f"line {i}\n" for i in range(5)]
    assert followed.decode() == "".join(lines)
    assert await client.pod_log("p", tail_lines=2) == "".join(lines[-2:])
    assert await client.pod_log("p", tail_lines=0) == ""
    assert await client.pod_log("p", limit_bytes=4) == "line"


# ---- the API in pods

IN_CLUSTER = """
import asyncio, sys
from firesteel.kubernetes.access.find import find_access
from firesteel.kubernetes.client import KubernetesClient
from firesteel.kubernetes.resources import PODS
async def main():
    async with KubernetesClient(find_access()) as client:
        while True:
            names = [p["metadata"]["name"] for p in (await client.list(PODS)).items]
            print(client.namespace, names, flush=True)
            if len(names) > 1:
                return
            await asyncio.sleep(0.05)
asyncio.run(main())
"""


async def test_a_pod_uses_the_api_with_its_role_and_renewed_tokens(
    client: KubernetesClient, kubelet: Kubelet
) -> None:
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    await client.create(ROLES, {"metadata": {"name": "r"}, "rules": [rule]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    subjects = [{"kind": "ServiceAccount", "name": "default"}]
    binding = {"metadata": {"name": "b"}, "roleRef": reference, "subjects": subjects}
    await client.create(ROLE_BINDINGS, binding)
    await running(client, "p", IN_CLUSTER)
    kubelet.rotate_tokens()
    await client.create(PODS, pod("q", FOREVER))
    found = await phase(client, "p")
    log = await client.pod_log("p")
    assert found["status"]["phase"] == "Succeeded", log
    assert log.endswith("default ['p', 'q']\n")


async def test_a_deployment_runs_and_heals(client: KubernetesClient, kubelet: Kubelet) -> None:
    template = {
        "metadata": {"labels": {"app": "d"}},
        "spec": pod("p", FOREVER, spec={"restartPolicy": "Always"})["spec"],
    }
    selector = {"matchLabels": {"app": "d"}}
    spec = {"replicas": 2, "selector": selector, "template": template}
    await client.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})

    async def available() -> bool:
        status = (await client.get(DEPLOYMENTS, "d")).get("status") or {}
        return bool(status.get("readyReplicas") == 2 == status.get("replicas"))

    await eventually(available, "available")
    first = (await client.list(PODS)).items[0]["metadata"]["name"]
    await client.delete(PODS, first)
    await gone(client, first)
    await eventually(available, "available again")
