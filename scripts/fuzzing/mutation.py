"""Changes to inputs that hold JSON: half of them to a value in it, so that what is made is still JSON."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, 2**64, -(2**63), 0.5, 1e308, "", " ", "\n", "\x00", "\u2028", "😀", "é",
    [], {}, [None], [[]], {"": ""}, [{}], {"type": None}, "x" * 300,
    "<tool_call>", "</tool_call>", '<tool_call>{"name":"look","arguments":{"q":"x"}}</tool_call>', "data: x\n\n",
)  # fmt: skip


def mutate(data: bytes, largest: int, seed: int, plain: Callable[[bytes, int], bytes]) -> bytes:
    """Another input, no longer than `largest`. `plain` changes bytes without knowing what they are."""
    dice = random.Random(seed)
    lines = data.split(b"\n")
    number = dice.randrange(len(lines))
    line = lines[number]
    start = min((at for at in (line.find(b"{"), line.find(b"[")) if at >= 0), default=-1)
    if start < 0 or dice.random() < 0.4:
        return plain(data, largest)
    if dice.random() < 0.15:
        lines.insert(dice.randrange(len(lines) + 1), lines.pop(number) if dice.random() < 0.5 else line)
    else:
        try:
            value = json.loads(line[start:])
        except (ValueError, RecursionError):
            return plain(data, largest)
        changed = json.dumps(change(value, dice), separators=(",", ":")).encode("utf-8", "replace")
        lines[number] = line[:start] + changed
    made = b"\n".join(lines)
    return made if len(made) <= largest else plain(data, largest)


def change(value: Any, dice: random.Random) -> Any:
    """The value with one node replaced, taken out, doubled, exchanged with another one, or moved."""
    places = list(_places(value))
    if not places:
        return dice.choice(ODD)
    holder, name = dice.choice(places)
    action = dice.randrange(6)
    if action == 0:
        holder[name] = dice.choice(ODD)
    elif action == 1:
        del holder[name]
    elif action == 2:
        other, other_name = dice.choice(places)
        holder[name] = json.loads(json.dumps(other[other_name]))
    elif action == 3 and isinstance(holder, list):
        holder.insert(dice.randrange(len(holder) + 1), json.loads(json.dumps(holder[name])))
    elif action == 4 and isinstance(holder, dict):
        other, other_name = dice.choice(places)
        if isinstance(other, dict):
            holder[other_name] = json.loads(json.dumps(holder[name]))
    elif isinstance(holder[name], str) and holder[name]:
        text = holder[name]
        at = dice.randrange(len(text) + 1)
        holder[name] = text[:at] + str(dice.choice(ODD)) + text[at:] if dice.random() < 0.5 else text[:at]
    else:
        holder[name] = [holder[name]] if dice.random() < 0.5 else {"type": holder[name]}
    return value


def _places(value: Any) -> Any:
    """(holder, name or index) of every node below `value`."""
    names = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for name in names:
        yield value, name
        yield from _places(value[name])
