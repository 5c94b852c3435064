"""Many clients of every kind at once: whatever they do, nobody gets a wrong token, and nothing is left behind."""

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.served import Served

CHAT = "/v1/chat/completions"
QUESTIONS = [f"question number {number}" for number in range(6)]
BROKEN = [b"{", b"[]", b'{"messages": 5}', b'{"messages": [], "n": 3}', b"\xff" * 100]


def resident() -> int:
    """Bytes of memory that this process, which the server runs in, holds."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def body(question: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}], "max_tokens": 60, "stream": True} | more


class Clients:
    """Eight clients; `counts` has what they saw."""

    def __init__(self, served: Served, expected: dict[str, str], seed: int) -> None:
        self.served, self.expected, self.random = served, expected, random.Random(seed)
        self.counts: dict[int, int] = {}

    async def run(self, requests: int) -> None:
        """All of `requests`, eight at a time."""
        limits, left = httpx.Limits(max_connections=8), iter(range(requests))

        async def work(client: httpx.AsyncClient) -> None:
            for _ in left:
                await self.random.choice(
                    [self.whole, self.whole, self.leaving, self.slow, self.broken, self.long]
                )(client)

        async with httpx.AsyncClient(base_url=self.served.url, limits=limits, timeout=120) as client:
            await asyncio.gather(*(work(client) for _ in range(8)))

    async def whole(self, client: httpx.AsyncClient) -> None:
        """Reads all of it."""
        question = self.random.choice(QUESTIONS)
        assert await self._read(client, question) == self.expected[question]

    async def leaving(self, client: httpx.AsyncClient) -> None:
        """Leaves in the middle."""
        question = self.random.choice(QUESTIONS)
        text = await self._read(client, question, most=self.random.randint(0, 5), max_tokens=300)
        assert text.startswith(self.expected[question][: len(text)])

    async def slow(self, client: httpx.AsyncClient) -> None:
        """Takes its time over every chunk."""
        question = self.random.choice(QUESTIONS)
        assert await self._read(client, question, pause=0.005) == self.expected[question]

    async def broken(self, client: httpx.AsyncClient) -> None:
        """Sends nonsense."""
        self._count(await client.post(CHAT, content=self.random.choice(BROKEN)), 400)

    async def long(self, client: httpx.AsyncClient) -> None:
        """Sends what no context holds."""
        self._count(await client.post(CHAT, json=body("word " * 9000)), 400)

    def _count(self, response: httpx.Response, expected: int) -> None:
        assert response.status_code == expected
        self.counts[expected] = self.counts.get(expected, 0) + 1

    async def _read(
        self, client: httpx.AsyncClient, question: str, *, most: int = 10**9, pause: float = 0.0, **more: Any
    ) -> str:
        text, chunks = "", 0
        async with client.stream("POST", CHAT, json=body(question, **more)) as response:
            self._count(response, 200)
            async for line in response.aiter_lines():
                if chunks >= most:
                    break
                if line.startswith("data: {"):
                    delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                    text, chunks = text + delta.get("content", ""), chunks + 1
                    await asyncio.sleep(pause)
        return text


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="only Linux tells the memory of a process so"
)
@pytest.mark.parametrize("requests", [80, pytest.param(500, marks=pytest.mark.large)])
async def test_many_clients_of_every_kind(served: Served, requests: int) -> None:
    expected = {question: served.engine.chat() for question in QUESTIONS}
    texts = {
        question: "".join(step.text for step in chat.send(question, max_new_tokens=60, mode="plain"))
        for question, chat in expected.items()
    }
    await Clients(served, texts, seed=1).run(60)
    before, memory = await asyncio.to_thread(served.figures), resident()
    clients = Clients(served, texts, seed=2)
    await clients.run(requests)
    while (after := await asyncio.to_thread(served.figures))["specdec_requests_under_way"]:
        await asyncio.sleep(0.01)
    for status, count in clients.counts.items():
        name = f'specdec_requests_total{{path="{CHAT}",status="{status}"}}'
        assert after[name] - before.get(name, 0) == count
    assert sum(clients.counts.values()) == requests
    assert resident() < 1.02 * memory + (8 << 20)
    assert served.engine.generate(QUESTIONS[0], max_new_tokens=60) == texts[QUESTIONS[0]]
