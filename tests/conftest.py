"""Fixtures of all tests: a real S3 server, and corpora that are made once."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 30.0
DATA = Path(os.environ.get("CURATEEVO_TEST_DATA", ROOT.parent / "shared" / "data"))
ACEBENCH = DATA / "acebench" / "data_all"
GROUPS = {"cluster": {"cluster", "node"}, "training": {"train", "vllm", "slow"}}

settings.register_profile("shared", deadline=None)  # speed is a benchmark's, and machines are shared
settings.load_profile("shared")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What one of several processes (`-n`) does alone: the clusters, real training and servers, a file of the rest."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        group = next((name for name, of in GROUPS.items() if marks & of), item.location[0])
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real S3 server (versitygw on a directory); its keys are in the environment."""
    built = subprocess.run([ROOT / "tests/s3server/build.sh"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, f"the S3 server could not be built:\n{built.stderr[-3000:]}"
    folder = tmp_path_factory.mktemp("s3")
    (folder / "data" / "bucket").mkdir(parents=True)
    port = free_port()
    keys = {"ROOT_ACCESS_KEY": "test", "ROOT_SECRET_KEY": secrets.token_hex(16)}
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [built.stdout.strip(), "--port", f"127.0.0.1:{port}", "posix", str(folder / "data")],
            env={**os.environ, **keys},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    saved = {
        name: os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
    }
    os.environ |= {
        "AWS_ACCESS_KEY_ID": keys["ROOT_ACCESS_KEY"],
        "AWS_SECRET_ACCESS_KEY": keys["ROOT_SECRET_KEY"],
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        _wait_for(port, server, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=10)
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@pytest.fixture(scope="session")
def airline_runs() -> Path:
    """τ-bench's historical airline runs (MIT): data that is not part of the project."""
    path = DATA / "tau-bench" / "gpt-4o-airline.json"
    if not path.is_file():
        pytest.fail(f"{path}: not there. Put τ-bench's historical runs there, or set CURATEEVO_TEST_DATA")
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"the S3 server did not start:\n{log.read_text(errors='replace')[-2000:]}")
