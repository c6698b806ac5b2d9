"""Started by a launcher in place of a rank: asks the server for the rank, and ends as the rank does.

    python -I -S client.py SOCKET SCRIPT [ARGUMENTS]

Invariant: the rank is in this process's group, gets the group's signals itself, and does not outlive this process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys


def main() -> None:
    request = {
        "arguments": sys.argv[2:],
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "group": os.getpgrp(),
    }
    # The rank has them too. It decides what they do.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(sys.argv[1])
        text = json.dumps(request).encode()
        socket.send_fds(server, [struct.pack("!I", len(text))], [0, 1, 2])
        server.sendall(text)
        for stream in (0, 1, 2):
            os.close(stream)  # whoever reads the rank's output sees its end when the rank ends
        answer = server.recv(4)
    (status,) = struct.unpack("!i", answer) if answer else (1,)
    if status < 0:
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


main()
