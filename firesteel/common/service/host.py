"""`service_main`: the entry point of the process of every service.

    @service_main("dispatcher", directory="required", port=options.RPC_PORT)
    @click.option("--resource-manager", required=True, metavar="HOST:PORT", help="...")
    async def main(process: ServiceProcess, resource_manager: str) -> None:
        \"\"\"The text of --help.\"\"\"
        ...
        process.on_stop(lambda signal_name: shell.stop())
        process.announce_ready(address=address)
        await shell.run()

    if __name__ == "__main__":
        main()

It watches the lifeline, parses the command line, sets up logs, loads the configuration and runs the
function, on an event loop if it is a coroutine function. None of its log lines or prints can fail.
A bad option or configuration ends the process with exit code 2 and one line on stderr; a later
FiresteelError, with exit code 1 and one line in the log.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

import click

from firesteel.common import logs, metrics_targets, output
from firesteel.common.config import (
    Configuration,
    ConfigurationError,
    check_heartbeats,
    options,
    parse_definitions,
)
from firesteel.common.config.redaction import remember
from firesteel.common.process import announce_ready, temporary, watch_lifeline
from firesteel.common.process.log_files import keep_short
from firesteel.common.security.listening import check_listens_securely
from firesteel.common.security.roles import Role
from firesteel.common.service.platform import SYSTEM, GrpcTransport, Platform
from firesteel.errors import FiresteelError

if TYPE_CHECKING:
    import grpc

    from firesteel.common.metrics import Registry
    from firesteel.common.security.security import Security

log = logs.get_logger(__name__)

P = ParamSpec("P")
DirectoryUse = Literal["none", "required", "temporary"]
BAD_USAGE = 2


class ServiceProcess:
    """The process of a service, for its `main`: configuration, directory, metrics, signals."""

    def __init__(
        self,
        name: str,
        conf: Configuration,
        *,
        host: str,
        port: int,
        directory: Path | None,
        log_path: Path | None = None,
        role: Role | None = None,
    ) -> None:
        self.name = name
        self._role = role
        self.conf = conf
        self.host = host  # interface to bind
        self.port = port  # port to bind; 0: any free one
        self.log_path = log_path  # None: its output goes where its starter redirects it
        self._directory = directory
        self._registry: Registry | None = None
        self._target: Path | None = None  # its file in the targets of Prometheus
        self._health: grpc.aio.Server | None = None

    @property
    def directory(self) -> Path:
        assert self._directory is not None, f"{self.name} declares no --dir"
        return self._directory

    @property
    def registry(self) -> Registry:
        """The metrics of this process. Closed when `main` returns."""
        if self._registry is None:
            # Not every process has metrics, and the libraries take time to import.
            from firesteel.common.metrics import Registry

            self._registry = Registry.from_configuration(self.conf)
        return self._registry

    @functools.cached_property
    def platform(self) -> Platform:
        """This machine, on which the process authenticates itself."""
        return replace(SYSTEM, transport=GrpcTransport(self.security), security=self.security)

    @functools.cached_property
    def security(self) -> Security | None:
        """The security of this process; None if it is disabled, or if the process has no role."""
        if self._role is None:
            return None
        # Imported only where needed: cryptography.
        from firesteel.common.security.security import Security

        return Security.of_process(self.conf, self._role, self.host)

    def serve_metrics(self, *, scope: str, labels: Mapping[str, str]) -> str:
        """Serves the registry, including this process's own metrics; returns host:port.

        Raises FiresteelError if every configured port is taken.
        """
        from firesteel.common.process_metrics import add_disk_metrics, add_process_metrics

        add_process_metrics(self.registry, scope=scope, labels=labels)
        if self._directory is not None:
            add_disk_metrics(self.registry, self._directories(scope), scope=scope, labels=labels)
        folder = os.environ.get(metrics_targets.FOLDER)
        first = metrics_targets.ports_of_dead(Path(folder), self.name) if folder else ()
        port = self.registry.serve(
            self.host, self.conf.get(options.METRICS_PORT), first=first, security=self.security
        )
        address = f"{self.host}:{port}"
        if folder:
            try:
                self._target = metrics_targets.add(Path(folder), self.name, address)
            except OSError as error:
                log.warning("Prometheus does not find this process", reason=str(error))
        return address

    async def serve_health(self) -> None:
        """Answers health checks without TLS, if a port is configured for them. The event loop that
        does the work of the service answers, so a process that hangs is not healthy.

        Raises AddressTaken.
        """
        if port := self.conf.get(options.HEALTH_PORT):
            from firesteel.common.rpc.server import bind, health_server

            self._health = health_server()
            bind(self._health, self.host, port)
            await self._health.start()

    async def end_health(self) -> None:
        if self._health is not None:
            await self._health.stop(None)

    def _directories(self, scope: str) -> Iterator[Path]:
        """Yields the local directories that the process writes to."""
        yield self.directory
        if scope == "taskmanager":
            yield temporary.SHARED_MEMORY
        for option in (options.ROCKSDB_LOCALDIR, options.CHECKPOINT_DIR):
            path = self.conf.get(option).removeprefix("file://")
            if path and "://" not in path:
                yield Path(path)

    def on_stop(self, stop: Callable[[str], None]) -> None:
        """Calls `stop` on the event loop after SIGTERM and SIGINT, with the signal's name."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number.name)

    def announce_ready(self, **facts: str) -> None:
        """Reports to the parent process and in the log that this service is ready."""
        announce_ready(**facts)
        log.info("ready", **facts)

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()
        if self._target is not None:
            with suppress(OSError):
                self._target.unlink(missing_ok=True)


