"""S3 as the store, by conditional writes: `If-None-Match: *` creates once, `If-Match` swaps."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from curateevo.api.errors import Conflict, Denied, StoreUnavailable
from curateevo.api.stage import FileRef
from curateevo.store.local import PARTIAL
from curateevo.store.protocol import Tagged
from curateevo.store.verify import missing, put_in_place, sha256_of, verified

MULTIPART_BYTES = 64 << 20
SINGLE_PUT_BYTES = 1 << 30
MISSING = {"NoSuchKey", "404", "NotFound"}
LOST = {"PreconditionFailed", "412", "ConditionalRequestConflict", "409"}
DENIED = {"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "NoSuchBucket",
          "QuotaExceeded", "XMinioStorageFull"}  # fmt: skip
DIGEST = "curateevo-sha256"
KEYS = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
    "AWS_REGION": "region_name",
}


class S3Store:
    """Objects below `s3://bucket/prefix`.

    `keys` are variables as in AWS's environment (AWS_ACCESS_KEY_ID, ...); None: boto3's own chain of credentials.
    """

    def __init__(
        self, bucket: str, prefix: str, endpoint: str | None = None, keys: Mapping[str, str] | None = None
    ) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.endpoint = endpoint
        config = Config(
            retries={"mode": "standard", "max_attempts": 4},
            connect_timeout=5,
            read_timeout=60,
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
        session = boto3.session.Session(**{option: keys.get(name) for name, option in KEYS.items()} if keys else {})
        self.client: Any = session.client("s3", endpoint_url=endpoint, config=config)

    def put(self, key: str, source: bytes | Path) -> FileRef:
        digest = hashlib.sha256(source).hexdigest() if isinstance(source, bytes) else sha256_of(source)
        size = len(source) if isinstance(source, bytes) else source.stat().st_size
        ref = FileRef(key=key, digest=f"sha256:{digest}", size_bytes=size)
        if not self._create(key, source, size, digest) and not self._holds(ref):
            raise Conflict(f"{key}: the store holds other bytes under this key", "objects are immutable")
        return ref

    def get(self, key: str) -> bytes | None:
        tagged = self.read_tagged(key)
        return tagged.data if tagged else None

    def read(self, ref: FileRef) -> bytes:
        return verified(self.get(ref.key), ref)

    def fetch(self, ref: FileRef, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(PARTIAL + target.name)
        with self._translated(ref.key):
            try:
                self.client.download_file(self.bucket, self.prefix + ref.key, str(partial))
            except ClientError as error:
                if _code(error) in MISSING:
                    raise missing(ref) from error
                raise
        put_in_place(partial, target, ref)

    def put_once(self, key: str, data: bytes) -> bool:
        return self._create(key, data, len(data), hashlib.sha256(data).hexdigest())

    def read_tagged(self, key: str) -> Tagged | None:
        with self._translated(key):
            try:
                answer = self.client.get_object(Bucket=self.bucket, Key=self.prefix + key)
            except ClientError as error:
                if _code(error) in MISSING:
                    return None
                raise
            return Tagged(answer["Body"].read(), answer["ETag"])

    def swap(self, key: str, data: bytes, tag: str | None) -> str:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        with self._translated(key):
            try:
                answer = self.client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=data, **condition)
            except ClientError as error:
                if _code(error) in LOST | MISSING:
                    raise Conflict(f"{key}: moved by another writer", "read it again and decide anew") from error
                raise
        return str(answer["ETag"])

    def keys(self, prefix: str) -> Iterator[str]:
        with self._translated(prefix):
            pages = self.client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.bucket, Prefix=self.prefix + prefix):
                for item in page.get("Contents", ()):
                    if not item["Key"].endswith("/"):
                        yield item["Key"].removeprefix(self.prefix)

    def delete(self, prefix: str) -> int:
        doomed = list(self.keys(prefix))
        with self._translated(prefix):
            for start in range(0, len(doomed), 1000):
                batch = [{"Key": self.prefix + key} for key in doomed[start : start + 1000]]
                self.client.delete_objects(Bucket=self.bucket, Delete={"Objects": batch, "Quiet": True})
        return len(doomed)

    def check(self) -> None:
        key = f"probe-{uuid.uuid4().hex}"
        try:
            first, second = self.put_once(key, b"1"), self.put_once(key, b"2")
            stale = False
            if first and not second:
                self.swap(key, b"3", self.read_tagged(key).tag)  # type: ignore[union-attr]
                try:
                    self.swap(key, b"4", '"00000000000000000000000000000000"')
                except Conflict:
                    stale = True
        finally:
            with self._translated(key):
                self.client.delete_object(Bucket=self.bucket, Key=self.prefix + key)
        if not (first and not second and stale):
            raise Denied(
                f"s3://{self.bucket}: the server does not honour conditional writes (If-None-Match, If-Match)",
                "two runs could both move the champion: use a server that does, e.g. AWS S3 or versitygw",
            )

    def _create(self, key: str, source: bytes | Path, size: int, digest: str) -> bool:
        target = {"Bucket": self.bucket, "Key": self.prefix + key}
        extra = {"IfNoneMatch": "*", "Metadata": {DIGEST: digest}}
        with self._translated(key):
            try:
                if isinstance(source, bytes):
                    self.client.put_object(**target, Body=source, **extra)
                elif size < SINGLE_PUT_BYTES:
                    with source.open("rb") as stream:
                        self.client.put_object(**target, Body=stream, **extra)
                else:
                    if self._head(key) is not None:
                        return False
                    parts = TransferConfig(multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES)
                    metadata = {"Metadata": extra["Metadata"]}
                    self.client.upload_file(str(source), self.bucket, target["Key"], ExtraArgs=metadata, Config=parts)
            except ClientError as error:
                if _code(error) in LOST:
                    return False
                raise
        return True

    def _head(self, key: str) -> dict[str, Any] | None:
        try:
            head: dict[str, Any] = self.client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        except ClientError as error:
            if _code(error) in MISSING:
                return None
            raise
        return head

    def _holds(self, ref: FileRef) -> bool:
        with self._translated(ref.key):
            head = self._head(ref.key)
        if head is None:
            return False
        said = head.get("Metadata", {}).get(DIGEST)
        if said is not None:
            return f"sha256:{said}" == ref.digest
        data = self.get(ref.key)
        return data is not None and f"sha256:{hashlib.sha256(data).hexdigest()}" == ref.digest

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Turn botocore's errors into ours, once."""
        try:
            yield
        except NoCredentialsError as error:
            raise Denied(f"{what}: no S3 credentials", "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error
        except ClientError as error:
            raise self._refused(error, what) from error
        except Boto3Error as error:  # of a transfer in parts, which hides the error of the part
            if isinstance(error.__context__, ClientError):
                raise self._refused(error.__context__, what) from error
            raise StoreUnavailable(f"s3://{self.bucket}: {error}") from error
        except (BotoCoreError, OSError) as error:
            raise StoreUnavailable(f"s3://{self.bucket}: {error}") from error

    def _refused(self, error: ClientError, what: str) -> Denied | StoreUnavailable:
        told = f"s3://{self.bucket}: {_code(error)} on {what}"
        return Denied(told, "check keys, bucket and quota") if _code(error) in DENIED else StoreUnavailable(told)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def describe_objects(uri: str, endpoint: str | None) -> dict[str, str]:
    """What lies below the folder `s3://bucket/prefix` now: path within it to the object's ETag. Nothing is read."""
    return _list_folder(*_folder(uri, endpoint))


def fetch_folder(uri: str, endpoint: str | None, folder: Path) -> int:
    """Download all that lies below `s3://bucket/prefix` to its path below `folder`; returns how many files that are."""
    store, prefix = _folder(uri, endpoint)
    paths = _list_folder(store, prefix)
    for path in paths:
        _download(store, prefix + path, folder / path)
    return len(paths)


def fetch_objects(uri: str, endpoint: str | None, folder: Path) -> list[Path]:
    """Download the objects that match `s3://bucket/pattern` (`*` within a name) below `folder`, sorted by key."""
    bucket, _, pattern = uri.removeprefix("s3://").partition("/")
    store = S3Store(bucket, "", endpoint)
    fixed = pattern.split("*", 1)[0]
    wanted = [k for k in store.keys(fixed) if fnmatchcase(k, pattern if "*" in pattern else f"{pattern}*")]
    return [_download(store, key, folder / key) for key in sorted(wanted)]


def _folder(uri: str, endpoint: str | None) -> tuple[S3Store, str]:
    bucket, _, prefix = uri.removeprefix("s3://").partition("/")
    return S3Store(bucket, "", endpoint), f"{prefix.strip('/')}/" if prefix.strip("/") else ""


def _list_folder(store: S3Store, prefix: str) -> dict[str, str]:
    found: dict[str, str] = {}
    with store._translated(prefix):
        for page in store.client.get_paginator("list_objects_v2").paginate(Bucket=store.bucket, Prefix=prefix):
            found |= {item["Key"].removeprefix(prefix): item["ETag"] for item in page.get("Contents", ())}
    return {path: tag for path, tag in found.items() if path and not path.endswith("/")}


def _download(store: S3Store, key: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    with store._translated(key):
        store.client.download_file(store.bucket, key, str(target))
    return target
