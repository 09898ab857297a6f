"""A fake of macOS on Linux, because no machine with macOS was at hand: `make test-as-macos`.

Python imports this module at the start of each process, if its folder is in PYTHONPATH. `sys.platform` is then that of
macOS, and the functions and constants that only Linux has are missing. The system is still Linux: paths, signals and
the behaviour of files and sockets are not those of macOS.
"""

# Modules that choose their code by `sys.platform` when they are imported, and would choose what is not here.
import ctypes.util  # noqa: F401
import fcntl
import os
import platform
import resource
import signal
import socket
import subprocess  # noqa: F401
import sys
import sysconfig
import tempfile  # noqa: F401
import types
from typing import Any

_MISSING: dict[types.ModuleType, str] = {
    fcntl: "F_ADD_SEALS F_GETPIPE_SZ F_GET_SEALS F_SETPIPE_SZ",
    os: "EFD_CLOEXEC MFD_CLOEXEC O_DIRECT O_NOATIME O_PATH copy_file_range eventfd eventfd_read eventfd_write "
    "fdatasync getrandom getresuid memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate sched_getaffinity "
    "sched_setaffinity setns setresuid splice unshare",
    resource: "prlimit",
    signal: "SIGPWR SIGRTMAX SIGRTMIN pidfd_send_signal sigtimedwait sigwaitinfo",
    socket: "AF_ALG AF_NETLINK AF_VSOCK MSG_CMSG_CLOEXEC SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED TCP_KEEPIDLE "
    "TCP_QUICKACK TCP_USER_TIMEOUT",
}


def main() -> None:
    """Change the standard library of this process."""
    sysconfig.get_config_vars()  # read from a file of this system, and then cached
    platform.uname()
    sys.platform = "darwin"
    for module, names in _MISSING.items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    proxies: Any = types.ModuleType("_scproxy")  # `urllib.request` reads the system's settings from it
    proxies._get_proxies = proxies._get_proxy_settings = dict  # noqa: SLF001
    sys.modules["_scproxy"] = proxies


main()
