"""Carry IP packets between the hosts of a test network; drop or delay those that the test names. See network.py.

Each host has a TUN device, whose other end is here: nothing depends on what the kernel offers for traffic control. Each
line of JSON on stdin is a command, answered by a line "ok":

    {"attach": "ys1-a", "address": "10.77.0.1"}    create a device for the host with this address
    {"blocked": [["10.77.0.1", "10.77.0.4"]], "delay": 0.2}    drop from the first to the second, delay everything else
"""

from __future__ import annotations

import fcntl
import heapq
import json
import os
import select
import socket
import struct
import sys
import time
from typing import Any

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MAX_PACKET_BYTES = 1 << 16


class Router:
    def __init__(self) -> None:
        self.devices: dict[bytes, int] = {}  # by the address of the host, in network order
        self.blocked: set[tuple[bytes, bytes]] = set()
        self.delay = 0.0
        self.delayed: list[tuple[float, int, bytes]] = []  # when to deliver, in which order, what
        self.number = 0

    def command(self, command: dict[str, Any]) -> None:
        if "attach" in command:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            name = command["attach"].encode()
            fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name, IFF_TUN | IFF_NO_PI))
            self.devices[socket.inet_aton(command["address"])] = device
        else:
            self.blocked = {
                (socket.inet_aton(source), socket.inet_aton(to))
                for source, to in command["blocked"]
            }
            self.delay = command["delay"]

    def receive(self, device: int) -> None:
        """Take all packets that a host has sent."""
        while True:
            try:
                packet = os.read(device, MAX_PACKET_BYTES)
            except (BlockingIOError, OSError):
                return
            if packet[0] >> 4 != 4 or (packet[12:16], packet[16:20]) in self.blocked:
                continue
            if self.delay or self.delayed:
                self.number += 1
                heapq.heappush(self.delayed, (time.monotonic() + self.delay, self.number, packet))
            else:
                self.deliver(packet)

    def deliver(self, packet: bytes) -> None:
        if (device := self.devices.get(packet[16:20])) is not None:
            try:
                os.write(device, packet)
            except OSError:
                return  # the link of the host is down

    def deliver_due(self) -> float | None:
        """Deliver what has been delayed for long enough; return for how many seconds the rest has to wait."""
        while self.delayed:
            wait = self.delayed[0][0] - time.monotonic()
            if wait > 0:
                return wait
            packet = heapq.heappop(self.delayed)[2]
            if (packet[12:16], packet[16:20]) not in self.blocked:
                self.deliver(packet)
        return None


def main() -> None:
    router, commands = Router(), b""
    while True:
        ready, _, _ = select.select([0, *router.devices.values()], [], [], router.deliver_due())
        for source in ready:
            if source != 0:
                router.receive(source)
                continue
            piece = os.read(0, 1 << 16)
            if not piece:
                sys.exit()  # the devices vanish with this process
            *lines, commands = (commands + piece).split(b"\n")
            for line in lines:
                router.command(json.loads(line))
                print("ok", flush=True)


if __name__ == "__main__":
    main()