def service_main(
    name: str,
    *,
    role: Role | None = None,
    directory: DirectoryUse = "none",
    port: options.Option[int] | None = None,
    configuration: Callable[[], Configuration] | None = None,
) -> Callable[
    [Callable[Concatenate[ServiceProcess, P], Coroutine[Any, Any, None] | None]], click.Command
]:
    """Makes a function the command of a service's process.

    `name` is the process's name in its logs; `{option}` in it stands for an option's value. `role`
    is its role in the cluster, in which it authenticates itself.
    `directory` decides whether there is a --dir, and whether a temporary one replaces it. `port` is
    the option that --port overrides; without it there is no --port. `configuration` replaces
    --config and -D as the source of the configuration.
    """

    def decorate(
        main: Callable[Concatenate[ServiceProcess, P], Coroutine[Any, Any, None] | None],
    ) -> click.Command:
        @functools.wraps(main)
        def run(
            *args: Any,
            host: str | None,
            port_number: int | None = None,
            given_directory: Path | None = None,
            config: Path | None = None,
            definitions: tuple[str, ...] = (),
            **own: Any,
        ) -> None:
            process_name = name.format(**own)
            logs.configure(process_name)
            try:
                if configuration is not None:
                    conf = configuration()
                else:
                    conf = Configuration.load(config, parse_definitions(definitions))
                    for warning in conf.warnings:
                        log.warning(warning)
                    if host is not None:
                        conf = conf.with_overrides({options.BIND_HOST.key: host})
                    check_heartbeats(conf)
                    check_listens_securely(conf)
                    os.environ.update(conf.to_environment())
                remember(conf.to_dict())
            except ConfigurationError as error:
                print(f"{process_name}: {error}", file=sys.stderr)
                sys.exit(BAD_USAGE)
            log_path = keep_short(
                conf.get(options.LOG_MAX_SIZE), first_line=lambda: logs.line(logs.LOG_STARTS_OVER)
            )
            if port is not None and port_number is None:
                port_number = conf.get(port)
            with _directory(process_name, directory, given_directory) as path:
                process = ServiceProcess(
                    process_name,
                    conf,
                    host=conf.get(options.BIND_HOST),
                    port=port_number or 0,
                    directory=path,
                    log_path=log_path,
                    role=role,
                )
                _run(process, functools.partial(main, process, **own))

        command = click.command(
            cls=_Service,
            help=inspect.getdoc(main),
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )
        return command(_with_options(run, directory, port, configured=configuration is None))

    return decorate


class _Service(click.Command):
    def main(self, *args: Any, **kwargs: Any) -> Any:
        watch_lifeline()
        output.tolerate_failures()
        return super().main(*args, **kwargs)


def _run(process: ServiceProcess, main: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
    try:
        if (coroutine := main()) is not None:
            asyncio.run(_on_loop(process, coroutine))
    except ConfigurationError as error:
        print(f"{process.name}: {error}", file=sys.stderr)
        sys.exit(BAD_USAGE)
    except FiresteelError as error:
        log.error("the process ends", reason=str(error))
        sys.exit(1)
    finally:
        process.close()


async def _on_loop(process: ServiceProcess, main: Coroutine[Any, Any, None]) -> None:
    try:
        await main
    finally:
        await process.end_health()


@contextmanager
def _directory(name: str, use: DirectoryUse, given: Path | None) -> Iterator[Path | None]:
    """Returns the working directory; a temporary one is removed at the end."""
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given.resolve()
    elif use == "temporary":
        path = temporary.make(name)
        try:
            yield path
        finally:
            temporary.remove(path)
    else:
        yield None


def _with_options(
    run: Callable[..., None],
    directory: DirectoryUse,
    port: options.Option[int] | None,
    *,
    configured: bool,
) -> Callable[..., None]:
    common = [
        click.option(
            "--host",
            metavar="HOST",
            help="Interface to bind, and address that others reach it by;"
            f" else {options.BIND_HOST.key}.",
        )
    ]
    if port is not None:
        common.append(
            click.option(
                "--port",
                "port_number",
                type=click.IntRange(0, 65535),
                metavar="PORT",
                help=f"Port to bind, 0 for any free one; else {port.key}.",
            )
        )
    if directory != "none":
        common.append(
            click.option(
                "--dir",
                "given_directory",
                type=click.Path(path_type=Path, file_okay=False),
                required=directory == "required",
                metavar="DIR",
                help="Where it keeps files and logs"
                + ("." if directory == "required" else "; else a temporary folder."),
            )
        )
    if configured:
        common += [
            click.option(
                "--config",
                type=click.Path(path_type=Path),
                metavar="FILE",
                help="A config.yaml; else $FIRESTEEL_CONF_DIR/config.yaml.",
            ),
            click.option(
                "-D",
                "definitions",
                multiple=True,
                metavar="KEY=VALUE",
                help="Sets a configuration key. Repeatable.",
            ),
        ]
    for option in reversed(common):
        run = option(run)
    return run
