"""
Export of OpenTelemetry's spans: by the provider of the program, or by the exporter that ``OTEL_*`` variables choose.

An exporter that fails must not harm the operator: its spans are dropped and counted, with one warning.
"""

import asyncio
import contextlib
import importlib.metadata
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from kopf._cogs.aiokits.thread_pools import DaemonicThreadPool
from kopf._core.actions.loggers import TextFormatter
from kopf._core.actions.logrecords import AddingFactory
from kopf._core.engines.tracing import Tracing, TracingError

logger = logging.getLogger(__name__)

FLUSH_TIMEOUT = 2.0
"""How long the exiting operator waits until the last spans are exported (in seconds)."""

_EXPORTERS = 'opentelemetry_traces_exporter'
"""The entry points by which OpenTelemetry finds exporters."""

_ALIASES = {'otlp': ('otlp_proto_http', 'otlp_proto_grpc', 'otlp')}
"""The entry points for known names in ``OTEL_TRACES_EXPORTER``, the preferred one first."""


class TellingExporter:
    """An exporter that counts the spans that could not be exported, and logs one warning."""

    def __init__(self, inner: Any, failure: Any) -> None:
        self._inner = inner
        self._failure = failure
        self._is_failing = False
        self.dropped = 0
        """The number of dropped spans."""

    def export(self, spans: Sequence[Any]) -> Any:
        """Export the spans; called in a thread of OpenTelemetry."""
        reason = "the exporter gives no reason"
        try:
            result = self._inner.export(spans)
        except Exception as error:
            result, reason = self._failure, repr(error)
        if result is not self._failure:
            self._is_failing = False
            return result
        self.dropped += len(spans)
        if not self._is_failing:
            self._is_failing = True
            logger.warning(
                "Traces cannot be exported, and are dropped until that works again: %s. The operator goes on. Check "
                "OTEL_EXPORTER_OTLP_ENDPOINT, or what receives them.",
                reason,
            )
        return result

    def shutdown(self) -> None:
        """Close the exporter."""
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Wait until the exporter has exported all received spans."""
        return bool(self._inner.force_flush(timeout_millis))


def load_provider() -> tuple[Any, TellingExporter | None]:
    """
    Return the provider of the program; if it has none, one by the ``OTEL_*`` variables, with its exporter.

    Raises:
        TracingError: if OpenTelemetry is not installed, or has no such exporter.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
    except ImportError as error:
        raise TracingError(
            f"Traces need OpenTelemetry ({error}). Install it: pip install 'kopf[tracing]>=1.46'"
        ) from error
    known = trace.get_tracer_provider()
    if not isinstance(known, trace.ProxyTracerProvider):
        return known, None
    provider, exporter = TracerProvider(), None
    if (inner := _make_exporter()) is not None:
        exporter = TellingExporter(inner, SpanExportResult.FAILURE)
        provider.add_span_processor(BatchSpanProcessor(exporter))
        # Otherwise, the exporters of OpenTelemetry would log each failed request with its traceback.
        logging.getLogger('opentelemetry.exporter').setLevel(logging.CRITICAL)
    trace.set_tracer_provider(provider)  # so that spans of the program get there, too
    return provider, exporter


def _make_exporter() -> Any:
    """Return the exporter that ``OTEL_TRACES_EXPORTER`` names; ``None`` if it is ``none``."""
    name = os.environ.get('OTEL_TRACES_EXPORTER', '').strip() or 'otlp'
    if name == 'none':
        return None
    points = importlib.metadata.entry_points(group=_EXPORTERS)
    for candidate in _ALIASES.get(name, (name,)):
        for point in points.select(name=candidate):
            return point.load()()
    package = 'opentelemetry-exporter-otlp-proto-http' if name in _ALIASES else f'opentelemetry-exporter-{name}'
    raise TracingError(
        f"There is no exporter {name!r} for traces. Install it: pip install {package}; or name another one in "
        "OTEL_TRACES_EXPORTER."
    )


@contextlib.contextmanager
def logging_ids(tracing: Tracing) -> Iterator[None]:
    """Add the ids of the current trace and span to log records, as ``trace_id`` and ``span_id``, while entered."""
    factory = AddingFactory(tracing.show_ids(of_all=_can_show_ids()))
    factory.install()
    try:
        yield
    finally:
        factory.uninstall()


def _can_show_ids() -> bool:
    """
    Check whether any handler of logs can show the ids.

    The usual text format does not. Most lines are logged in traces that are not sampled, and their ids take longer to
    be drawn than all else that is done for these traces.
    """
    return not all(
        isinstance(handler.formatter, TextFormatter) and not handler.formatter.shows('trace_id', 'span_id')
        for handler in logging.getLogger().handlers
    )


async def flush(provider: Any, exporter: TellingExporter | None) -> None:
    """Export the last spans, for a limited time; log how many spans were dropped."""
    if hasattr(provider, 'force_flush'):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_TIMEOUT):
                # Why not asyncio.to_thread()? Its thread would be joined at exit, even if the exporter hangs.
                flushing = DaemonicThreadPool(max_workers=1).submit(provider.force_flush, int(FLUSH_TIMEOUT * 1000))
                await asyncio.wrap_future(flushing)
    if exporter is not None and exporter.dropped:
        logger.warning("%d spans of traces could not be exported, and were dropped.", exporter.dropped)
