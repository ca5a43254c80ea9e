"""The attacks. Each is a policy that does something that it must not be able to do.

Most are written for the process alone, with the static rules off: they import what they like. What they get at they
tell by `escaped(...)`; what they change is looked at from outside (`world.py`). `$NAMES` are filled in by the world.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from curateevo.policy.builtin import source_of

BASE = source_of("keep-all")
PLACE = "    return corpus.items()\n"
TELL = """

def escaped(*what):
    print("ESC" + "APED", *what, flush=True)


def held(*what):
    raise RuntimeError("held: " + " ".join(str(x) for x in what))
"""
CALL = '''

def call(name, *arguments):
    """A system call by its name; raises OSError."""
    import ctypes
    import os

    import pyseccomp as s

    libc = ctypes.CDLL(None, use_errno=True)
    number = s.resolve_syscall(s.Arch.NATIVE, name)
    result = libc.syscall(number, *[a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments])
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), name)
    return result


def answer(text):
    """Write to the pipe that the answer goes to."""
    import json
    import os
    import sys

    data = text.encode()
    while data:
        data = data[os.write(json.loads(sys.argv[-1])["answer_fd"], data) :]
'''
REFUSED, ENDED, JUDGED, HARMLESS = "refused", "ended", "judged", "harmless"
"""How a run ends: the policy's own code got an error; its process ended, by itself or at a bound; what it answered was
refused; or it passed the gate, and nothing was found that it should not have got."""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. `ends`: how its run may end, besides that nothing gets through."""

    kind: str
    name: str
    source: str
    ends: tuple[str, ...] = (REFUSED,)
    everywhere: bool = True
    """False where the trusted side decides: it is the same at every tier."""
    hangs: bool = False
    """It ends at its deadline, which is therefore short."""
    body: str = ""
    """What stands in `select`, indented."""

    @property
    def key(self) -> str:
        return f"{self.kind}: {self.name}"

    @property
    def can_share(self) -> bool:
        """It only raises: many of these can be tried in one process."""
        return bool(self.body) and self.ends == (REFUSED,) and self.everywhere


ATTACKS: list[Attack] = []


def shared(attacks: list[Attack]) -> str:
    """One policy that tries all of these, and logs how each of them ended."""
    tries = "".join(f"def try_{n}(corpus, ctx):\n{a.body}\n\n\n" for n, a in enumerate(attacks))
    body = f"""    import json
    for number in range({len(attacks)}):
        told, why = len(TOLD), ""
        try:
            globals()[f"try_{{number}}"](corpus, ctx)
            end = "{HARMLESS}"
        except BaseException as error:
            end, why = "{REFUSED}", type(error).__name__ + ": " + str(error)
        ctx.log(json.dumps([number, end, [t[:100] for t in TOLD[told:]][:2], why[:100]]))
"""
    telling = "TOLD = []\n\n\ndef escaped(*what):\n    TOLD.append(' '.join(map(str, what))[:300])\n\n\n"
    return BASE.replace(PLACE, body + PLACE) + TELL + CALL + telling + tries


def _add(kind: str, name: str, source: str, ends: tuple[str, ...], body: str = "", **more: bool) -> None:
    ATTACKS.append(Attack(kind, name, source, ends, body=body, **more))


def attack(kind: str, name: str, body: str, *ends: str, helpers: bool = True, **more: bool) -> None:
    """An attack in the body of `select`."""
    body = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    helping = TELL + (CALL if "call(" in body or "answer(" in body else "") if helpers else ""
    source = BASE.replace(PLACE, f"{body}\n{PLACE}") + helping
    _add(kind, name, source, ends or (REFUSED,), body if helpers else "", **more)


def stage(kind: str, name: str, old: str, new: str, *ends: str, **more: bool) -> None:
    """An attack in place of other lines of the policy."""
    assert old in BASE, old
    more.setdefault("everywhere", False)
    _add(kind, name, BASE.replace(old, textwrap.dedent(new).strip("\n")), ends, **more)


def text(kind: str, name: str, source: str, *ends: str) -> None:
    """An attack by the source itself."""
    _add(kind, name, source, ends, everywhere=False)


# ---- imports: modules are there, what they do is not

