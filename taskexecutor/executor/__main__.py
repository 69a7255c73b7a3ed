"""The PySpark executor, `python -m taskexecutor.executor`, which a TaskExecutor starts for one of
its slots.

The link and the exchange start while Spark does; the process is ready once its session is warm.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import traceback
from pathlib import Path

import click

from firesteel.common import logs, output
from firesteel.common.config import Configuration, options
from firesteel.common.error_report import summary_of
from firesteel.common.security.credentials import SlotCredentials
from firesteel.common.service.host import ServiceProcess, service_main
from taskexecutor.executor import (
    CONFIG_VARIABLE,
    LINK_LOST_EXIT_CODE,
    LOG_VARIABLE,
    interpreter,
)

log = logs.get_logger(__name__)

FLUSH_TIMEOUT_S = 2.0


def _configuration() -> Configuration:
    return Configuration(json.loads(os.environ.pop(CONFIG_VARIABLE, "{}")))


@service_main("slot-{slot}", configuration=_configuration)
@click.option("--link", required=True, help="The TaskExecutor's socket, unix:PATH.")
@click.option("--executor-id", required=True, metavar="ID", help="The id of this process.")
@click.option("--task-executor-id", required=True, metavar="ID", help="The TaskExecutor's id.")
@click.option("--slot", type=int, required=True, help="The slot's index.")
@click.option("--heap", type=int, required=True, metavar="BYTES", help="-Xmx of the slot's JVM.")
@click.option("--results-memory", default="", metavar="DIR", help="For results kept in memory.")
@click.option("--cores", type=int, required=True, help="Threads of the slot's Spark.")
def main(
    process: ServiceProcess,
    *,
    link: str,
    executor_id: str,
    task_executor_id: str,
    slot: int,
    heap: int,
    cores: int,
    results_memory: str,
) -> None:
    """Runs the PySpark executor of one slot. Started by its TaskExecutor."""
    interpreter.collect_rarely()
    interpreter.keep_freed_memory()
    interpreter.keep_pyarrow_from_pandas()
    interpreter.set_switch_interval()
    output.mark_output(lambda: logs.line(logs.OUTPUT_FOLLOWS))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process at the terminal
    conf = process.conf
    credentials = SlotCredentials.from_environment()
    if process.log_path is not None:
        os.environ[LOG_VARIABLE] = str(process.log_path)

    from taskexecutor.executor.columnar.jvm.engine import SparkEngine
    from taskexecutor.executor.columnar.warm_up import start_warm

    engine = SparkEngine()
    engine.host = process.host
    failures: list[BaseException] = []

    def start_engine() -> None:
        try:
            start_warm(engine, conf.spark(), cores=cores, heap_bytes=heap)
        except BaseException as error:
            failures.append(error)

    starting = threading.Thread(target=start_engine, name="spark-start", daemon=True)
    starting.start()

    # Imported while Spark starts: with the host, all modules that a job's first task needs.
    from taskexecutor.executor import convert
    from taskexecutor.executor.exchange import Exchange, ResultFolders
    from taskexecutor.executor.exchange.security import ExchangeSecurity, SlotKeys
    from taskexecutor.executor.executor_link import ExecutorLink
    from taskexecutor.executor.operators import aggregates, connectors, dataframes  # noqa: F401
    from taskexecutor.executor.operators.registry import create_operator
    from taskexecutor.executor.slot_process import Host

    job_keys = SlotKeys()
    connection = ExecutorLink(
        link,
        executor_id,
        token=credentials.token if credentials else "",
        heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
    )
    exchange = Exchange(
        host=process.host,
        window_bytes=conf.get(options.CHANNEL_WINDOW),
        batch_rows=conf.get(options.BATCH_ROWS),
        partition_timeout_s=conf.get(options.PARTITION_TIMEOUT),
        folders=ResultFolders(
            disk=Path(tempfile.gettempdir()) / "results",  # removed with this process
            memory=Path(results_memory) if results_memory else None,
            buffer_bytes=conf.get(options.BLOCKING_BUFFER),
            codec="lz4" if conf.get(options.COMPRESSION_CODEC) == "LZ4" else None,
        ),
        security=ExchangeSecurity(
            keys_of=job_keys.of, find=job_keys.find, certificate=credentials.certificate
        )
        if credentials
        else None,
    )
    host = Host(
        link=connection,
        job_keys=job_keys,
        exchange=exchange,
        engine=engine,
        create_operator=create_operator,
        slot=slot,
        location=f"{process.host}, TaskExecutor {task_executor_id}, slot {slot}",
        metrics_interval_s=max(0.05, conf.get(options.METRICS_INTERVAL)),
        heartbeat_interval_s=conf.get(options.HEARTBEAT_INTERVAL),
        heartbeat_timeout_s=conf.get(options.HEARTBEAT_TIMEOUT),
        state_directory=conf.get(options.ROCKSDB_LOCALDIR),
    )
    interpreter.keep_what_is_loaded()
    starting.join()
    if failures:
        reason = _reason(failures[0])
        log.error("Spark could not be started", reason=reason)
        connection.send(convert.ending(reason))
        connection.flush(FLUSH_TIMEOUT_S)
        os._exit(1)
    interpreter.return_freed_memory()  # memory that imports and the warm-up freed
    connection.send(
        convert.ready(
            executor_id=executor_id,
            data_address=exchange.address,
            pid=os.getpid(),
            jvm_pid=engine.jvm_pid,
        )
    )
    process.announce_ready(data_address=exchange.address, jvm_pid=str(engine.jvm_pid))
    host.serve()
    # The link broke, usually because the TaskExecutor ended: the process is of no use.
    os._exit(LINK_LOST_EXIT_CODE)


def _reason(failure: BaseException) -> str:
    try:
        traceback.print_exception(failure)
        return summary_of(failure)
    except Exception:  # Py4J requests an error's text from the JVM, which may have ended
        return f"Spark's JVM failed ({type(failure).__name__}); see the slot's log for the cause"


if __name__ == "__main__":
    main()
