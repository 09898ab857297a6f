"""Runs a Python program as a fork of a template process, which has imported the SDK and the gateway already.

    python -I -S forked_program.py SOCKET SCRIPT|-m MODULE [ARGUMENT...]

The program gets the standard streams, folder, environment and arguments of this process. Signals are passed on to the
program, this process ends with its exit code or signal, and the template kills the program when this process is killed.
It imports as little as possible: starting it is all that a test pays instead of the imports of the program.
"""

import _signal  # type: ignore[import-not-found]  # of `signal`, without its enumerations
import _socket
import os
import sys

FORWARDED = (_signal.SIGHUP, _signal.SIGINT, _signal.SIGTERM, _signal.SIGUSR1, _signal.SIGUSR2)


def main() -> None:
    source, sink = os.pipe()
    template = _socket.socket(_socket.AF_UNIX)
    template.connect(sys.argv[1])
    arguments = [os.fsencode(argument) for argument in sys.argv[2:]]
    variables = [name + b"=" + value for name, value in os.environb.items()]
    texts = [os.getcwdb(), b"%d" % len(arguments), *arguments, *variables]  # noqa: PTH109  # pathlib takes longer
    data = b"".join(text + b"\0" for text in texts)
    data = len(data).to_bytes(4, "big") + data
    files = b"".join(file.to_bytes(4, sys.byteorder) for file in (0, 1, 2, sink))
    sent = template.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)])
    while sent < len(data):
        sent += template.send(data[sent:])
    template.close()
    os.close(sink)
    pid = int(read_line(source))
    for number in FORWARDED:
        _signal.signal(number, lambda number, _: os.kill(pid, number))
    for file in (0, 1, 2):  # the program has them: a pipe of this process must end when the program closes its end
        os.close(file)
    code = int(read_line(source))
    if code < 0:
        _signal.signal(-code, _signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def read_line(file: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(file, 1) or os._exit(1)
    return line


main()
