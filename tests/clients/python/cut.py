"""A wire that can be cut, to see what a client makes of it."""

import asyncio


class Cut:
    """Passes on what a server and its clients say to each other, until it is cut."""

    def __init__(self, target):
        self.host, _, self.port = target.rpartition(":")
        self.writers, self.wires = set(), set()

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.connected, "127.0.0.1", 0)
        self.address = "127.0.0.1:%d" % self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()
        self.now()
        await asyncio.gather(*self.wires)

    def now(self):
        """Cuts every connection. New ones are taken."""
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def connected(self, reader, writer):
        target_reader, target_writer = await asyncio.open_connection(self.host, self.port)
        self.writers |= {writer, target_writer}
        self.wires.add(asyncio.current_task())
        await asyncio.gather(pass_on(reader, target_writer), pass_on(target_reader, writer))


async def pass_on(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass  # It was cut.
    finally:
        writer.close()