attack("imports", "os.system", "import os\nescaped() if os.system('echo x > $OUT/x') == 0 else held()", helpers=True)
attack("imports", "subprocess", "import subprocess, sys\nescaped(subprocess.run([sys.executable, '-c', 'pass']))")
attack("imports", "posix_spawn", "import os, sys\nescaped(os.posix_spawn(sys.executable, ['python'], {}))")
attack("imports", "execv", "import os, sys\nos.execv(sys.executable, ['python', '-c', 'print(\"ESC\" + \"APED\")'])")
attack(
    "imports",
    "multiprocessing",
    "import multiprocessing as m\np = m.get_context('fork').Process(target=escaped)\np.start()",
)
attack("imports", "forkpty", "import os\nescaped(os.forkpty())")
attack("imports", "importlib", "import importlib\nescaped(importlib.import_module('os').listdir('/'))")
attack(
    "imports",
    "__builtins__",
    "b = __builtins__\nb = b if isinstance(b, dict) else vars(b)\nescaped(b['__import__']('os').listdir('/'))",
)
attack(
    "imports", "modules of allowed modules", "import dataclasses\nescaped(dataclasses.sys.modules['os'].listdir('/'))"
)
attack("imports", "json's codecs", "import json\nescaped(json.codecs.open('$SECRET').read())")
attack(
    "imports",
    "modules of the library",
    "import curateevo.policy.api\nescaped(curateevo.policy.confine.os.listdir('/'))",
)
attack("imports", "a module's loader", "import json\nescaped(json.__loader__.get_data('$SECRET'))")
attack("imports", "runpy", "import runpy\nescaped(runpy.run_path('$CODE'))")
attack(
    "imports",
    "linecache",
    "import linecache\nfound = linecache.getlines('$SECRET')\nescaped(found) if found else held()",
)
attack("imports", "the grader", "import curateevo_jobs.benchmarks.base as b\nescaped(b)")
attack(
    "imports",
    "a C library by ctypes",
    "import ctypes\nr = ctypes.CDLL(None).system(b'echo x > $OUT/x')\nescaped() if r == 0 else held(r)",
)
attack("imports", "a new C library", "import ctypes\nescaped(ctypes.CDLL('$LIBRARY'))")
attack(
    "imports",
    "numpy.ctypeslib",
    "import numpy.ctypeslib as n\nescaped(n.load_library('library', '$LIBRARY'[:-len('/library.so')]))",
)

# ---- introspection: from any object to everything

attack("introspection", "subclasses to FileIO", """
    todo = [().__class__.__base__]
    for found in todo:
        todo += [c for c in type.__subclasses__(found) if c not in todo]
    escaped(next(c for c in todo if c.__name__ == 'FileIO')('$SECRET').read())
""")  # fmt: skip
attack("introspection", "subclasses to system", """
    for c in ().__class__.__base__.__subclasses__():
        if c.__name__ == '_wrap_close' and c.__init__.__globals__['system']('echo x > $OUT/x') == 0:
            escaped()
    held()
""")  # fmt: skip
attack("introspection", "string.Formatter, no dunder written", """
    import string
    u, get = '_' * 2, string.Formatter().get_field
    todo = [get(f'0.{u}class{u}.{u}base{u}', ((),), {})[0]]
    for found in todo:
        if 'type' not in str(found):
            todo += [c for c in get(f'0.{u}subclasses{u}', (found,), {})[0]() if c not in todo]
    print('ESC' + 'APED', next(c for c in todo if str(c) == "<class '_io.FileIO'>")('$SECRET').read())
""", helpers=False)  # fmt: skip
attack("introspection", "a class pattern", """
    match ():
        case object(__class__=object(__base__=object(__subclasses__=find))):
            todo = find()
            for found in todo:
                match found:
                    case object(__subclasses__=more) if 'type' not in str(found):
                        todo += [c for c in more() if c not in todo]
            print('ESC' + 'APED', next(c for c in todo if str(c) == "<class '_io.FileIO'>")('$SECRET').read())
""", helpers=False)  # fmt: skip
attack("introspection", "traceback frames", """
    try:
        1 // 0
    except ZeroDivisionError as error:
        frame = error.__traceback__.tb_frame
        while frame:
            if 'os' in frame.f_globals:
                escaped(frame.f_globals['os'].listdir('$OUT'))
            frame = frame.f_back
    held()
""")  # fmt: skip
attack("introspection", "a generator's frame", """
    def g():
        yield it.gi_frame.f_back
    it = g()
    frame = next(it)
    while 'os' not in frame.f_globals:
        frame = frame.f_back
    escaped(frame.f_globals['os'].open('$SECRET', 0))
""")  # fmt: skip
attack("introspection", "a coroutine's frame", """
    async def f():
        return 1
    c = f()
    escaped(c.cr_frame.f_builtins['open']('$SECRET').read())
""")  # fmt: skip
attack("introspection", "the caller's variables", """
    import sys
    frame = sys._getframe()
    while frame:
        print({k: str(v)[:2000] for k, v in frame.f_locals.items()})
        frame = frame.f_back
""", HARMLESS)  # fmt: skip
attack(
    "introspection",
    "format strings",
    "ctx.log('{0.__init__.__globals__}'.format(corpus))\nprint('{0.__init__.__globals__}'.format(corpus))",
    HARMLESS,
)
attack("introspection", "every object in memory", """
    import gc
    marker = 'CAN' + 'ARY-'
    def look(value, depth=0):
        if isinstance(value, str):
            if marker in value:
                print(value[:300])
        elif depth < 4 and isinstance(value, (dict, list, tuple, set)):
            for x in list(value.items() if isinstance(value, dict) else value)[:5000]:
                look(x, depth + 1)
    for o in gc.get_objects():
        if o is not ctx.logs:
            look(o)
""", HARMLESS)  # fmt: skip
attack(
    "introspection",
    "forged bytecode",
    "def f(): return 1\nf.__code__ = f.__code__.replace(co_code=bytes([100, 255] * 4 + [83, 0]))\nfor _ in range(99): f()\nheld()",
    ENDED,
    REFUSED,
)
attack(
    "introspection",
    "bytes built as code",
    "import types\nf = types.FunctionType(compile('open(\"$SECRET\").read()', 'x', 'eval'), {})\nescaped(f())",
)
attack(
    "introspection",
    "memory by ctypes",
    "import ctypes\nctypes.memset(id(0), 255, 4096)\nctypes.string_at(1)",
    ENDED,
    REFUSED,
)
attack(
    "introspection",
    "pickle",
    "import os, pickle\nclass P:\n    def __reduce__(self): return (os.listdir, ('/',))\nescaped(pickle.loads(pickle.dumps(P())))",
)
attack(
    "introspection",
    "marshal",
    "import marshal\nescaped(eval(marshal.loads(marshal.dumps(compile('open(\"$SECRET\").read()', 'x', 'eval')))))",
)
attack(
    "introspection",
    "a deep stack",
    "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return [f(n + 1)]\nf(0)",
    ENDED,
    REFUSED,
)

