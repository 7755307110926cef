"""Forwards TCP connections with a delay in each direction: forwarder.py --delay-ms 20 HOST:PORT:TO_HOST:TO_PORT ... SIGUSR1
breaks all connections. With --rate, all connections together carry that many bytes/s in each direction, until SIGUSR2 lifts the
bound."""

import argparse
import asyncio
import signal
import socket
import struct

MOST = 1 << 16  # bytes in one piece
PIECE = 1 << 13  # the same where the rate is bounded: nothing waits long behind a piece
PIECES = 256    # under way in one direction: then the sender is held back

connections = set()


class Bound:
    """What one direction carries: pieces go one after the other, each as long as it takes at this rate."""

    def __init__(self, rate):
        self.rate, self.free = rate, 0.0

    async def wait(self, size):
        loop = asyncio.get_running_loop()
        if self.rate:
            self.free = max(self.free, loop.time()) + size / self.rate
            await asyncio.sleep(self.free - loop.time())


async def carry(reader, writer, delay, bound):
    """One direction: what is read now is written `delay` seconds later, and when the bound lets it pass."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue(PIECES)

    async def read():
        while True:
            data = await reader.read(PIECE if bound.rate else MOST)
            await queue.put((loop.time() + delay, data))
            if not data:
                return

    async def write():
        while True:
            due, data = await queue.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.write_eof()
                return
            await bound.wait(len(data))
            writer.write(data)
            await writer.drain()

    await asyncio.gather(read(), write())


def forward_to(host, port, delay, bounds):
    async def serve(reader, writer):
        writers = [writer]
        try:
            there_reader, there_writer = await asyncio.wait_for(asyncio.open_connection(host, port), 2)
            writers.append(there_writer)
            connections.add(tuple(writers))
            await asyncio.gather(carry(reader, there_writer, delay, bounds[0]), carry(there_reader, writer, delay, bounds[1]))
        except (OSError, RuntimeError, asyncio.TimeoutError):
            pass
        finally:
            connections.discard(tuple(writers))
            for each in writers:
                each.transport.abort()
    return serve


def cut():
    broken = list(connections)
    for writers in broken:
        for writer in writers:
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # what is under way is lost
            writer.transport.abort()
    print("cut %d" % len(broken), flush=True)


def lift(bounds):
    for bound in bounds:
        bound.rate = 0


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("--rate", type=float, default=0)
    parser.add_argument("ways", nargs="+")
    options = parser.parse_args()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, cut)
    bounds = [Bound(options.rate), Bound(options.rate)]
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, lift, bounds)
    servers = []
    for way in options.ways:
        host, port, to_host, to_port = way.split(":")
        servers.append(await asyncio.start_server(forward_to(to_host, int(to_port), options.delay_ms / 1000, bounds), host, int(port)))
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


asyncio.run(main())
