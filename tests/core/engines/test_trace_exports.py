"""Where traces go: the provider of the program, exporters by their names, and exporters that are down."""

import asyncio
import contextvars
import logging
import os
import subprocess
import sys
import textwrap
import threading

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio

from kopf._cogs.structs.instruments import Instruments, ObjectKey, ObjectStep
from kopf._cogs.structs.references import Resource
from kopf._core.actions.jsonlogs import JsonFormatter
from kopf._core.actions.loggers import TextFormatter
from kopf._core.engines import trace_exports
from kopf._core.engines.trace_exports import TellingExporter, flush, load_provider, logging_ids
from kopf._core.engines.tracing import Tracing, TracingError


class Exporter:
    def __init__(self, *results):
        self.results = list(results)

    def export(self, spans):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    def force_flush(self, timeout_millis):
        return True

    def shutdown(self):
        self.is_closed = True


def make(*results):
    return TellingExporter(Exporter(*results), SpanExportResult.FAILURE)


def test_a_failing_exporter_is_told_once_and_its_spans_are_counted(caplog):
    exporter = make(
        SpanExportResult.FAILURE, ConnectionError("down"), SpanExportResult.SUCCESS, ConnectionError("again")
    )
    results = [exporter.export(['span', 'span']) for _ in range(4)]
    failure, success = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    assert results == [failure, failure, success, failure] and exporter.dropped == 6
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2 and all("Traces cannot be exported" in text for text in texts)
    assert "ConnectionError('again')" in texts[1]


def test_exporters_are_flushed_and_closed_as_before():
    inner = Exporter()
    exporter = TellingExporter(inner, SpanExportResult.FAILURE)
    assert exporter.force_flush(1)
    exporter.shutdown()
    assert inner.is_closed


async def test_the_number_of_dropped_spans_is_told_at_the_end(caplog):
    exporter = make(SpanExportResult.FAILURE)
    exporter.export(['span'] * 3)
    await flush(object(), exporter)
    assert caplog.records[-1].getMessage() == "3 spans of traces could not be exported, and were dropped."


async def test_an_exporter_that_hangs_does_not_hold_the_operator(monkeypatch):
    monkeypatch.setattr(trace_exports, 'FLUSH_TIMEOUT', 0.01)
    release = threading.Event()

    class Provider:
        def force_flush(self, timeout):
            release.wait()

    async with asyncio.timeout(60):
        await flush(Provider(), None)
    release.set()


def test_the_missing_library_is_named_with_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, 'opentelemetry.sdk.trace', None)  # as if it was not installed
    with pytest.raises(TracingError, match=r"pip install 'kopf\[tracing\]>=1\.46'"):
        load_provider()


def run(code, **env):
    """Run the code in a process of its own: there can be only one global provider."""
    code = f"from kopf._core.engines.trace_exports import load_provider\n{textwrap.dedent(code)}"
    return subprocess.run(
        [sys.executable, '-c', code], env=os.environ | env, capture_output=True, text=True, timeout=60
    )


def test_the_provider_of_the_program_is_used():
    result = run(
        """
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        mine = TracerProvider()
        trace.set_tracer_provider(mine)
        assert load_provider() == (mine, None)
        """
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.long
def test_the_exporter_is_that_of_the_environment():
    code = """
        from opentelemetry import trace
        provider, exporter = load_provider()
        assert trace.get_tracer_provider() is provider
        with trace.get_tracer('x').start_as_current_span('shown'):
            pass
        provider.force_flush()
    """
    result = run(code, OTEL_TRACES_EXPORTER='console', OTEL_SERVICE_NAME='shop')
    assert result.returncode == 0, result.stderr
    assert '"name": "shown"' in result.stdout and '"service.name": "shop"' in result.stdout
    result = run(code, OTEL_TRACES_EXPORTER='none')
    assert (result.returncode, result.stdout) == (0, '')


def test_a_missing_exporter_is_named_with_the_package():
    result = run("load_provider()", OTEL_TRACES_EXPORTER='zipkin')
    assert (
        "There is no exporter 'zipkin' for traces. Install it: pip install opentelemetry-exporter-zipkin"
        in result.stderr
    )


@pytest.mark.parametrize(
    'formatter, shown',
    [
        (TextFormatter('%(message)s'), False),
        (TextFormatter('%(trace_id)s %(message)s'), True),
        (JsonFormatter(), True),
        (logging.Formatter('%(message)s'), True),  # of a handler that can do anything with the records
        (None, True),
    ],
)
def test_lines_in_traces_that_are_not_sampled_get_ids_if_these_can_be_shown(formatter, shown, monkeypatch):
    handler = logging.NullHandler()
    handler.setFormatter(formatter)
    monkeypatch.setattr(logging.getLogger(), 'handlers', [handler])
    tracing = Tracing(TracerProvider(sampler=ParentBasedTraceIdRatio(0)), '1.0')
    with logging_ids(tracing):
        unsampled = tracing.sampler.skip(None)
        token = unsampled.begin_handler()
        assert get_ids() == (tuple(unsampled.draw_log_ids().values()) if shown else None)
        unsampled.end_handler(token)


def get_ids():
    """Return the ids of the trace and of the span in a new line of the log."""
    record = logging.makeLogRecord({})
    return (record.trace_id, record.span_id) if hasattr(record, 'trace_id') else None


def get_ids_of(span):
    context = span.get_span_context()
    return f'{context.trace_id:032x}', f'{context.span_id:016x}'


def test_lines_in_sampled_traces_get_ids_even_if_no_format_shows_them(monkeypatch):
    monkeypatch.setattr(logging.getLogger(), 'handlers', [])
    provider = TracerProvider(sampler=ParentBasedTraceIdRatio(0.999999))
    tracing = Tracing(provider, '1.0')
    instruments, tracer = Instruments([tracing]), provider.get_tracer('mine')
    key = ObjectKey(Resource('kopf.dev', 'v1', 'kopfexamples'), 'default', 'obj', 'uid')

    def act():
        tracing.attach()
        assert get_ids() is None
        with tracer.start_as_current_span('mine', context=Context()) as span:  # of code beside the operator
            assert get_ids() == get_ids_of(span)
        with ObjectStep(instruments, key, event=None, number=1) as step:
            step.decide('create', ['create'], None)
            ids = get_ids()
            with tracer.start_as_current_span('mine') as span:
                assert get_ids() == get_ids_of(span)
        assert get_ids() is None
        return ids

    with logging_ids(tracing):
        assert contextvars.copy_context().run(act) is not None
