"""llm, with models of its extra-openai-models.yaml: its Python API, and the command itself."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import yaml
from programs.shared import API_KEY, BASE_URL, FUNCTIONS, MODEL, City, Reply, serve

# llm reads all of this when a model is first asked for.
SETTINGS = Path(os.environ["HOME"], "llm")
SETTINGS.mkdir()
os.environ["LLM_USER_PATH"] = str(SETTINGS)
SHARED = {
    "model_name": MODEL,
    "api_base": BASE_URL,
    "api_key_name": "bridge",
    "supports_tools": True,
    "supports_schema": True,
    "reasoning": True,
}
EXTRA_MODELS = [
    {"model_id": "bridge-responses", "responses": True, **SHARED},
    {"model_id": "bridge-chat", **SHARED},
]
(SETTINGS / "extra-openai-models.yaml").write_text(yaml.safe_dump(EXTRA_MODELS))
(SETTINGS / "keys.json").write_text(json.dumps({"bridge": API_KEY}))

import llm  # noqa: E402

SYSTEM = "You are a tester."


def model(api: str) -> llm.Model:
    return llm.get_model(f"bridge-{api}")


def report(response: llm.Response) -> Reply:
    usage, parts = response.usage(), [part for message in response.messages() for part in message.parts]
    return {
        "text": response.text(),
        "reasoning": "".join(part.text for part in parts if isinstance(part, llm.parts.ReasoningPart)),
        "usage": [usage.input, detail(usage, "cached_tokens"), usage.output, detail(usage, "reasoning_tokens")],
    }


def detail(usage: llm.Usage, name: str) -> int:
    (value,) = [group[name] for group in usage.details.values() if name in group]
    return value


def plain(api: str, prompt: str) -> Reply:
    return report(model(api).prompt(prompt, system=SYSTEM, stream=False))


def streamed(api: str, prompt: str) -> Reply:
    response = model(api).prompt(prompt, system=SYSTEM)
    return {"pieces": list(response)} | report(response)


def tools(api: str, prompt: str) -> Reply:
    return chain(api, prompt, stream=False)


def streamed_tools(api: str, prompt: str) -> Reply:
    return chain(api, prompt, stream=True)


def chain(api: str, prompt: str, stream: bool) -> Reply:
    answers = model(api).chain(prompt, system=SYSTEM, tools=list(FUNCTIONS), stream=stream).responses()
    texts = [answer.text() for answer in answers]
    return {"text": texts[-1], "texts": texts}


def structured(api: str, prompt: str) -> Reply:
    return {"object": json.loads(model(api).prompt(prompt, schema=City).text())}


def history(api: str, prompts: list[str]) -> Reply:
    conversation = model(api).conversation()
    for prompt in prompts:
        answer = conversation.prompt(prompt, system=SYSTEM)
        answer.text()
    return report(answer)


async def concurrent(api: str, prompts: list[str]) -> Reply:
    asked = llm.get_async_model(f"bridge-{api}")
    return {"texts": await asyncio.gather(*(asked.prompt(prompt).text() for prompt in prompts))}


async def command(api: str, prompts: list[str]) -> Reply:
    """`llm PROMPT`, then `llm --continue PROMPT`, as a person types them."""
    texts, more = [], []
    for prompt in prompts:
        process = await start("--model", f"bridge-{api}", "--system", SYSTEM, *more, prompt)
        output, errors = await process.communicate()
        if process.returncode:
            raise RuntimeError(errors.decode())
        texts.append(output.decode())
        more = ["--continue"]
    return {"texts": texts}


async def cancel(api: str, prompt: str) -> Reply:
    """Ctrl-C in the middle of an answer. The Python API has nothing that ends one."""
    process = await start("--model", f"bridge-{api}", prompt)
    piece = await process.stdout.readuntil(b" ")
    process.send_signal(signal.SIGINT)
    await process.communicate()
    return {"pieces": [piece.decode()]}


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "llm", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


serve(plain, streamed, tools, streamed_tools, structured, history, concurrent, command, cancel)
