"""A tiny TCP relay that cuts connections, also in the middle of a message."""

import selectors
import socket
import struct


class Proxy:
    """ports: {listening port: (host, port)}. cut: a shared cell; each change of it resets all connections."""

    def __init__(self, listeners, cell):
        self.selector, self.cell, self.seen, self.pairs = selectors.DefaultSelector(), cell, cell[0], {}
        for listener, target in listeners:
            listener.setblocking(False)
            self.selector.register(listener, selectors.EVENT_READ, target)

    def drop(self, near):
        for side in (near, self.pairs.pop(near, None)):
            if side is None:
                continue
            self.pairs.pop(side, None)
            self.selector.unregister(side)
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            side.close()

    def accept(self, listener, target):
        near, _ = listener.accept()
        far = socket.socket()
        try:
            far.settimeout(0.3)
            far.connect(target)
        except OSError:
            near.close()
            far.close()
            return
        for side in (near, far):
            side.settimeout(2.0)
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.selector.register(side, selectors.EVENT_READ, None)
        self.pairs[near], self.pairs[far] = far, near

    def relay(self, side):
        if side not in self.pairs:
            return
        try:
            data = side.recv(1 << 16)
            if data:
                self.pairs[side].sendall(data)
        except OSError:
            data = b""
        if not data:
            self.drop(side)

    def run(self, is_over):
        while not is_over():
            for key, _ in self.selector.select(0.05):
                if key.data:
                    self.accept(key.fileobj, key.data)
                else:
                    self.relay(key.fileobj)
                if self.cell[0] != self.seen:   # in the middle of whatever is being relayed
                    self.seen = self.cell[0]
                    while self.pairs:
                        self.drop(next(iter(self.pairs)))
