"""The sandboxed process, with every module loaded that its policy asks for.

After confinement nothing can be imported any more. Attacks would fail for want of a module, and prove nothing.
`python -I armed.py [--without-landlock | --unconfined] REQUEST_JSON`. Without any wall, attacks show what they can do.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from curateevo.policy import child, confine

MODULES = (
    "asyncio", "atexit", "ctypes", "fcntl", "gc", "importlib.util", "inspect", "linecache", "marshal", "mmap",
    "multiprocessing.popen_fork", "multiprocessing.resource_tracker", "multiprocessing.shared_memory", "numpy",
    "numpy.ctypeslib", "pathlib", "pickle", "pkgutil", "platform", "polars", "pyseccomp", "resource", "runpy", "select",
    "shutil", "signal", "socket", "sqlite3", "subprocess", "tempfile", "threading", "time", "types", "urllib.request",
    "zlib", "curateevo.policy.gate",
)  # fmt: skip
BY_OTHERS = {"runpy": "pkgutil", "socket": "encodings.idna", "urllib": "http.client", "polars": "polars.datatypes"}
"""What others load when they are used."""


def load(source: str) -> None:
    for name in MODULES:
        if name.partition(".")[0] in source:
            importlib.import_module(name)
    for name, other in BY_OTHERS.items():
        if name in source:
            importlib.import_module(other)


if __name__ == "__main__":
    wall = sys.argv.pop(1) if sys.argv[1].startswith("--") else ""
    if wall == "--without-landlock":
        confine.sandlock = None
    if wall == "--unconfined":
        confine.confine_self = lambda limits, scratch, answer_fd: "none"
    load(Path(json.loads(sys.argv[1])["policy"]).read_bytes().decode(errors="replace"))
    sys.exit(child.main())
