"""Schemas of the Gemini API: what a client may send, and what the bridge answers."""

from __future__ import annotations

from bridge.protocols.client import ApiSchemas
from bridge.protocols.gemini.request import GeminiBody
from bridge.protocols.openapi import (
    COUNT,
    NAME,
    NULL,
    OBJECT,
    STRING,
    Json,
    any_of,
    body_schema,
    closed,
    const,
    enum,
    list_of,
    opened,
    opt,
    ref,
    text,
)

# Requests

_NAME_OF_FUNCTION: Json = {**NAME, "maxLength": 128, "pattern": "^[A-Za-z0-9_.:-]+$"}
_PART = any_of(
    opened(text=STRING, thought=opt({"type": "boolean"}), thoughtSignature=opt(STRING)),
    opened("An image, a text or another document.", inlineData=opened(mimeType=STRING, data=STRING)),
    opened("An image or a document. Codex fetches none.", fileData=opened(fileUri=STRING)),
    opened(functionCall=opened(name=_NAME_OF_FUNCTION, args=opt(OBJECT)), thoughtSignature=opt(STRING)),
    opened(functionResponse=opened(name=_NAME_OF_FUNCTION, response=opt(OBJECT))),
    description="A part of a content.",
)
_SENT: dict[str, Json] = {
    "GeminiContent": opened(
        "Parts of one side. Responses follow their calls: by id, or else by name, in order.",
        role=opt(enum("user", "model", "function")),
        parts=list_of(_PART),
    )
}
_MEMBERS: dict[str, Json | str] = {
    "contents": {
        "type": "array",
        "items": ref("GeminiContent"),
        "minItems": 1,
        "description": "The conversation so far.",
    },
    "systemInstruction": any_of(ref("GeminiContent"), STRING, NULL, description="The system prompt."),
    "tools": "Function declarations, and `googleSearch` as far as `PROXY_WEB_SEARCH` allows. Others would run on "
    "Google's servers: they are dropped and named.",
    "toolConfig": "The choice among the functions.",
    "generationConfig": "The format of the answer, its limits, sampling and thinking.",
}


_BODY = body_schema(
    "A request for content. Members may also be spelled with underscores. Unlisted members, such as `safetySettings`, "
    "are dropped and named in `x-bridge-dropped`.",
    GeminiBody,
    _MEMBERS,
    elsewhere=("model", "stream"),
)

# Answers

_CANDIDATE = closed(
    content=closed(
        role="model",
        parts=list_of(
            any_of(
                closed(text=STRING, thought=opt(const(True)), thoughtSignature=opt(STRING)),
                closed(
                    functionCall=closed(id=STRING, name=STRING, args=OBJECT),
                    thoughtSignature=opt(STRING),
                ),
            )
        ),
    ),
    index=COUNT,
    finishReason=opt(enum("STOP", "MAX_TOKENS", "SAFETY")),
)
_MODEL = closed(
    "A model.",
    name={**NAME, "description": "`models/` and the name for requests."},
    version=STRING,
    displayName=NAME,
    supportedGenerationMethods=list_of(STRING),
    inputTokenLimit=opt(COUNT),
)
_ANSWERED: dict[str, Json] = {
    "GeminiError": closed(
        "An error in the format of Google's APIs.",
        error=closed(
            code={"type": "integer"},
            message=text("What went wrong, and how to fix it."),
            status=text("INVALID_ARGUMENT, UNAUTHENTICATED, RESOURCE_EXHAUSTED, UNAVAILABLE, …"),
            details=list_of(OBJECT, description="An ErrorInfo with the exact reason, for programs."),
        ),
    ),
    "GeminiModel": _MODEL,
    "GeminiModels": closed("The models.", models=list_of(ref("GeminiModel")), nextPageToken=opt(STRING)),
    "GeminiChunks": list_of(
        any_of(ref("GeminiResponse"), ref("GeminiError")),
        description="The parts of an answer; only the last may be an error.",
    ),
    "GeminiTokens": closed("The estimate.", totalTokens=COUNT),
    "GeminiResponse": closed(
        "An answer; in a stream a part of it, and only the last one has the usage.",
        candidates=list_of(_CANDIDATE),
        usageMetadata=opt(
            closed(
                promptTokenCount=COUNT,
                candidatesTokenCount=COUNT,
                totalTokenCount=COUNT,
                cachedContentTokenCount=COUNT,
                thoughtsTokenCount=COUNT,
            )
        ),
        modelVersion=text("As spelled in the request."),
        responseId=NAME,
    ),
}

_HELLO = {"contents": [{"role": "user", "parts": [{"text": "hello"}]}]}
_TOOL = {"functionDeclarations": [{"name": "weather", "parameters": {"type": "OBJECT"}}]}
API = ApiSchemas(
    ref("GeminiRequest"),
    {"Text": _HELLO, "Tool": {**_HELLO, "tools": [_TOOL]}},
    {**_SENT, "GeminiRequest": _BODY, **_ANSWERED},
)
