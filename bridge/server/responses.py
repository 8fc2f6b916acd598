"""The other endpoints under /v1/responses: retrieve, delete, cancel, input items, compact, input tokens."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from bridge import exact_json
from bridge.app.admission import resolve_visible
from bridge.app.continuation import Continuation, find_continuation
from bridge.app.exchange import wait_for_model
from bridge.app.protocol_exchange import UNFINISHED, ProtocolExchange, as_interrupted
from bridge.app.service import Service
from bridge.core.events import Usage
from bridge.core.items import Message
from bridge.core.turn import estimate_input
from bridge.errors import BridgeError, InvalidRequest
from bridge.http.pages import Page, PageRequest, json_page, list_page
from bridge.http.request import Parameter, Route
from bridge.protocols.items import PROMPT, compaction_item
from bridge.protocols.reading import parse_json, parse_request
from bridge.protocols.responses.build import build_stored_items
from bridge.protocols.responses.encoder import RESPONSES, ResponsesEncoder, usage_object
from bridge.server.dispatch import LIST, PROVIDER_KEY, STORED_ERRORS, TURN_ERRORS, MakeHandler

CANCEL_SECONDS = 10.0
_RESPONSE = Parameter("path", "id", "The id of a response of this key.")
_STREAM = Parameter(
    "query",
    "stream",
    "A stored response cannot be streamed: `true` is refused.",
    {"type": "boolean", "default": False},
)


class ResponsePages:
    """The pages. Each raises BridgeError if it cannot answer."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def routes(self, page: MakeHandler) -> list[Route]:
        """Their entries in the route table."""
        response = partial(Route, tag="Responses", errors=STORED_ERRORS)
        return [
            response(
                "GET",
                "/v1/responses/{id}",
                page(self.retrieve),
                "getResponse",
                "Get a response",
                "A response in progress has what was written so far.",
                parameters=(_RESPONSE, _STREAM),
                answer="Response",
            ),
            Route(
                "POST",
                "/v1/responses/compact",
                page(self.compact),
                "compactResponse",
                "Summarize a conversation",
                "The model writes a summary. Send the `output` of the answer as the start of the next `input`.",
                body="CompactRequest",
                answer="Compaction",
                tag="Responses",
                parameters=(PROVIDER_KEY,),
                errors=TURN_ERRORS,
                runs_turn=True,
            ),
            response(
                "POST",
                "/v1/responses/input_tokens",
                page(self.input_tokens),
                "countInputTokens",
                "Estimate the tokens of a request",
                "There is no tokenizer: this is an estimate of four bytes per token.",
                parameters=(PROVIDER_KEY,),
                body="responses",
                answer="InputTokens",
            ),
            response(
                "DELETE",
                "/v1/responses/{id}",
                page(self.delete),
                "deleteResponse",
                "Delete a response",
                "A response in progress is then not stored; one in the background is ended.",
                parameters=(_RESPONSE,),
                answer="DeletedResponse",
            ),
            response(
                "POST",
                "/v1/responses/{id}/cancel",
                page(self.cancel),
                "cancelResponse",
                "End a response in progress",
                "A response that has ended is returned unchanged. A body is ignored.",
                parameters=(_RESPONSE,),
                answer="Response",
            ),
            response(
                "GET",
                "/v1/responses/{id}/input_items",
                page(self.input_items),
                "listInputItems",
                "List the input of a response",
                "All items that the response answers, including those of the responses before it.",
                parameters=(_RESPONSE, *LIST),
                answer="ItemList",
            ),
        ]

    async def retrieve(self, request: PageRequest) -> Page:
        """GET /v1/responses/{id}."""
        if request.query.get("stream") in ("true", "1"):
            raise InvalidRequest(
                "A stored response cannot be streamed again. Remove 'stream'.",
                param="stream",
                code="unsupported_parameter",
            )
        return json_page(await self._find(request))

    async def delete(self, request: PageRequest) -> Page:
        """DELETE /v1/responses/{id}."""
        name = request.path["id"]
        running = self._service.running.get((request.key, name))
        if running is not None:
            running.forget()
        if not await self._service.store.delete(request.key, name) and running is None:
            raise _not_found(name)
        return json_page({"id": name, "object": "response", "deleted": True})

    async def cancel(self, request: PageRequest) -> Page:
        """POST /v1/responses/{id}/cancel: ends a response in progress; a finished one stays as it is."""
        running = self._service.running.get((request.key, request.path["id"]))
        if running is None:
            return json_page(await self._find(request))
        running.cancel()
        with trio.move_on_after(CANCEL_SECONDS):
            await running.wait_ended()
        return json_page(running.snapshot())

    async def input_items(self, request: PageRequest) -> Page:
        """GET /v1/responses/{id}/input_items: all that the model was given, the newest first unless asked otherwise."""
        name = request.path["id"]
        chain = await self._service.store.chain(request.key, name)
        if chain is None:
            raise _not_found(name)
        items: list[dict[str, Any]] = []
        for response in chain[:-1]:
            items += exact_json.loads(response.input) + exact_json.loads(response.body)["output"]
        return list_page(items + exact_json.loads(chain[-1].input), request.query)

    async def input_tokens(self, request: PageRequest) -> Page:
        """POST /v1/responses/input_tokens: an estimate, marked as such, because there is no tokenizer."""
        data = parse_json(request.body)
        await wait_for_model(self._service.router, data.get("model"))
        key = self._service.admission.key(request.key)
        turn = parse_request(data, "responses", (await self._continue(request, data)).context)
        resolve_visible(self._service.router, key, turn.model, keyed=request.provider_key is not None)
        return json_page({"object": "response.input_tokens", "input_tokens": estimate_input(turn), "estimated": True})

    async def compact(self, request: PageRequest) -> Page:
        """POST /v1/responses/compact: the user's messages, and a summary of everything else written by the model."""
        if self._service.player is not None:
            self._service.player.check("/v1/responses/compact")
        data = parse_json(request.body)
        known = await self._continue(request, data)
        given = data.get("input")
        if not isinstance(given, list | str | None):
            raise InvalidRequest("Invalid 'input': expected a string or a list of items.", param="input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) and given else list(given or ())
        if not items and not known.count:
            raise InvalidRequest("'input' is empty. Send the conversation to compact.", param="input")
        asked: dict[str, Any] = {
            "model": data.get("model"),
            "instructions": data.get("instructions"),
            "input": [*items, {"role": "developer", "content": PROMPT}],
            "store": False,
            "stream": False,
        }
        exchange = ProtocolExchange(self._service, RESPONSES, request.key, request.url, request.provider_key)
        try:
            exchange.arrived({"body": data})
            await exchange.open(asked, known)
            while not exchange.finished:
                await exchange.next()
            if exchange.failure is not None:
                raise exchange.failure
        except BridgeError as error:
            exchange.fail(error)
            raise
        finally:
            exchange.end()
        encoder, turn = exchange.encoder, exchange.turn
        assert isinstance(encoder, ResponsesEncoder)
        assert turn is not None
        new_id = self._service.new_id
        messages = [item for item in turn.items if isinstance(item, Message) and item.role == "user"]
        return json_page(
            {
                "id": new_id("resp"),
                "object": "response.compaction",
                "created_at": encoder.created_at,
                "output": [*build_stored_items(messages, new_id), compaction_item(new_id("cmp"), encoder.text)],
                "usage": usage_object(encoder.usage or Usage()),
            },
            headers=exchange.headers,
        )

    async def _find(self, request: PageRequest) -> dict[str, Any]:
        name = request.path["id"]
        running = self._service.running.get((request.key, name))
        if running is not None:
            return running.snapshot()
        stored = await self._service.store.get(request.key, name)
        if stored is None:
            raise _not_found(name)
        body: dict[str, Any] = exact_json.loads(stored.body)
        if body["status"] not in UNFINISHED or self._service.now() < stored.created_at + self._service.shared_for:
            return body
        return as_interrupted(body)

    async def _continue(self, request: PageRequest, data: dict[str, Any]) -> Continuation:
        return await find_continuation(self._service.store, request.key, data, enabled=self._service.keeps_responses)


def _not_found(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Response with id {name[:100]!r} not found. It may have expired, or was made with 'store': false.",
        param="response_id",
        code="response_not_found",
        http_status=404,
    )
