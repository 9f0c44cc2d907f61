"""Wiring: settings to models to data plane to facades, and the order in which a gateway starts and stops."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paritygate.serving.background import Background
from paritygate.serving.config import Settings
from paritygate.serving.memory_limit import limit_memory

if TYPE_CHECKING:
    from paritygate.mesh.state import StateStore
    from paritygate.serving.dataplane import DataPlane
    from paritygate.serving.facades.base import Facade
    from paritygate.serving.upstreams.backend import Hub

log = logging.getLogger("paritygate.serving")

_TRACES_EVERY_S = 0.5


@dataclass(frozen=True)
class Ports:
    """The ports that are really listened on."""

    http: int
    grpc: int
    metrics: int
    admin: int


def serve(settings: Settings, *, say: Callable[[str], None] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; blocks.

    Args:
        settings: Everything there is to set.
        say: Takes the one line that is said when requests are answered, and the one that says why they are not;
            standard output and error by default.

    Returns:
        The exit code: 0 after an orderly end, 1 if the gateway could not start.
    """
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    # Its warnings repeat what the client is told already.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    from paritygate.converter.errors import ConverterError
    from paritygate.mesh.errors import MeshError
    from paritygate.serving.errors import ServingError
    from paritygate.serving.publish.errors import PublishError

    try:
        return _run(Gateway(settings, say or _to_stdout))
    except (OSError, ServingError, ConverterError, PublishError, MeshError) as error:
        (say or _to_stderr)(f"error: {error}")
        return 1


def _run(gateway: Gateway) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(gateway.run())
    return int(uvloop.run(gateway.run()))