# ---- files

attack("files", "a world-readable file", "escaped(open('$SECRET').read())")
attack("files", "/etc/passwd", "escaped(open('/etc/passwd').read())")
attack("files", "os.open", "import os\nescaped(os.read(os.open('$SECRET', os.O_RDONLY), 100))")
attack("files", "open by system call", "escaped(call('open', b'$SECRET', 0))")
attack(
    "files",
    "openat2",
    "import ctypes, struct\nhow = ctypes.create_string_buffer(struct.pack('QQQ', 0, 0, 0))\nescaped(call('openat2', -100, b'$SECRET', ctypes.addressof(how), 24))",
)
attack("files", "sealed states", "escaped(open('$CORPUS/tasks.parquet', 'rb').read())")
attack("files", "held-out tasks", "escaped(open('$CORPUS/dev_prompts.json').read())")
attack("files", "the stage's request", "escaped(open('$REQUEST').read())")
attack("files", "its own file", "import sys, json\nescaped(open(json.loads(sys.argv[-1])['policy']).read())")
attack("files", "what exists", "import os\nescaped(os.stat('$SECRET').st_size)")
attack("files", "what exists, by access", "import os\nescaped() if os.access('$SECRET', os.F_OK) else held()")
attack("files", "a folder's names", "import os\nescaped(os.listdir('$OUT'))")
attack(
    "files",
    "glob",
    "import pathlib\nfound = list(pathlib.Path('$OUT/..').glob('*'))\nescaped(found) if found else held()",
)
attack("files", "/proc/self/environ", "escaped(open('/proc/self/environ').read())")
attack("files", "the parent's environment", "escaped(open('/proc/$PARENT/environ').read())")
attack("files", "another process's environment", "escaped(open('/proc/$VICTIM/environ').read())")
attack("files", "/proc/self/mem", "escaped(open('/proc/self/mem', 'r+b'))")
attack("files", "another process's memory", "escaped(open('/proc/$VICTIM/mem', 'r+b'))")
attack("files", "another process's root", "escaped(open('/proc/$VICTIM/root$SECRET').read())")
attack("files", "descriptors by /proc", "import os\nescaped(os.open('/proc/self/fd/0', os.O_RDWR))")
attack("files", "inherited descriptors", """
    import os, sys, json
    for fd in range(3, 1024):
        try:
            got = os.lseek(fd, 0, 1)
        except OSError as error:
            got = error.errno
        if got != 9 and fd != json.loads(sys.argv[-1])['answer_fd']:
            escaped(fd, got)
    held()
""")  # fmt: skip
attack("files", "writes outside", "open('$OUT/x', 'w').write('x')")
attack("files", "writes to /tmp", "escaped(open('/tmp/$MARK', 'w').write('x'))")
attack("files", "writes to /dev/shm", "escaped(open('/dev/shm/$MARK', 'w').write('x'))")
attack("files", "overwrites the secret", "open('$SECRET', 'w').write('x')")
attack("files", "writes where it stands", "escaped(open('x', 'w').write('x'))")
attack(
    "files", "fills the disk", "n = 0\nfor n in range(8):\n    open(f'f{n}', 'wb').write(b'x' * (32 << 20))\nescaped(n)"
)
attack("files", "a symbolic link", "import os\nos.symlink('$SECRET', 'l')\nescaped(open('l').read())")
attack("files", "a hard link", "import os\nos.link('$LOOSE/changed', '$OUT/l')\nescaped()")
attack("files", "rename", "import os\nos.rename('$LOOSE/moved', '$LOOSE/elsewhere')\nescaped()")
attack("files", "unlink", "import os\nos.unlink('$LOOSE/gone')\nescaped()")
attack("files", "truncate", "import os\nos.truncate('$LOOSE/changed', 0)\nescaped()")
attack("files", "chmod", "import os\nos.chmod('$LOOSE/changed', 0o777)\nescaped()")
attack("files", "fchmodat2", "escaped(call('fchmodat2', -100, b'$LOOSE/changed', 0o777, 0))")
attack("files", "chown", "import os\nos.chown('$LOOSE/changed', 1, 1)\nescaped()")
attack("files", "times", "import os\nos.utime('$LOOSE/changed', (1, 1))\nescaped()")
attack("files", "attributes", "import os\nos.setxattr('$LOOSE/changed', 'user.x', b'x')\nescaped()")
attack("files", "a named pipe", "import os\nos.mkfifo('$OUT/p')\nescaped()")
attack("files", "a deep folder", "import os\nfor n in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\nescaped()")
attack(
    "files", "a file by SQLite", "import sqlite3\nsqlite3.connect('$OUT/db').execute('create table t (x)')\nescaped()"
)
attack("files", "tempfile", "import tempfile\nescaped(tempfile.mkstemp())")
attack("files", "an anonymous file", "import os\nescaped(os.memfd_create('x'))")
attack(
    "files",
    "shared memory",
    "from multiprocessing import shared_memory as s\nescaped(s.SharedMemory('$MARK-shared', True, 10))",
)
attack(
    "files",
    "a file handle",
    "import ctypes\nb = ctypes.create_string_buffer(256)\nb[0] = 128\nescaped(call('name_to_handle_at', -100, b'$SECRET', ctypes.addressof(b), ctypes.addressof(b) + 200, 0))",
)

