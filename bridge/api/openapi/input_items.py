"""What a client may say: messages, calls, outputs and items, in either protocol's spelling and any mixture."""

from __future__ import annotations

from bridge.api.items import PASSED_ON, TOOLS_ITEM
from bridge.api.openapi.schemas import NULL, STRING, Json, any_of, const, list_of, one_of_words, opened, or_null, ref

CALL_ID: Json = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": "^[A-Za-z0-9_.:|/+=@#~$-]+$"}
PAST_NAME: Json = {"type": "string", "minLength": 1}

_CONTENT = any_of(STRING, list_of(ref("ContentPart")), NULL)
_SAID = any_of(STRING, list_of(ref("ContentPart"), minItems=1))


def _kind(*names: str) -> Json:
    return {"type": one_of_words(*names)}


SCHEMAS: dict[str, Json] = {
    "ContentPart": any_of(
        STRING,
        opened(
            {**_kind("text", "input_text", "output_text", "summary_text", "reasoning_text"), "text": STRING},
            description="A text.",
        ),
        opened({**_kind("refusal"), "refusal": STRING}, description="A refusal; read as a text."),
        opened(
            {
                **_kind("image_url", "input_image"),
                "image_url": any_of(STRING, opened({"url": STRING}, {"detail": {}})),
            },
            {"detail": {"description": "`high`, `original`; anything else is `auto`."}},
            "An image as a data URL. Codex does not fetch images: it refuses other addresses.",
        ),
        description="A part of a message's content. Files, audio, and images by a file's id are refused.",
    ),
    "InputMessage": any_of(
        opened(
            {"role": one_of_words("system", "developer", "user"), "content": _SAID},
            {"type": any_of(const("message"), NULL)},
            "Something that is said to the model.",
        ),
        opened(
            {"role": const("assistant")},
            {
                "type": any_of(const("message"), NULL),
                "content": _CONTENT,
                "refusal": _CONTENT,
                "tool_calls": or_null(list_of(ref("PastToolCall"))),
                "function_call": or_null(opened({"name": PAST_NAME, "arguments": STRING})),
            },
            "What the model said and called earlier.",
        ),
        opened(
            {"role": const("tool"), "tool_call_id": CALL_ID},
            {"type": any_of(const("message"), NULL), "content": _CONTENT},
            "What a tool gave back for an earlier call.",
        ),
        opened(
            {"role": const("function"), "name": PAST_NAME},
            {"type": any_of(const("message"), NULL), "content": _CONTENT},
            "The same for a `function_call`, from before calls had ids.",
        ),
        description="A message. One of chat's kinds may stand in a response's `input`, too.",
    ),
    "PastToolCall": any_of(
        opened({"id": CALL_ID, "function": opened({"name": PAST_NAME, "arguments": STRING})}, {"type": STRING}),
        opened({"id": CALL_ID, "type": const("custom"), "custom": opened({"name": PAST_NAME, "input": STRING})}),
        description="A call that the model made earlier, in chat's spelling.",
    ),
    "InputItem": any_of(
        ref("InputMessage"),
        opened(
            {"call_id": CALL_ID, "name": PAST_NAME, "arguments": STRING},
            {"type": const("function_call"), "namespace": or_null(ref("Name"))},
            "A call that the model made earlier.",
        ),
        opened(
            {**_kind("custom_tool_call"), "call_id": CALL_ID, "name": PAST_NAME, "input": STRING},
            {"namespace": or_null(ref("Name"))},
            "A call of a custom tool.",
        ),
        opened(
            {"call_id": CALL_ID, "output": _CONTENT},
            {"type": one_of_words("function_call_output", "custom_tool_call_output")},
            "What a tool gave back. It comes after its call.",
        ),
        opened(
            {**_kind("reasoning")},
            {"encrypted_content": {}, "summary": {}, "content": {}},
            "A thought, as it was answered. Used with `encrypted_content`; without it, it is left out.",
        ),
        opened(
            {**_kind("compaction"), "encrypted_content": STRING},
            description="The summary of a conversation that POST /v1/responses/compact of this bridge has made.",
        ),
        opened({**_kind("item_reference"), "id": STRING}, description="A stored item is put in its place."),
        opened(
            {**_kind(TOOLS_ITEM)},
            {"tools": {"description": "Offered like those in `tools`, where it is a list."}},
            "Tools that are offered from within the conversation.",
        ),
        opened({**_kind(*PASSED_ON)}, description="Given to the model as it is."),
        description="One thing that was said or done. Items of other types are refused (`unsupported_item`); members "
        "that are not listed are ignored.",
    ),
    "Name": {
        "type": "string",
        "minLength": 1,
        "maxLength": 128,
        "pattern": "^[A-Za-z0-9_.:-]+$",
        "description": "The name of a function or of a namespace.",
    },
}
