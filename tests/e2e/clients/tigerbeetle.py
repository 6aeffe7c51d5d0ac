# SPDX-License-Identifier: MIT OR Apache-2.0
"""TigerBeetle's client up to its first message: it makes its ring, connects to what it takes for a server, and sends.

usage: python3 tigerbeetle.py
"""

import os
import socket
import threading

import tigerbeetle

MESSAGE = 512  # bytes: what the client sends first


def serve(listener):
    peer, _ = listener.accept()
    received = 0
    while received < MESSAGE:
        received += len(peer.recv(4096))
    print("the client sent", received, "bytes", flush=True)
    os._exit(0)  # the client waits for an answer, and nobody is there to give one


listener = socket.create_server(("127.0.0.1", 0))
threading.Thread(target=serve, args=(listener,)).start()
address = f"127.0.0.1:{listener.getsockname()[1]}"
client = tigerbeetle.ClientSync(cluster_id=0, replica_addresses=address)
client.lookup_accounts([1])
