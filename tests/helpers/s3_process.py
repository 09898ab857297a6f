"""A real S3-compatible server, and a proxy that can stop, slow or break requests to it."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self

from redis_process import free_port
from waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

BOUND = 60.0
IS_INSTALLED = importlib.util.find_spec("moto") is not None
MISSING = "moto is not installed (pip install 'moto[s3]' flask-cors)"
BUCKET = "values"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_REGION": "us-east-1"}


class S3Process:
    """The server keeps its objects in memory: they are lost when it is killed. It accepts any credentials."""

    unchecked_requests: int | None = None
    """The number of requests after which the server checks credentials; None: it never does."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/pre/fix"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a gateway needs."""
        return ENVIRONMENT | {"AWS_ENDPOINT": f"http://127.0.0.1:{self.port}", "AWS_ALLOW_HTTP": "true"}

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        checks = (
            {} if self.unchecked_requests is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(self.unchecked_requests)}
        )
        self._process = subprocess.Popen(
            command, env=os.environ | checks, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self._has_bucket)
        return self

    def _has_bucket(self) -> bool:
        """Create the bucket; return whether the server has answered."""
        with contextlib.suppress(OSError):
            self.request("PUT", f"/{BUCKET}")
            return True
        return False

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(BOUND)

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=BOUND)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            return connection.getresponse().read()

    def reset(self) -> None:
        """Remove all objects and uploads."""
        self.request("POST", "/moto-api/reset")
        self.request("PUT", f"/{BUCKET}")

    def names(self) -> list[str]:
        """The names of all objects."""
        answer = self.request("GET", f"/{BUCKET}?list-type=2").decode()
        return [part.partition("</Key>")[0] for part in answer.split("<Key>")[1:]]

    def uploads(self) -> int:
        """The number of uploads in parts that were neither completed nor aborted."""
        return self.request("GET", f"/{BUCKET}?uploads").decode().count("<UploadId>")

    def remove(self, name: str) -> None:
        self.request("DELETE", f"/{BUCKET}/{name}")

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class CheckingS3Process(S3Process):
    """A server that checks signatures and permissions; it has one user, who has the permissions that are given."""

    unchecked_requests = 4
    """The bucket, and the three with which the user is made."""

    def __init__(self, permissions: Sequence[str]) -> None:
        super().__init__()
        self._permissions = permissions
        self._keys: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a gateway needs, with the keys of the user."""
        return super().environment | self._keys

    def __enter__(self) -> Self:
        super().__enter__()
        import boto3  # type: ignore[import-untyped]  # noqa: PLC0415  # takes long to import

        keys = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "us-east-1"}
        iam = boto3.client("iam", endpoint_url=f"http://127.0.0.1:{self.port}", **keys)
        iam.create_user(UserName="gateway")
        made = iam.create_access_key(UserName="gateway")["AccessKey"]
        statement = {"Effect": "Allow", "Action": list(self._permissions), "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName="gateway", PolicyName="values", PolicyDocument=policy)
        self._keys = {"AWS_ACCESS_KEY_ID": made["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"]}
        return self