def _to_stdout(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")


class Gateway:
    """One gateway process, from taking its ports to letting them go."""

    def __init__(self, settings: Settings, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._stop = asyncio.Event()
        self._background = Background()

    async def run(self) -> int:
        """Start, serve until told to stop, drain, stop; gives the exit code."""
        from paritygate.converter.runtime.onnxruntime import check_installation
        from paritygate.serving.dataplane import DataPlane
        from paritygate.serving.models import Models
        from paritygate.serving.placement import Runner
        from paritygate.serving.repository_view import RepositoryView
        from paritygate.serving.rollouts import Rollouts

        check_installation()
        settings = self._settings
        limit_memory(settings.max_memory_bytes)
        self._listen_to_signals()
        runner = Runner(threads=settings.inference_threads, max_queue=settings.max_queue)
        hub = _hub(settings)
        models = Models(settings, RepositoryView(settings.repository), runner, hub=hub)
        rollouts = Rollouts(_store(settings.rollouts_dir), models, settings)
        models.keep_what_rollouts_name(rollouts.named)
        dataplane = DataPlane(settings, models, rollouts, runner, up_to_date=lambda: self._background.healthy)
        dataplane.log_settings.install()
        facades, ports = self._bind(dataplane)
        try:
            await self._start(dataplane, facades, ports)
            await self._stop.wait()
            await self._drain(dataplane, facades)
        finally:
            # A step that is still under way could acknowledge after the withdrawal.
            await self._background.stop()
            await rollouts.withdraw()
            for facade in facades.values():
                await facade.stop(0)
            await models.close()
            if hub is not None:
                await hub.stop()
            runner.close()
            dataplane.log_settings.uninstall()
        return 0

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)

    def _bind(self, dataplane: DataPlane) -> tuple[dict[str, Facade], Ports]:
        """Take every port before anything slow happens."""
        from paritygate.serving.facades import get_facade

        settings = self._settings
        wanted = {
            "v2_rest": (settings.host, settings.http_port),
            "v2_grpc": (settings.host, settings.grpc_port),
            "metrics": (settings.host, settings.metrics_port),
            "admin": ("127.0.0.1", settings.admin_port),
        }
        facades = {name: get_facade(name)(dataplane) for name in wanted}
        bound = {name: facades[name].bind(*address) for name, address in wanted.items()}
        return facades, Ports(bound["v2_rest"], bound["v2_grpc"], bound["metrics"], bound["admin"])

    async def _start(self, dataplane: DataPlane, facades: dict[str, Facade], ports: Ports) -> None:
        """Answer health at once, load, then say that requests are answered."""
        for facade in facades.values():
            await facade.start()
        # The garbage collector need not look at what modules hold again and again while requests wait. Models are
        # loaded after this, so that it still finds theirs.
        gc.collect()
        gc.freeze()
        loading = asyncio.ensure_future(self._load(dataplane))
        stopping = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            await asyncio.wait((loading,))
            return
        loading.result()
        self._announce(dataplane, ports)

    async def _load(self, dataplane: DataPlane) -> None:
        """Know where requests go before any model could answer one."""
        settings, models, rollouts = self._settings, dataplane.models, dataplane.rollouts
        await rollouts.look()
        await models.start()
        await rollouts.look()
        if settings.rollouts_dir is not None:
            self._background.repeat(
                "following the rollout state", rollouts.follow, settings.rollout_poll_interval_s
            )
        if settings.trace_file is not None:
            self._background.repeat("writing traces", dataplane.tracer.flush, _TRACES_EVERY_S)
        if not models.explicit:
            self._background.repeat("following the repository", models.poll, settings.poll_interval_s)

    def _announce(self, dataplane: DataPlane, ports: Ports) -> None:
        if self._settings.ready_file is not None:
            _write_ready_file(self._settings.ready_file, ports)
        self._say(ready_line(self._settings, dataplane, ports))

    async def _drain(self, dataplane: DataPlane, facades: dict[str, Facade]) -> None:
        """Not ready, then no new requests, then no open ones, then no ports."""
        settings = self._settings
        log.info("told to stop: %d requests in flight", dataplane.inflight)
        dataplane.begin_exit()
        await asyncio.sleep(settings.drain_delay_s)
        dataplane.refuse_new()
        if not await dataplane.wait_idle(settings.drain_timeout_s):
            log.warning(
                "%d requests did not finish within %g s", dataplane.inflight, settings.drain_timeout_s
            )
        await dataplane.tracer.flush()
        # The answers that were just made are still to be written.
        await asyncio.gather(*(facade.stop(1.0) for facade in facades.values()))


def _hub(settings: Settings) -> Hub | None:
    """The servers elsewhere, if there are any; only then is their client imported."""
    if settings.upstreams_file is None:
        return None
    from paritygate.serving.upstreams.backend import Hub
    from paritygate.serving.upstreams.config import load_upstreams

    hub = Hub(load_upstreams(settings.upstreams_file), max_answer_bytes=settings.max_response_bytes)
    hub.start()
    return hub


def _store(directory: Path | None) -> StateStore | None:
    if directory is None:
        return None
    from paritygate.mesh.state import FileStateStore

    return FileStateStore(directory)


def _write_ready_file(path: Path, ports: Ports) -> None:
    text = json.dumps(
        {
            "pid": os.getpid(),
            "http": ports.http,
            "grpc": ports.grpc,
            "metrics": ports.metrics,
            "admin": ports.admin,
        }
    )
    # Whoever waits for the file must never read half of it.
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def ready_line(settings: Settings, dataplane: DataPlane, ports: Ports) -> str:
    """The one line that says where requests are answered, and which models are not."""
    models = dataplane.models.all()
    silent = [model.name for model in models if not dataplane.model_ready(model.name)]
    served = len(models) - len(silent)
    line = (
        f"paritygate serves {served} model{'' if served == 1 else 's'} of {settings.repository}: "
        f"http://{settings.host}:{ports.http} grpc://{settings.host}:{ports.grpc} "
        f"metrics http://{settings.host}:{ports.metrics}/metrics admin http://127.0.0.1:{ports.admin}"
    )
    return f"{line}; not ready: {', '.join(silent)} (see the repository index)" if silent else line