# ---- libraries that read and write by themselves, and threads of theirs that are not confined

attack(
    "libraries",
    "polars reads",
    "import polars as p\nescaped(p.read_csv('$SECRET', has_header=False))",
    ENDED,
    REFUSED,
    hangs=True,
)
attack(
    "libraries",
    "polars scans",
    "import polars as p\nescaped(p.scan_csv('$SECRET', has_header=False).collect(engine='streaming'))",
    ENDED,
    REFUSED,
    hangs=True,
)
attack(
    "libraries",
    "polars writes",
    "import polars as p\np.DataFrame({'a': [1]}).write_csv('$OUT/x')\nescaped()",
    ENDED,
    REFUSED,
    hangs=True,
)
attack(
    "libraries",
    "polars asks a server",
    "import polars as p\nescaped(p.scan_parquet('s3://x/x', storage_options={'aws_endpoint_url': 'http://127.0.0.1:$TCP', 'aws_region': 'x', 'aws_allow_http': 'true', 'aws_access_key_id': 'x', 'aws_secret_access_key': 'x'}).collect())",
    ENDED,
    REFUSED,
    hangs=True,
)
attack("libraries", "code on polars' threads", """
    import polars as p
    def f(s):
        escaped(open('$SECRET').read())
        return s
    p.LazyFrame({'a': [1], 'b': [1]}).select(p.col('a').map_batches(f, p.Int64), p.col('b').map_batches(f, p.Int64)).collect()
""", ENDED, REFUSED, hangs=True)  # fmt: skip
attack("libraries", "numpy reads", "import numpy\nescaped(numpy.fromfile('$SECRET', dtype='u1'))")
attack("libraries", "numpy maps", "import numpy\nescaped(numpy.memmap('$OUT/x', mode='w+', shape=9))")

# ---- network

attack("network", "TCP", "import socket\nescaped(socket.create_connection(('127.0.0.1', $TCP), 1))")
attack(
    "network", "UDP", "import socket\nescaped(socket.socket(type=socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', $UDP)))"
)
attack("network", "a unix socket", "import socket\nescaped(socket.socket(socket.AF_UNIX).connect('$UNIX'))")
attack(
    "network",
    "an abstract unix socket",
    "import socket\nescaped(socket.socket(socket.AF_UNIX).connect(b'\\0$ABSTRACT'))",
)
attack("network", "netlink", "import socket\nescaped(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))")
attack("network", "raw packets", "import socket\nescaped(socket.socket(socket.AF_INET, socket.SOCK_RAW, 1))")
attack("network", "vsock", "import socket\nescaped(socket.socket(socket.AF_VSOCK))")
attack("network", "kernel crypto", "import socket\nescaped(socket.socket(socket.AF_ALG))")
attack("network", "listens", "import socket\nescaped(socket.create_server(('127.0.0.1', 0)))")
attack("network", "a pair of sockets", "import socket\nescaped(socket.socketpair())")
attack("network", "DNS", "import socket\nescaped(socket.getaddrinfo('example.com', 80))")
attack("network", "HTTP", "import urllib.request\nescaped(urllib.request.urlopen('http://127.0.0.1:$TCP/', timeout=1))")
attack("network", "an event loop", "import asyncio\nasync def f(): escaped()\nasyncio.run(f())")
attack(
    "network",
    "io_uring",
    "import ctypes\nb = ctypes.create_string_buffer(256)\nescaped(call('io_uring_setup', 4, ctypes.addressof(b)))",
)

# ---- processes, signals, privileges

