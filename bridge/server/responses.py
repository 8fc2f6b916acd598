"""What else there is under /v1/responses: retrieval, deletion, cancelling, input items, compaction, token counts."""

from __future__ import annotations

from functools import partial
from typing import Any

import trio

from bridge import exact_json
from bridge.api.compaction import PROMPT, compaction_item
from bridge.api.reading import parse_json
from bridge.api.responses.events import ResponsesEncoder
from bridge.api.responses.response import usage_object
from bridge.api.shape import parse_request
from bridge.errors import BridgeError, InvalidRequest
from bridge.server.background import UNFINISHED, as_interrupted
from bridge.server.continuation import Continuation, find_continuation, item_objects
from bridge.server.exchange import wait_for_model
from bridge.server.http import Page, PageRequest, json_page, list_page
from bridge.server.openai_exchange import OpenAiExchange
from bridge.server.service import Service
from bridge.server.visible import resolve_visible
from bridge.turn.estimate import estimate_input
from bridge.turn.events import Usage
from bridge.turn.items import Message

CANCEL_SECONDS = 10.0


class ResponsePages:
    """The pages; each raises BridgeError for what it cannot show."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def retrieve(self, request: PageRequest) -> Page:
        """GET /v1/responses/{id}."""
        if request.query.get("stream") in ("true", "1"):
            raise InvalidRequest(
                "A stored response is not streamed again: leave out 'stream'.",
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
        """POST /v1/responses/{id}/cancel: ends a response that is being written; one that has ended stays as it is."""
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
        """POST /v1/responses/input_tokens: an estimate, since no tokenizer is at hand; it says so."""
        data = parse_json(request.body)
        await wait_for_model(self._service.router, data.get("model"))
        key = self._service.admission.key(request.key)
        resolve = partial(resolve_visible, self._service.router, key, keyed=request.provider_key is not None)
        turn = parse_request(data, "responses", resolve, (await self._continue(request, data)).context)
        return json_page({"object": "response.input_tokens", "input_tokens": estimate_input(turn), "estimated": True})

    async def compact(self, request: PageRequest) -> Page:
        """POST /v1/responses/compact: the user's messages, and everything else as a summary that the model writes."""
        if self._service.player is not None:
            self._service.player.check("/v1/responses/compact")
        data = parse_json(request.body)
        known = await self._continue(request, data)
        given = data.get("input")
        if not isinstance(given, list | str | None):
            raise InvalidRequest("Invalid 'input': expected a string or a list of items.", param="input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) and given else list(given or ())
        if not items and not known.count:
            raise InvalidRequest("'input' is empty: there is nothing to compact.", param="input")
        asked: dict[str, Any] = {
            "model": data.get("model"),
            "instructions": data.get("instructions"),
            "input": [*items, {"role": "developer", "content": PROMPT}],
            "store": False,
            "stream": False,
        }
        exchange = OpenAiExchange(self._service, "responses", request.key, request.url, request.provider_key)
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
        said = [item for item in turn.items if isinstance(item, Message) and item.role == "user"]
        return json_page(
            {
                "id": new_id("resp"),
                "object": "response.compaction",
                "created_at": encoder.created_at,
                "output": [*item_objects(said, new_id), compaction_item(new_id("cmp"), encoder.text)],
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
        return as_interrupted(body) if body["status"] in UNFINISHED else body

    async def _continue(self, request: PageRequest, data: dict[str, Any]) -> Continuation:
        return await find_continuation(self._service.store, request.key, data, enabled=self._service.keeps_responses)


def _not_found(name: str) -> InvalidRequest:
    return InvalidRequest(
        f"Response with id {name[:100]!r} not found. It may have expired, or was made with 'store': false.",
        param="response_id",
        code="response_not_found",
        http_status=404,
    )
