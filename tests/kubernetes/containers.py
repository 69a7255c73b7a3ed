"""A container as a process of this machine: its starts, restarts, probes and end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.kubernetes import names, probes
from tests.kubernetes.kinds import Object
from tests.kubernetes.pod_files import ROOT, UID, NotReady, PodFiles, expanded
from tests.kubernetes.registry import now

_MESSAGE_BYTES, _MESSAGE_LINES = 2048, 80  # of a termination message
# A container sees none of the other variables of this machine.
_INHERITED = (
    *("FIRESTEEL_TEST_SESSION", "HOME", "JAVA_HOME", "JDK_JAVA_OPTIONS", "LANG", "PATH"),
    *("PYTHONPATH", "TMPDIR"),
)


@dataclass(slots=True, kw_only=True)
class Image:
    """The command, the variables and the programs of an image. The programs are at other places of
    this machine.
    """

    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, Path] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class Node:
    """The configuration of all containers, and faults that tests request."""

    environment: dict[str, str] = field(default_factory=dict)
    images: dict[str, Image] = field(default_factory=dict)
    broken_images: dict[str, str] = field(default_factory=dict)  # with the message of the registry
    restart_backoff_s: float = 0.2
    longest_backoff_s: float = 5.0
    probe_speed: float = 1.0  # divides the periods of probes
    held: bool = False  # no container starts


class Container:
    """Runs until its pod is terminated, or until it need not be restarted."""

    def __init__(
        self,
        spec: Object,
        files: PodFiles,
        node: Node,
        *,
        variables: Mapping[str, str],
        address: str,
        changed: Callable[[], None],
        event: Callable[[str, str, bool], None],
    ) -> None:
        self.name: str = spec["name"]
        self.spec = spec
        self.ready = False
        self.started = False
        self.restarts = 0
        self.state: Object = {"waiting": {"reason": "ContainerCreating"}}
        self.last_state: Object = {}
        self.exit_code: int | None = None  # of the latest run
        self._files = files
        self._node = node
        self._variables = variables
        self._address = address
        self._changed = changed
        self._event = event
        self._process: asyncio.subprocess.Process | None = None
        self._reason = ""  # of a death that a test requested
        self._stopping = asyncio.Event()

    # ---- the pod's interface

    async def run(self, restart_policy: str) -> None:
        backoff_s = self._node.restart_backoff_s
        while not self._stopping.is_set():
            if not await self._run_once():
                return
            assert self.exit_code is not None
            if restart_policy == "Never" or (restart_policy == "OnFailure" and not self.exit_code):
                return
            self.last_state = self.state
            message = f"back-off {backoff_s:g}s restarting failed container={self.name}"
            self.state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
            self._event("BackOff", f"Back-off restarting failed container {self.name}", True)
            self._changed()
            await self._pause(backoff_s)
            backoff_s = min(backoff_s * 2, self._node.longest_backoff_s)
            if not self._stopping.is_set():
                self.restarts += 1

    async def terminate(self, grace_s: float) -> None:
        """Sends SIGTERM to the first process, and SIGKILL to all of them after the grace period."""
        self._stopping.set()
        process = self._process
        if process is None or process.returncode is not None:
            return
        if hook := ((self.spec.get("lifecycle") or {}).get("preStop") or {}).get("exec"):
            await self._succeeds({"exec": hook, "timeoutSeconds": grace_s})
        if grace_s > 0 and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await process.wait()
        self.kill("")

    def kill(self, reason: str) -> None:
        """Kills all processes now; `reason` becomes that of the container's end."""
        self._reason = reason
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    def log(self, *, previous: bool = False) -> Path:
        number = self.restarts - 1 if previous else self.restarts
        return self._files.folder / self.name / f"{number}.log"

    @property
    def status(self) -> Object:
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "" if "waiting" in self.state else f"tests://{self.spec['image']}",
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state,
        }

    # ---- one run

    async def _run_once(self) -> bool:
        """Returns False if the pod is terminated before the container starts."""
        start = await self._prepared()
        if start is None:
            return False
        command, environment = start
        self._environment = environment  # also of its probes
        log = self.log()
        log.parent.mkdir(parents=True, exist_ok=True)
        started_at = now()
        self._reason = ""
        with log.open("wb") as output:
            try:
                if shutil.which(command[0], path=environment["PATH"]) is None:
                    raise FileNotFoundError(errno.ENOENT, "no such file or directory")
                self._process = await asyncio.create_subprocess_exec(
                    *names.command_with(self._files.hosts),
                    *command,
                    env=environment,
                    cwd=self._folder(),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                self._ended(
                    128, started_at, "StartError", f"exec: {command[0]!r}: {error.strerror}"
                )
                self._event("Failed", f"Error: failed to start container {self.name}", True)
                return True
        if self._stopping.is_set():
            self.kill("")
        self.state = {"running": {"startedAt": started_at}}
        self.started = "startupProbe" not in self.spec
        self.ready = self.started and "readinessProbe" not in self.spec
        self._event("Started", f"Started container {self.name}", False)
        self._changed()
        probing = asyncio.create_task(self._probe())
        code = await self._process.wait()
        probing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await probing
        await asyncio.to_thread(kill_marked, environment[UID], self.name)
        exit_code = 128 - code if code < 0 else code
        reason = self._reason or ("Completed" if exit_code == 0 else "Error")
        self._ended(exit_code, started_at, reason, self._message(exit_code))
        return True

    async def _prepared(self) -> tuple[list[str], dict[str, str]] | None:
        """Waits until the image and all objects that the environment refers to are there."""
        pulled = False
        while not self._stopping.is_set():
            image = self.spec["image"]
            if image in self._node.broken_images:
                self._cannot_pull(image)
            elif not self._node.held:
                if not pulled:
                    self._event("Pulled", f'Container image "{image}" is present', False)
                    pulled = True
                try:
                    return self._command()
                except NotReady as missing:
                    if self._wait("CreateContainerConfigError", str(missing)):
                        self._event("Failed", f"Error: {missing}", True)
            await self._pause(0.05)
        return None

    def _command(self) -> tuple[list[str], dict[str, str]]:
        image = self._node.images.get(self.spec["image"], Image())
        given = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        given["PATH"] = f"{Path(sys.executable).parent}:{given.get('PATH', '')}"
        # gRPC's own resolver unites the addresses of names that have one of them in common.
        given["GRPC_DNS_RESOLVER"] = "native"
        given |= self._node.environment
        given |= {k: self._files.rewritten(v, self.spec) for k, v in image.environment.items()}
        given |= self._variables
        environment = self._files.environment(self.spec, given)
        environment[ROOT] = str(self._files.root)
        environment[UID] = f"{self._files.pod['metadata']['uid']}/{self.name}"
        entrypoint = self.spec.get("command") or image.entrypoint
        arguments = self.spec.get("args") or (() if self.spec.get("command") else image.arguments)
        command = [
            self._files.rewritten(expanded(text, environment), self.spec)
            for text in (*entrypoint, *arguments)
        ]
        program, *others = command or ["no-command-specified"]
        return [str(image.programs.get(program, program)), *others], environment

    def _folder(self) -> Path:
        folder = self._files.place(self.spec.get("workingDir") or "/")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _cannot_pull(self, image: str) -> None:
        message = self._node.broken_images[image]
        reason = (self.state.get("waiting") or {}).get("reason")
        if reason not in ("ErrImagePull", "ImagePullBackOff"):
            self._wait("ErrImagePull", message)
            self._event("Failed", f'Failed to pull image "{image}": {message}', True)
        elif self._wait("ImagePullBackOff", f'Back-off pulling image "{image}": {message}'):
            self._event("BackOff", f'Back-off pulling image "{image}"', False)

    def _wait(self, reason: str, message: str) -> bool:
        """Returns whether the container did not wait for this reason before."""
        state: Object = {"waiting": {"reason": reason, "message": message}}
        if self.state == state:
            return False
        self.state = state
        self._changed()
        return True

    def _ended(self, exit_code: int, started_at: str, reason: str, message: str) -> None:
        self.exit_code, self.ready, self.started = exit_code, False, False
        ended = {
            "exitCode": exit_code,
            "reason": reason,
            "startedAt": started_at,
            "finishedAt": now(),
        }
        self.state = {"terminated": ended | ({"message": message} if message else {})}
        self._changed()

    def _message(self, exit_code: int) -> str:
        path = self._files.place(self.spec["terminationMessagePath"])
        if path.is_file():
            return path.read_text(errors="replace")[:_MESSAGE_BYTES]
        if self.spec["terminationMessagePolicy"] == "FallbackToLogsOnError" and exit_code:
            lines = self.log().read_text(errors="replace").splitlines()[-_MESSAGE_LINES:]
            return "\n".join(lines)[-_MESSAGE_BYTES:]
        return ""

    async def _pause(self, seconds: float) -> None:
        """Waits, or until the pod is terminated."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # ---- probes

    async def _probe(self) -> None:
        if probe := self.spec.get("startupProbe"):
            await self._until(probe, True)
            self.started = True
            self.ready = "readinessProbe" not in self.spec
            self._changed()
        await asyncio.gather(self._watch_readiness(), self._watch_liveness())

    async def _watch_readiness(self) -> None:
        probe = self.spec.get("readinessProbe")
        while probe:
            await self._until(probe, not self.ready)
            self.ready = not self.ready
            if not self.ready:
                self._event("Unhealthy", "Readiness probe failed", True)
            self._changed()

    async def _watch_liveness(self) -> None:
        if probe := self.spec.get("livenessProbe"):
            await self._until(probe, False)
            self._event("Killing", f"Container {self.name} failed liveness probe", True)
            process = self._process
            assert process is not None
            process.terminate()
            await asyncio.sleep(30 / self._node.probe_speed)
            self.kill("")

    async def _until(self, probe: Object, expected: bool) -> None:
        """Returns once the probe has had the expected result as often as its threshold says."""
        threshold = probe["successThreshold" if expected else "failureThreshold"]
        await asyncio.sleep(probe.get("initialDelaySeconds", 0) / self._node.probe_speed)
        count = 0
        while True:
            count = count + 1 if await self._succeeds(probe) == expected else 0
            if count >= threshold:
                return
            await asyncio.sleep(probe.get("periodSeconds", 10) / self._node.probe_speed)

    async def _succeeds(self, probe: Object) -> bool:
        ports = {p["name"]: p["containerPort"] for p in self.spec.get("ports") or () if "name" in p}
        command: list[Any] = (probe.get("exec") or {}).get("command") or []
        return await probes.succeeds(
            probe,
            address=self._address,
            ports=ports,
            command=[self._files.rewritten(text, self.spec) for text in command],
            environment=self._environment,
            folder=self._folder(),
        )


def kill_marked(uid: str, container: str = "") -> None:
    """Kills the processes that are left of a pod or of one container."""
    mark = uid if "/" in uid or not container else f"{uid}/{container}"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            its = process.environ().get(UID, "")
            if its == mark or its.startswith(f"{mark}/"):
                process.send_signal(signal.SIGKILL)
