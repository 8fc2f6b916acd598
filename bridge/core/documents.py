"""Documents in a request, such as a PDF: which media types are text, and the refusal by a backend that reads no others.

A text is passed on as text, which every model reads. Anything else only its provider can open.
"""

from __future__ import annotations

from bridge.core.images import decode_base64
from bridge.core.items import Document, FunctionOutput, Image, Message, Text
from bridge.core.turn import Turn
from bridge.errors import InvalidRequest

PDF = "application/pdf"
_TEXTS = ("application/json", "application/xml", "application/yaml", "application/x-yaml", "application/javascript")


def open_document(media_type: str, data: str, name: str | None = None) -> Text | Image | Document:
    """What a file of this type is for a model; `data` is its base64. Raises ValueError for anything else."""
    kind = media_type.partition(";")[0].strip().lower()
    if kind.startswith("image/"):
        return Image(f"data:{kind};base64,{data}")
    content = decode_base64(data)
    if content is None or "/" not in kind:
        raise ValueError(data)
    if kind.startswith("text/") or kind in _TEXTS:
        text = content.decode()
        return Text(text if name is None else f"{name}:\n{text}")
    return Document(f"data:{kind};base64,{data}", name)


def check_documents(turn: Turn, backend: str) -> None:
    """Raise InvalidRequest if a turn has a document, for a backend that reads none."""
    for item in turn.items:
        if isinstance(item, Message | FunctionOutput):
            for part in item.parts:
                if isinstance(part, Document):
                    raise refusal(part, f"the backend {backend!r}")


def refusal(document: Document, reader: str, remedy: str = "") -> InvalidRequest:
    """The error for a document that `reader` cannot read."""
    about = f" {document.name[:100]!r}" if document.name else ""
    remedy = remedy or "Send its text, or its pages as images, or use a model whose provider reads documents."
    return InvalidRequest(
        f"The document{about} ({document.media_type or 'a URL'}) cannot be passed on: {reader} does not read it. "
        f"{remedy}",
        code="unsupported_document",
    )
