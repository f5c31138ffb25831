"""A server that answers every /generate at once with the same 4,000 tokens; as little as can be.

    python -m tests.benchmarks.trivial_server PORT

It parses no more of HTTP than where a request ends, so that a client is what is measured. The
body is what SGLang gives: ids, their text, meta_info.
"""

import asyncio
import json
import sys

TOKENS = 4000
WORD = " word"


def body() -> bytes:
    """Return the body of one answer."""
    meta = {
        "id": "x",
        "finish_reason": {"type": "length", "length": TOKENS},
        "prompt_tokens": 200,
        "weight_version": "default",
        "completion_tokens": TOKENS,
        "cached_tokens": 0,
        "e2e_latency": 0.01,
    }
    ids = [1000 + (n * 7919) % 60_000 for n in range(TOKENS)]
    answer = {"text": WORD * TOKENS, "output_ids": ids, "meta_info": meta}
    return json.dumps(answer, separators=(",", ":")).encode()


def _reply(content: bytes) -> bytes:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


ANSWER, SMALL = _reply(body()), _reply(b'{"model_path":"x"}')


class Connection(asyncio.Protocol):
    """One connection: a request ends with its Content-Length, then comes the answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with nothing received."""
        assert isinstance(transport, asyncio.Transport)
        self.transport, self.received = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self.received += data
        while (end := self.received.find(b"\r\n\r\n")) >= 0:
            head = self.received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self.received) < end + 4 + length:
                return
            self.received = self.received[end + 4 + length :]
            self.transport.write(ANSWER if head.startswith(b"post /generate") else SMALL)


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(
        Connection, "127.0.0.1", port, backlog=2048
    )
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