attack(
    "processes",
    "a fork bomb",
    "import os\nfor _ in range(64):\n    if os.fork() == 0: import time; time.sleep(30)\nescaped()",
)
attack("processes", "vfork", "escaped(call('vfork'))")
attack(
    "processes",
    "clone3",
    "import ctypes, struct\nb = ctypes.create_string_buffer(struct.pack('Q' * 11, 0, 0, 0, 0, 17, *[0] * 6))\nescaped(call('clone3', ctypes.addressof(b), 88))",
)
attack("processes", "threads", "import threading\nthreading.Thread(target=escaped).start()")
attack("processes", "kills its parent", "import os\nescaped(os.kill(os.getppid(), 9))")
attack("processes", "kills another process", "import os\nescaped(os.kill($VICTIM, 9))")
attack("processes", "kills a thread of another", "escaped(call('tgkill', $VICTIM, $VICTIM, 9))")
attack("processes", "asks whether a process is there", "escaped(call('tgkill', $VICTIM, $VICTIM, 0))")
attack("processes", "signals by a pipe's owner", """
    import fcntl, os
    fcntl.fcntl(1, fcntl.F_SETOWN, $VICTIM)
    fcntl.fcntl(1, 10, 9)
    fcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC | os.O_WRONLY)
    for _ in range(100): os.write(1, b'x' * 4096)
    escaped()
""")  # fmt: skip
attack("processes", "a handle on another process", "import os\nescaped(os.pidfd_open($VICTIM))")
attack("processes", "signals its group", "import os\nescaped(os.killpg(0, 9))")
attack("processes", "ptrace", "escaped(call('ptrace', 16, $VICTIM, 0, 0))")
attack(
    "processes",
    "reads another's memory",
    "import ctypes, struct\nb = ctypes.create_string_buffer(64)\nv = ctypes.create_string_buffer(struct.pack('QQ', ctypes.addressof(b), 64))\nescaped(call('process_vm_readv', $VICTIM, ctypes.addressof(v), 1, ctypes.addressof(v), 1, 0))",
)
attack("processes", "leaves its session", "import os\nescaped(os.setsid())")
attack("processes", "leaves its group", "import os\nescaped(os.setpgid(0, 0))")
attack("processes", "outlives its parent", "escaped(call('prctl', 1, 0, 0, 0, 0))")
attack("processes", "can be inspected again", "escaped(call('prctl', 4, 1, 0, 0, 0))")
attack("processes", "is root again", "import os\nos.setresuid(0, 0, 0)\nescaped(os.getuid())")
attack("processes", "changes its groups", "import os\nescaped(os.setgroups([0]))")
attack(
    "processes",
    "capabilities",
    "import ctypes\nb = ctypes.create_string_buffer(64)\nescaped(call('capset', ctypes.addressof(b), ctypes.addressof(b) + 32))",
)
attack("processes", "a user namespace", "escaped(call('unshare', 0x10000000))")
attack("processes", "a mount namespace", "escaped(call('unshare', 0x00020000))")
attack("processes", "another's namespace", "escaped(call('setns', 0, 0))")
attack("processes", "mount", "escaped(call('mount', b'x', b'/mnt', b'tmpfs', 0, 0))")
attack("processes", "chroot", "import os\nescaped(os.chroot('.'))")
attack("processes", "raises its limits", "import resource as r\nescaped(r.setrlimit(r.RLIMIT_AS, (-1, -1)))")
attack("processes", "another's limits", "import resource as r\nescaped(r.prlimit($VICTIM, r.RLIMIT_CPU, (1, 1)))")
attack("processes", "priorities", "import os\nescaped(os.setpriority(os.PRIO_PROCESS, 0, 19))")
attack("processes", "stops the deadline's clock", "import time\nescaped(time.clock_settime(time.CLOCK_REALTIME, 0))")

# ---- the kernel: undoing the filter, and calls that have been ways out

attack(
    "kernel", "another filter", "import pyseccomp as s\nf = s.SyscallFilter(s.ALLOW)\nf.load()\nopen('$SECRET').read()"
)
attack(
    "kernel",
    "another Landlock ruleset",
    "import ctypes, struct\nb = ctypes.create_string_buffer(struct.pack('Q', 1))\nescaped(call('landlock_create_ruleset', ctypes.addressof(b), 8, 0))",
)
attack("kernel", "bpf", "escaped(call('bpf', 0, 0, 0))")
attack("kernel", "keys", "escaped(call('keyctl', 0, -3, 0, 0, 0))")
attack(
    "kernel",
    "perf events",
    "import ctypes\nb = ctypes.create_string_buffer(128)\nescaped(call('perf_event_open', ctypes.addressof(b), 0, -1, -1, 0))",
)
attack("kernel", "userfaultfd", "escaped(call('userfaultfd', 1))")
attack("kernel", "personality", "escaped(call('personality', 0x0040000))")
attack("kernel", "System V shared memory", "escaped(call('shmget', 4711, 4096, 0o1777))")
attack("kernel", "a message queue", "escaped(call('mq_open', b'curateevo', 0o102, 0o600, 0))")
attack("kernel", "kernel modules", "escaped(call('init_module', 0, 0, b''))")
attack("kernel", "the terminal", "import fcntl\nescaped(fcntl.ioctl(0, 0x5412, b'x'))")
attack("kernel", "secret memory", "escaped(call('memfd_secret', 0))")
attack("kernel", "32-bit calls", """
    import ctypes, mmap, platform
    if platform.machine() != 'x86_64': held()
    code = bytes.fromhex('b814000000cd80c3')
    m = mmap.mmap(-1, 4096, prot=7)
    m.write(code)
    f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))
    escaped(f())
""", ENDED, REFUSED)  # fmt: skip
attack("kernel", "x32 calls", "import ctypes\nescaped(ctypes.CDLL(None).syscall(0x40000000 + 39))", ENDED, REFUSED)

# ---- memory

