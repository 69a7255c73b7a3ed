"""`python -m jobmaster --dispatcher HOST:PORT`: one JobMaster process, for one job.

It binds its server and registers at the Dispatcher at once, warm; then a job needs nothing but
StartJob. It ends when the Dispatcher has stored the job's terminal status.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from typing import Any

import structlog

from firesteel._proto import (
    common_pb2,
    dispatcher_pb2,
    dispatcher_pb2_grpc,
    job_master_pb2,
    job_master_pb2_grpc,
)
from firesteel.common import logs, metrics
from firesteel.common.config import Configuration, ConfigurationError, options, parse_definitions
from firesteel.common.ids import random_id
from firesteel.common.process import announce_ready, watch_lifeline
from firesteel.common.rpc.link import Link
from firesteel.common.rpc.server import bind, new_server
from firesteel.common.states import JobStatus
from firesteel.errors import FiresteelError
from jobmaster.core import events
from jobmaster.core.settings import settings_from
from jobmaster.details import number
from jobmaster.servicer import JobMasterServicer
from jobmaster.shell import RunningJob

log = structlog.get_logger(__name__)

DISPATCHER_GRACE_S = 60.0  # a Dispatcher that stays away longer will never hear how the job ended
_GOODBYE_S = 1.0  # at the end: how long TaskExecutors get to take their goodbye


class JobMasterProcess:
    def __init__(self, conf: Configuration, *, dispatcher_address: str, host: str) -> None:
        self._conf = conf
        self._dispatcher_address = dispatcher_address
        self._host = host
        self.job_master_id = random_id()
        self._servicer = JobMasterServicer()
        self._registry = metrics.Registry.from_configuration(conf)
        self._job: RunningJob | None = None
        self._rejected: dispatcher_pb2.JobStatusChanged | None = (
            None  # the terminal status of a job that never started
        )
        self._over = asyncio.Event()
        self._address = ""
        self._metrics_address = ""
        self._tasks: list[asyncio.Task[None]] = []
        self._dispatcher: Link[
            dispatcher_pb2.JobMasterToDispatcher, dispatcher_pb2.DispatcherToJobMaster
        ] = Link(
            name="Dispatcher",
            address=dispatcher_address,
            open_stream=lambda channel, sent: dispatcher_pb2_grpc.DispatcherStub(
                channel
            ).ConnectJobMaster(sent),  # type: ignore[no-untyped-call]
            heartbeat=lambda: dispatcher_pb2.JobMasterToDispatcher(
                heartbeat=common_pb2.Heartbeat()
            ),
            on_up=self._register,
            on_message=self._from_dispatcher,
            on_down=self._dispatcher_down,
            heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
            heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
        )

    async def run(self) -> None:
        server = new_server([job_master_pb2.DESCRIPTOR.services_by_name["JobMaster"]])
        job_master_pb2_grpc.add_JobMasterServicer_to_server(self._servicer, server)  # type: ignore[no-untyped-call]
        self._address = bind(server, self._host, 0)
        await server.start()
        self._metrics_address = self._serve_metrics()
        loop = asyncio.get_running_loop()
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._over.set)
        announce_ready(address=self._address, metrics_address=self._metrics_address)
        log.info("serving", address=self._address, dispatcher=self._dispatcher_address)
        self._start_task(self._dispatcher.run())
        await self._over.wait()
        await self._wait_for_goodbyes()
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        await server.stop(0.2)
        if self._job is not None:
            self._job.close()
        self._registry.close()
        for result in results:
            if isinstance(result, Exception):
                raise result

    def _serve_metrics(self) -> str:
        try:
            port = self._registry.serve(self._host, self._conf.get(options.METRICS_PORT))
        except FiresteelError as error:
            log.warning("no metrics", cause=str(error))
            return ""
        return f"{self._host}:{port}"

    def _start_task(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        task.add_done_callback(
            lambda _: self._over.set()
        )  # none of them ever ends by itself, except by a bug
        self._tasks.append(task)

    async def _wait_for_goodbyes(self) -> None:
        deadline = asyncio.get_running_loop().time() + _GOODBYE_S
        while self._servicer.open_streams and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    # ---- the Dispatcher

    def _register(self) -> None:
        register = dispatcher_pb2.JobMasterRegister(
            job_master_id=self.job_master_id,
            address=self._address,
            pid=os.getpid(),
            metrics_address=self._metrics_address,
        )
        self._dispatcher.send(dispatcher_pb2.JobMasterToDispatcher(register=register))
        if self._job is not None:
            self._report(self._job.status_message())
        elif self._rejected is not None:
            self._report(self._rejected)

    def _report(self, status: dispatcher_pb2.JobStatusChanged) -> None:
        self._dispatcher.send(dispatcher_pb2.JobMasterToDispatcher(status=status))

    def _from_dispatcher(self, message: dispatcher_pb2.DispatcherToJobMaster) -> None:
        match message.WhichOneof("message"):
            case "start":
                self._start_job(message.start)
            case "ack" if JobStatus(message.ack.status).globally_terminal:
                if self._job is None:
                    self._over.set()
                else:
                    self._job.post(events.TerminalStatusStored())
            case _:
                pass  # a heartbeat

    def _start_job(self, start: dispatcher_pb2.StartJob) -> None:
        if self._job is not None or self._rejected is not None:
            return  # said twice
        try:
            settings = settings_from(self._conf.with_overrides(dict(start.job_graph.config)))
        except ConfigurationError as error:
            self._reject(start, str(error))
            return
        job = RunningJob(
            start,
            settings,
            sessions=self._servicer.sessions,
            address=self._address,
            dispatcher_address=self._dispatcher_address,
            report=self._report,
            exit_process=self._over.set,
        )
        self._job = self._servicer.job = job
        self._registry.add_source(job.samples)
        self._start_task(job.run())

    def _reject(self, start: dispatcher_pb2.StartJob, why: str) -> None:
        """The job cannot even be begun: it is FAILED, and the reason is told like that of any other
        failure.
        """
        now_ms = time.time_ns() // 1_000_000
        graph = start.job_graph
        details = job_master_pb2.JobDetails(
            job_id=graph.job_id,
            name=graph.name,
            status=number(JobStatus.FAILED),
            timestamps=[
                job_master_pb2.StateTimestamp(state=JobStatus.FAILED.value, timestamp_ms=now_ms)
            ],
            exceptions=[common_pb2.ErrorInfo(summary=why, timestamp_ms=now_ms)],
            start_ms=now_ms,
            end_ms=now_ms,
        )
        self._rejected = dispatcher_pb2.JobStatusChanged(
            job_id=graph.job_id,
            epoch=start.epoch,
            status=number(JobStatus.FAILED),
            timestamp_ms=now_ms,
            final_details=details,
        )
        log.error("job rejected", job_id=graph.job_id, cause=why)
        self._report(self._rejected)

    def _dispatcher_down(self, cause: str, for_s: float) -> None:
        if for_s < DISPATCHER_GRACE_S:
            return
        log.error("the Dispatcher is gone", for_s=round(for_s), cause=cause)
        if self._job is None:
            self._over.set()
        else:
            self._job.post(events.DispatcherLost())


def main() -> int:
    watch_lifeline()
    parser = argparse.ArgumentParser(prog="python -m jobmaster", description=__doc__)
    parser.add_argument("--dispatcher", required=True, metavar="HOST:PORT")
    parser.add_argument(
        "--host", default=None, help="interface to bind (default: taskmanager.bind-host)"
    )
    parser.add_argument("--config", default=None, metavar="FILE")
    parser.add_argument("-D", action="append", default=[], dest="definitions", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    logs.configure("jobmaster")
    try:
        conf = Configuration.load(arguments.config, parse_definitions(arguments.definitions))
        host = arguments.host or conf.get(options.BIND_HOST)
    except ConfigurationError as error:
        print(f"jobmaster: {error}", file=sys.stderr)
        return 2
    asyncio.run(_main(conf, arguments.dispatcher, host))
    return 0


async def _main(conf: Configuration, dispatcher_address: str, host: str) -> None:
    await JobMasterProcess(conf, dispatcher_address=dispatcher_address, host=host).run()


if __name__ == "__main__":
    sys.exit(main())
