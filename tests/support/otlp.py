"""A collector: an OTLP receiver over HTTP that decodes what it gets."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from support.http_server import QuietHandler, http_server
from support.project import until


@dataclass(frozen=True)
class Received:
    """A span, with what it is compared by as plain values."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: list[str]
    attributes: dict[str, Any]
    is_error: bool
    description: str
    events: list[tuple[str, dict[str, Any]]]
    service: str
    scope: str


@dataclass
class Collector:
    url: str = ""
    spans: list[Received] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process exports to it."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url}

    def find(self, name: str, **attributes: Any) -> list[Received]:
        """Return the spans of this name whose attributes, without their prefix, have these values."""

        def value(span: Received, name: str) -> Any:
            return span.attributes.get(f"yamlsched.{name}")

        return [
            span
            for span in list(self.spans)
            if span.name == name
            and all(value(span, key) == wanted for key, wanted in attributes.items())
        ]

    def one(self, name: str, **attributes: Any) -> Received:
        """Wait for the span, and return it."""
        until(
            lambda: self.find(name, **attributes),
            f"{name} {attributes}, and got {[s.name for s in self.spans]}",
        )
        [found] = self.find(name, **attributes)
        return found


@contextmanager
def collector() -> Iterator[Collector]:
    collector = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = self.read_body()
            assert self.path == "/v1/traces", self.path
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            collector.spans.extend(_decode(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.answer(200, {"Content-Type": "application/x-protobuf"}, answer)

    with http_server(Handler) as collector.url:
        yield collector


def _decode(body: bytes) -> list[Received]:
    return [
        Received(
            name=span.name,
            kind=Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            links=[link.span_id.hex() for link in span.links],
            attributes=_plain(span.attributes),
            is_error=span.status.code == Status.STATUS_CODE_ERROR,
            description=span.status.message,
            events=[(event.name, _plain(event.attributes)) for event in span.events],
            service=_plain(resource.resource.attributes).get("service.name", ""),
            scope=scope.scope.name,
        )
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