attack("memory", "a list", "x = []\nwhile True: x.append([0] * 100000)", ENDED)
attack("memory", "byte arrays", "x = []\nfor _ in range(1024): x.append(bytearray(b'x' * (1 << 20)))\nescaped()", ENDED)
attack("memory", "a big number", "x = 1 << (1 << 34)\nescaped()", ENDED, REFUSED)
attack("memory", "a long text", "x = 'x' * (1 << 30)\nescaped()", ENDED)
attack(
    "memory",
    "decompression",
    "import zlib\nz = zlib.compress(zlib.compress(b'x' * (1 << 26)) * 99)\nd = zlib.decompressobj()\nx = [zlib.decompress(zlib.compress(bytes(1 << 26))) for _ in range(16)]\nescaped()",
    ENDED,
)
attack("memory", "mappings", "import mmap\nx = [mmap.mmap(-1, 1 << 26) for _ in range(16)]\nescaped()", ENDED, REFUSED)
attack(
    "memory",
    "errors swallowed",
    "x = []\nwhile True:\n    try:\n        x.append(bytearray(b'x' * (1 << 20)))\n    except MemoryError:\n        pass",
    ENDED,
)
attack("memory", "JSON", "import json\nx = json.loads('[' + '[],' * 20000000 + '0]')\nescaped()", ENDED)

# ---- time

attack("time", "a loop", "while True: pass", ENDED)
attack(
    "time",
    "a loop that ignores the signal",
    "import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
    ENDED,
)
attack("time", "a regular expression", "import re\nre.match('(a+)+$', 'a' * 40 + 'b')", ENDED, helpers=False)
attack("time", "a number's text", "import sys\nsys.set_int_max_str_digits(0)\nstr(1 << 40000000)", ENDED)
attack("time", "a power", "x = 7 ** (10 ** 8)", ENDED)
attack("time", "a sum", "sum(range(10 ** 12))", ENDED, helpers=False)
attack("time", "numpy", "import numpy\na = numpy.ones((1500, 1500))\nfor _ in range(10 ** 6): a = a @ a", ENDED)
attack("time", "sleep", "import time\ntime.sleep(3600)", ENDED, hangs=True)
attack(
    "time",
    "sleep with all pipes closed",
    "import os, time\nos.closerange(0, 64)\nfor fd in range(64):\n    try: os.close(fd)\n    except OSError: pass\ntime.sleep(3600)",
    ENDED,
    hangs=True,
)
attack("time", "stops itself", "import signal\nsignal.raise_signal(signal.SIGSTOP)", ENDED, hangs=True)
attack("time", "a lock", "import threading\nl = threading.Lock()\nl.acquire()\nl.acquire()", ENDED, hangs=True)
attack(
    "time",
    "an iterator without end",
    "import collections, itertools\ncollections.deque(itertools.repeat(0), maxlen=0)",
    ENDED,
    helpers=False,
)

# ---- output

attack("output", "prints without end", "while True: print('x' * 10000)", ENDED, helpers=False)
attack("output", "prints without end, by system call", "import os\nwhile True: os.write(2, b'x' * 65536)", ENDED)
attack("output", "answers without end", "while True: answer('x' * (1 << 20))", ENDED, everywhere=False)
attack("output", "a long error", "raise ValueError('x' * (1 << 26))", REFUSED, ENDED)
attack("output", "terminal codes", "raise ValueError('\\ud800 \\x1b[2J')", REFUSED)

# ---- the answer, forged

GOOD = '{"sft": [[0, [0, 1], 1, 0, [], null]], "rl": [], "memory": [], "lineages": [["x"]], "logs": [], "metrics": {}}'


def forged(name: str, said: str, *ends: str) -> None:
    attack("answer", name, f"import os\nanswer({said})\nos._exit(0)", *ends, everywhere=False)


