"""The small ``flwr-clientapp`` that stands first on SuperExec's PATH and hands the call to the relay server.

It speaks the relay server's protocol: one packet with the call and the three standard files, then "started PID" and
"ended STATUS". Without a relay server it becomes Flower's own command.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fedloop_core.durable import write_bytes
from fedloop_core.errors import NotSetUp, SettingsInvalid

__all__ = ["COMMAND", "write_shim"]

COMMAND = "flwr-clientapp"
_LONGEST_FIRST_LINE = 250  # the kernel reads 255 bytes

# -I: no environment variables, no user folder, not this folder; -S: no site-packages, whose start costs 100 ms.
_PROGRAM = '''#!{python} -IS
"""Hands a call to fedloop's relay server; written by fedloop, do not edit."""
import json, os, select, signal, socket, sys
PEER, OWN = {socket!r}, {own!r}

def hand_over():
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        stream.connect(PEER)
        call = json.dumps({{"arguments": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}})
        socket.send_fds(stream, [call.encode()], [0, 1, 2])
        word, _, number = stream.recv(64).partition(b" ")
    except OSError:
        return None
    return (stream, int(number)) if word == b"started" else None

def wait(stream, pid):
    # A handler that is due just before a blocking call would run only after it: signals come as bytes to wait for.
    heard, told = socket.socketpair()
    told.setblocking(False)
    signal.set_wakeup_fd(told.fileno())
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(name, lambda number, frame: None)
    try:
        while heard in select.select([stream, heard], [], [])[0]:
            pass_on(heard.recv(64), pid)
        word, _, number = stream.recv(64).partition(b" ")
        if word == b"ended":
            return int(number)
    except OSError:
        pass
    try:  # the relay server has died; its child goes on
        ended = os.pidfd_open(pid)
        while heard in select.select([ended, heard], [], [])[0]:
            pass_on(heard.recv(64), pid)
    except OSError:
        pass
    return 1

def pass_on(numbers, pid):
    for number in numbers:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended, which is what comes next on the stream

started = hand_over()
if started is None:
    os.execv(OWN, [OWN, *sys.argv[1:]])
sys.exit(wait(*started))
'''


def write_shim(folder: Path, socket: Path, own: Path | None = None) -> Path:
    """Writes the command into ``folder``, executable by all, and returns its path.

    Args:
        folder: goes first on SuperExec's PATH.
        socket: where the relay server listens.
        own: Flower's own command; None takes that of this installation.

    Raises:
        NotSetUp: this installation has no such command.
        SettingsInvalid: the interpreter's path cannot stand in the first line of a program.
        StorageError: the folder cannot be written.
    """
    command = own or Path(sys.executable).parent / COMMAND
    if not command.exists():
        raise NotSetUp(f"{command} does not exist.", hint="Install fedloop[site].")
    if " " in sys.executable or len(sys.executable) > _LONGEST_FIRST_LINE:
        raise SettingsInvalid(f"a program cannot name the interpreter {sys.executable}.", hint="Install it elsewhere.")
    text = _PROGRAM.format(python=sys.executable, socket=str(socket.resolve()), own=str(command))
    path = folder / COMMAND
    write_bytes(path, text.encode(), mode=0o755)
    path.chmod(0o755)  # whatever the umask
    return path
