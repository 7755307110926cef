"""Forwards TCP connections with a delay in each direction: forwarder.py --delay-ms 20 HOST:PORT:TO_HOST:TO_PORT ... SIGUSR1
breaks all connections."""

import argparse
import asyncio
import signal

MOST = 1 << 16  # bytes in one piece
PIECES = 256    # under way in one direction: then the sender is held back

connections = set()


async def carry(reader, writer, delay):
    """One direction: what is read now is written `delay` seconds later."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue(PIECES)

    async def read():
        while True:
            data = await reader.read(MOST)
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
            writer.write(data)
            await writer.drain()

    await asyncio.gather(read(), write())


def forward_to(host, port, delay):
    async def serve(reader, writer):
        writers = [writer]
        try:
            there_reader, there_writer = await asyncio.open_connection(host, port)
            writers.append(there_writer)
            connections.add(tuple(writers))
            await asyncio.gather(carry(reader, there_writer, delay), carry(there_reader, writer, delay))
        except (OSError, RuntimeError):
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
            writer.transport.abort()
    print("cut %d" % len(broken), flush=True)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--delay-ms", type=float, default=0)
    parser.add_argument("ways", nargs="+")
    options = parser.parse_args()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, cut)
    servers = []
    for way in options.ways:
        host, port, to_host, to_port = way.split(":")
        servers.append(await asyncio.start_server(forward_to(to_host, int(to_port), options.delay_ms / 1000), host, int(port)))
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


asyncio.run(main())
