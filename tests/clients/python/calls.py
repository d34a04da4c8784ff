"""How calls are made, and how their errors are read."""

import os

import grpc
from google.rpc.error_details_pb2 import BadRequest, ErrorInfo, RequestInfo, RetryInfo
from grpc_status import rpc_status

ADDRESS = os.environ["WINDLASS_ADDRESS"]
BEARER = [("authorization", f"Bearer {os.environ['WINDLASS_KEY']}")]


async def call(method, request, metadata=BEARER):
    """Makes a call, with our key and a deadline."""
    return await method(request, metadata=metadata, timeout=10)


def detail(error, kind):
    """The detail of this kind that an error carries, or an empty one."""
    found = kind()
    status = rpc_status.from_call(error)
    for packed in status.details if status else ():
        packed.Unpack(found)
    return found


def retry_delay(error):
    """When to come back, in seconds: what the server says, or soon."""
    return detail(error, RetryInfo).retry_delay.ToTimedelta().total_seconds() or 0.1


class Broken(Exception):
    """A promise that was not kept."""


def expect(kept, otherwise):
    if not kept:
        raise Broken(otherwise)


def step(what):
    print(f"  {what}", flush=True)


async def refused(what, awaitable, code, reason, field=""):
    """Makes a call that must be refused, and checks how. Returns the error."""
    try:
        await awaitable
    except grpc.aio.AioRpcError as error:
        info = detail(error, ErrorInfo)
        fields = [violation.field for violation in detail(error, BadRequest).field_violations]
        met = f"{error.code().name} {info.reason} {' '.join(fields)}".strip()
        # Our own clock may be the first to see that a deadline has passed, and gives no reason.
        if code == "DEADLINE_EXCEEDED" and not info.reason:
            reason = ""
        expected = f"{code} {reason} {field}".strip()
        expect(met == expected, f"{what}: expected {expected}, not {met}: {error.details()}")
        expect(not reason or info.domain == "windlass", f"{what}: the domain is {info.domain}")
        expect(not reason or detail(error, RequestInfo).request_id, f"{what}: no id to ask about")
        step(f"was refused {what}: {met}")
        return error
    raise Broken(f"nobody refused {what}")