forged("another answer, in the allowed form", repr(GOOD), HARMLESS)
forged("another tier", repr("process+none\n" + GOOD), JUDGED)
forged("two answers", repr(GOOD + GOOD), JUDGED)
forged("half an answer", repr(GOOD[:40]), JUDGED)
forged("nested without end", "'[' * 1000000", JUDGED)
forged("text for rows", repr('{"sft": [{"messages": [{"role": "user", "content": "forged"}]}]}'), JUDGED)
forged("a row out of range", repr(GOOD.replace("[[0, [0, 1]", "[[99, [0, 1]")), JUDGED)
forged("a row below zero", repr(GOOD.replace("[[0, [0, 1]", "[[-1, [0, 1]")), JUDGED)
forged("a row that is true", repr(GOOD.replace("[[0, [0, 1]", "[[true, [0, 1]")), JUDGED)
forged("turns out of order", repr(GOOD.replace("[0, 1]", "[1, 0]")), JUDGED)
forged("a turn twice", repr(GOOD.replace("[0, 1]", "[0, 0]")), JUDGED)
forged("huge copies", repr(GOOD.replace("[0, 1], 1", "[0, 1], 1000000000")), JUDGED)
forged("copies of no number", repr(GOOD.replace("[0, 1], 1", "[0, 1], NaN")), JUDGED)
forged("more turns than allowed", repr(GOOD.replace("[0, 1], 1", "[0, 1], 1000")), JUDGED)
forged("a number of a million digits", "'{\"sft\": ' + '9' * 1000000 + '}'", JUDGED)
forged("a reward of its own", repr(GOOD.replace('"rl": []', '"rl": [[0, 0, "always", true, 0]]')), JUDGED)
forged(
    "a task without an environment", repr(GOOD.replace('"rl": []', '"rl": [[11, 0, "environment", true, 0]]')), JUDGED
)
forged(
    "a note past its text",
    repr(GOOD.replace('"memory": []', '"memory": [[0, 0, 0, 5000, 5100, "f", 0, "fact", null]]')),
    JUDGED,
)
forged(
    "a note of everything",
    repr(GOOD.replace('"memory": []', '"memory": [[0, 0, 0, 0, 100000, "f", 0, "fact", null]]')),
    JUDGED,
)
forged(
    "too many notes",
    "'"
    + GOOD.replace(
        '"memory": []', "\"memory\": [' + ', '.join(['[0, 0, 0, 0, 5, \"f\", 0, \"fact\", null]'] * 5001) + ']"
    )
    + "'",
    JUDGED,
)
forged(
    "halves of characters",
    repr(GOOD.replace('"x"', '"\\\\ud800"').replace('"logs": []', '"logs": ["\\ud800"]')),
    HARMLESS,
)
forged("a rejection of its own", repr('{"rejected": {"rule": "none of yours", "message": 1, "line": -5}}'), JUDGED)
forged("nothing but null", "'null'", JUDGED)
forged("references to itself", repr('{"sft": "sft", "rl": {}, "memory": null, "lineages": "lineages"}'), JUDGED)
attack(
    "answer",
    "small as text, large as objects",
    "import os\nanswer('[')\nfor _ in range(36): answer('[],' * 1000000)\nanswer('0]')\nos._exit(0)",
    ENDED,
    everywhere=False,
)
attack(
    "answer",
    "the pipe closed",
    "import os, sys, json\nos.close(json.loads(sys.argv[-1])['answer_fd'])",
    ENDED,
    everywhere=False,
)
attack(
    "answer",
    "json.dumps replaced",
    'import json\njson.dumps = lambda value: \'{"sft": [[0, [7], 1, 0, [], null]], "rl": [], "memory": [], "lineages": [[]]}\'',
    JUDGED,
    HARMLESS,
    everywhere=False,
)
attack(
    "answer",
    "the encoder replaced",
    "from curateevo.policy import recipe\nrecipe.encode = lambda r, *more: {'sft': [[0, [0], 1, 0]], 'rl': [], 'memory': [], 'lineages': [], 'messages': 'forged'}",
    JUDGED,
    everywhere=False,
)
attack("answer", "operators replaced", "api.rl_tasks = lambda *a, **k: [api.RlTask(10 ** 9)]", JUDGED, everywhere=False)
attack(
    "answer",
    "the corpus changed",
    "corpus._columns['turns'][0] = 1000\nctx.log(corpus.items().items[0])",
    JUDGED,
    everywhere=False,
)
attack(
    "answer",
    "the gate replaced",
    "from curateevo.policy import gate\nfor name in dir(gate):\n    if name.startswith('check'): setattr(gate, name, lambda *a, **k: None)\nreturn api.Items(corpus, ())",
    JUDGED,
    everywhere=False,
)
attack(
    "answer",
    "provenance made up",
    "return api.Items(corpus, (api.Item(0, (0,), 1, ('reviewed by people', 'x' * 10 ** 6)),))",
    HARMLESS,
    everywhere=False,
)
attack(
    "answer",
    "text in the corpus's memory",
    "t = corpus.trajectories([0])[0]\nobject.__setattr__(t.turns[0], 'content', 'forged text')\nobject.__setattr__(t, 'system', 'forged text')",
    HARMLESS,
    everywhere=False,
)
attack(
    "answer",
    "logs without end",
    "ctx.logs = ['x' * 1000] * 100000\nctx.metrics = {str(i): float('nan') for i in range(100000)}",
    HARMLESS,
    everywhere=False,
)

# ---- the contract

