"""A real cluster for tests: started by up.sh, reached from inside its network namespace.

The namespace has no way in or out, so whoever talks to the API server, to S3 or to a pod has to be inside it:

- programs: `cluster.kubectl(...)`, `cluster.run(...)` and `cluster.popen(...)` run them there (nsenter);
- Python in the test itself: `with cluster.inside(): ...` moves this one thread there and back. A socket belongs for
  good to the namespace that it was made in, and so does a thread that was started there: use clients inside only.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
CACHE = Path(
    os.environ.get("CURATEEVO_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "curateevo"
).expanduser()
SERVER = "https://10.99.0.1:6443"
BUCKET = "curateevo"
START_SECONDS = 3600  # with a first build of all servers and images
CLONE_NEWNET = 0x40000000
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}


class ClusterError(Exception):
    """What the cluster's scripts or kubectl said."""


class Cluster:
    """One running cluster, in a folder and a network namespace of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubeconfig = folder / "admin.kubeconfig"
        self.server = SERVER
        self.network = Path("/run/netns") / (folder / "run/namespace").read_text().strip()
        self.binaries = folder / "run/bin"
        said = dict(line.split("=", 1) for line in (folder / "s3.env").read_text().splitlines())
        self.s3_endpoint = said["AWS_ENDPOINT_URL"]
        self.s3_keys = {name: said[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")}
        self.s3_folder = folder / "s3"
        """Where the objects lie as files, below the name of their bucket."""

    # ---- being inside

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program inside to its end. Raises ClusterError when it fails, unless `check` is false."""
        try:
            done = subprocess.run(
                self._inside(argv),
                input=input,
                env=self._environment(env),
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(str(error)) from error
        if check and done.returncode:
            said = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
            raise ClusterError(f"{' '.join(map(str, argv))}: exit {done.returncode}\n{said}")
        return done

    def popen(self, argv: Sequence[str | Path], **options: Any) -> subprocess.Popen[Any]:
        """Start a program inside, in a group of its own; the caller ends it. Its pid is that of the program itself."""
        options.setdefault("env", self._environment(None))
        return subprocess.Popen(self._inside(argv), start_new_session=True, **options)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread is inside, until the block ends."""
        here = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        there = os.open(self.network, os.O_RDONLY)
        try:
            _enter(there)
            try:
                yield
            finally:
                _enter(here)
        finally:
            os.close(here)
            os.close(there)

    def _inside(self, argv: Sequence[str | Path]) -> list[str]:
        return ["nsenter", f"--net={self.network}", *map(str, argv)]

    def _environment(self, more: Mapping[str, str] | None) -> dict[str, str]:
        return {**os.environ, "KUBECONFIG": str(self.kubeconfig), **(more or {})}

    # ---- kubectl

    def kubectl(self, *args: str | Path, input: str | None = None, timeout: float = 60) -> str:
        """What kubectl prints. Raises ClusterError when it fails."""
        return self.run([self.binaries / "kubectl", *args], input=input, timeout=timeout).stdout

    def apply(self, *objects: Mapping[str, Any], namespace: str | None = None) -> None:
        where = ["--namespace", namespace] if namespace else []
        everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "--server-side", *where, "-f", "-", input=json.dumps(everything))

    def get(self, kind: str, name: str, namespace: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "--namespace", namespace, "-o", "json"))
        return found

    def s3(self) -> Any:
        """A boto3 client; for use inside."""
        key, secret = self.s3_keys["AWS_ACCESS_KEY_ID"], self.s3_keys["AWS_SECRET_ACCESS_KEY"]
        where = {"endpoint_url": self.s3_endpoint, "region_name": "us-east-1"}
        return boto3.client("s3", aws_access_key_id=key, aws_secret_access_key=secret, **where)

    def install_crds(self) -> None:
        """Apply crds/, and wait until their objects can be listed and explained."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", ROOT / "crds")
        self.kubectl("wait", "--for=condition=Established", "-f", ROOT / "crds", "--timeout=30s")
        # For a moment after that, lists answer "storage is (re)initializing".
        self.wait(lambda: self.kubectl("get", "curationevolutions,policyversions", "-A", "-o", "json"), seconds=30)
        self.wait(lambda: self.kubectl("explain", "curationevolution"), seconds=60)

    def new_namespace(self, prefix: str = "test") -> str:
        """A namespace in which pods have to keep to Pod Security's `restricted`."""
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": RESTRICTED}})
        # Pods are refused until the controllers have made it.
        self.wait(lambda: self.kubectl("get", "serviceaccount", "default", "--namespace", name), seconds=30)
        return name

    def delete_namespace(self, name: str) -> None:
        """Without waiting: what holds it up is the next cluster's end."""
        self.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")

    def wait(self, attempt: Callable[[], Any], *, seconds: float) -> Any:
        """What `attempt()` returns, as soon as it is true and raises no ClusterError."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                if found := attempt():
                    return found
                last = f"{found!r}"
            except ClusterError as error:
                last = str(error)
            if time.monotonic() > deadline:
                raise ClusterError(f"not within {seconds:g} s: {last}")
            time.sleep(0.1)

    # ---- faults

    def component(self, what: str, name: str) -> None:
        """start, kill, stop or continue one of the cluster's servers."""
        _script("component.sh", self.folder, what, name, seconds=60)

    @contextmanager
    def without(self, name: str) -> Iterator[None]:
        """A component is dead until the block ends; it is started again after that, and the API server awaited."""
        self.component("kill", name)
        try:
            yield
        finally:
            self.component("start", name)
            self.wait(lambda: self.kubectl("get", "--raw", "/readyz", timeout=10), seconds=60)


def start(folder: Path, *, node: bool) -> Cluster:
    """Start a cluster in the folder, with CRDs; with a node, the project's images are on it. Raises ClusterError."""
    _script("up.sh", folder, seconds=START_SECONDS, env={} if node else {"CONTROL_PLANE_ONLY": "1"})
    if node:
        _script("images.sh", folder, seconds=START_SECONDS)
    cluster = Cluster(folder)
    cluster.install_crds()
    return cluster


def stop(folder: Path) -> None:
    """End the cluster in the folder, also one that crashed, and remove the folder. Raises ClusterError."""
    _script("down.sh", folder, seconds=120)
    shutil.rmtree(folder)


@contextmanager
def folder(name: str) -> Iterator[Path]:
    """A folder for a cluster of this process, on the cache's disk, so that images get in as links. It is removed at
    the end; those of processes that died are removed now, with their clusters."""
    runs = CACHE / "run"
    runs.mkdir(parents=True, exist_ok=True)
    for left in sorted(runs.iterdir()):
        pid, _, rest = left.name.partition("-")
        if not rest.startswith(f"{_start_time(int(pid))}-"):
            stop(left)
    mine = runs / f"{os.getpid()}-{_start_time(os.getpid())}-{name}"
    mine.mkdir()
    try:
        yield mine
    finally:
        stop(mine)


def _start_time(pid: int) -> str:
    """When a process started, in ticks since boot; "gone" when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "gone"


def _script(name: str, *args: str | Path, seconds: float, env: Mapping[str, str] | None = None) -> None:
    # VENV: images.sh takes the wheels that this environment was made of.
    told = {**os.environ, "VENV": sys.prefix, **(env or {})}
    try:
        subprocess.run(
            [HERE / name, *args],
            env=told,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds,
        )
    except subprocess.CalledProcessError as error:
        raise ClusterError(
            f"{name}: exit {error.returncode}\n{error.stdout[-2000:]}\n{error.stderr[-6000:]}"
        ) from error


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), "setns")