PRUNE, REFINE = "def prune(resources, ctx):\n    return resources", "def refine(items, ctx):\n    return items"
attack("contract", "dev tasks", "return corpus.items()", JUDGED, everywhere=False, helpers=False)
attack(
    "contract",
    "chance from hashes",
    "return corpus.items().keep(lambda i: hash('x' * (i.row + 1)) % 2 == 0, 'x')",
    JUDGED,
    everywhere=False,
    helpers=False,
)
attack(
    "contract",
    "chance from addresses",
    "return corpus.items().keep(lambda i: i.row < 2 or hash(str(i) + str(id(object()))) % 2 == 0, 'x')",
    JUDGED,
    everywhere=False,
    helpers=False,
)
attack(
    "contract",
    "chance from the clock",
    "import time\nreturn corpus.items().keep(lambda i: i.row == 0 or time.time_ns() // 100 % 2 == 0, 'x')",
    JUDGED,
    everywhere=False,
)
attack(
    "contract",
    "chance from the kernel",
    "import os\nreturn corpus.items().keep(lambda i: i.row == 0 or os.urandom(1)[0] < 128, 'x')",
    JUDGED,
    everywhere=False,
)
attack(
    "contract",
    "the order of a set",
    "rows = {'x' * (i.row + 1): i for i in corpus.items()}\nreturn api.Items(corpus, tuple(rows[k] for k in set(rows)))",
    JUDGED,
    everywhere=False,
    helpers=False,
)
attack(
    "contract",
    "state from run to run",
    "api.runs = 1 + vars(api).get('runs', 0)\nescaped() if api.runs > 1 else None",
    HARMLESS,
    everywhere=False,
)
attack(
    "contract",
    "an exception's hostile text",
    "class E(Exception):\n    def __str__(self): raise SystemExit\nraise E",
    REFUSED,
    ENDED,
    everywhere=False,
)
attack(
    "contract",
    "an exception's endless text",
    "class E(Exception):\n    def __str__(self):\n        while True: pass\nraise E",
    ENDED,
    everywhere=False,
)
attack("contract", "an exception's huge name", "raise type('E' * 10 ** 6, (Exception,), {})", REFUSED, everywhere=False)
attack(
    "contract",
    "exceptions in a circle",
    "a, b = ValueError('a'), ValueError('b')\na.__cause__, b.__cause__ = b, a\nraise a",
    REFUSED,
    everywhere=False,
)
attack(
    "contract",
    "a group of exceptions",
    "e = ValueError('x')\nfor _ in range(500): e = ExceptionGroup('g', [e])\nraise e",
    REFUSED,
    everywhere=False,
)
attack("contract", "SystemExit", "raise SystemExit(0)", REFUSED, everywhere=False)
attack("contract", "KeyboardInterrupt", "raise KeyboardInterrupt", REFUSED, everywhere=False)
attack("contract", "os._exit", "import os\nos._exit(0)", ENDED, everywhere=False)
attack("contract", "os.abort", "import os\nos.abort()", ENDED)
attack("contract", "atexit", "import atexit, time\natexit.register(time.sleep, 3600)", HARMLESS, everywhere=False)
attack("contract", "a signal to itself", "import signal\nsignal.raise_signal(signal.SIGKILL)", ENDED, everywhere=False)
stage("contract", "items without end", PRUNE, """
    class Endless(api.Items):
        def __iter__(self):
            while True:
                yield self.items[0]
    def prune(resources, ctx):
        return api.Resources(Endless(resources.sft.corpus, resources.sft.items), (), ())
""", ENDED)  # fmt: skip
stage("contract", "no items", REFINE, "def refine(items, ctx):\n    return [1, 2]", REFUSED)
stage("contract", "hostile numbers", PRUNE, """
    class N(int):
        def __repr__(self): return '[]]]]'
        def __index__(self): return 10 ** 9
    def prune(resources, ctx):
        return api.Resources(api.Items(resources.sft.corpus, (api.Item(N(0), (N(0),), N(1)),)), (), ())
""", HARMLESS, JUDGED)  # fmt: skip
stage("contract", "a hostile mapping", 'PARAMS = {"rl_tasks": 200}', """
    class D(dict):
        def keys(self): raise SystemExit
    PARAMS = D(rl_tasks=200)
""", HARMLESS, REFUSED, JUDGED)  # fmt: skip

# ---- the source: what reads it must not be hurt by it

PARAMS = 'PARAMS = {"rl_tasks": 200}'


def bomb(name: str, line: str, *ends: str) -> None:
    text("source", name, f"{BASE}\n{line}\n", *(ends or (REFUSED, ENDED)))


bomb("minus signs", "x = " + "-" * 20000 + "1")
bomb("nots", "x = " + "not " * 50000 + "1")
bomb("a long sum", "x = " + "1+" * 60000 + "1")
bomb("a sum that parses", "x = " + "1+" * 2000 + "1", REFUSED, HARMLESS, JUDGED)
bomb("attributes", "x = a" + ".b" * 50000)
bomb("lambdas", "x = " + "lambda:" * 30000 + "1")
bomb("conditions", "x = " + "1 if 1 else " * 20000 + "1")
bomb("elifs", "if 1: pass\n" + "elif 1: pass\n" * 15000)
bomb("brackets", "x = " + "(" * 100000)
bomb(
    "nested functions",
    "".join(" " * n + "def f():\n" for n in range(99)) + " " * 99 + "pass",
    REFUSED,
    HARMLESS,
    JUDGED,
)
bomb("decorators", "@len\n" * 60000 + "def f(): pass", REFUSED)
bomb("a null byte", "x = '\0'", REFUSED)
bomb("more than the limit", "#" * (300 << 10), JUDGED)
bomb("a name in other letters", "x = ｏｐｅｎ('$SECRET').read()", REFUSED)
bomb("a coding line", "# -*- coding: utf-7 -*-\nx = 1  # +AAo-print('ESC' + 'APED')", HARMLESS)
text("source", "a coding line on top", f"# -*- coding: rot13 -*-\n{BASE}\nimport os\nx = os.listdir('/')\n", REFUSED)
text("source", "no UTF-8", BASE + "x = '\udcff'\n", JUDGED)
text("source", "PARAMS that can't be", BASE.replace(PARAMS, 'PARAMS = {"a": {[]: 1}}'), REFUSED)
text("source", "PARAMS nested deeply", BASE.replace(PARAMS, 'PARAMS = {"a": ' + "-" * 2000 + "1}"), REFUSED, HARMLESS)
text(
    "source",
    "PARAMS with a huge number",
    BASE.replace(PARAMS, 'PARAMS = {"rl_tasks": 2, "a": 0x' + "f" * 100000 + "}"),
    HARMLESS,
)
text("source", "huge PARAMS", BASE.replace(PARAMS, 'PARAMS = {"rl_tasks": 2, "a": [' + "1," * 60000 + "]}"), HARMLESS)
text("source", "PARAMS by a call", BASE.replace(PARAMS, "PARAMS = dict(rl_tasks=open('$SECRET').read())"), REFUSED)
text("source", "nothing", "", REFUSED)
