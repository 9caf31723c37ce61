"""Storage, packages and services that do not answer for a while: it is tried again, counted, and no node is blamed."""

from __future__ import annotations

import pytest

from coda.diagnosis import Diagnosis, End, RankLog, Reason, Retry, classify

TRACEBACK = 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    main()\n'
RETRYING = (
    "WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by "
    "'NameResolutionError(\"<HTTPSConnection(host='index.corp')>: Failed to resolve 'index.corp'\")': /a/\n"
)
NO_PACKAGE = (
    "ERROR: Could not find a version that satisfies the requirement a (from versions: none)\n"
    "ERROR: No matching distribution found for a\n"
)
STORAGE = [
    'ValueError: UNAVAILABLE: Error reading "gs://data/7" in GCS kvstore: HTTP response code: 503',
    'ValueError: DEADLINE_EXCEEDED: Error reading "gs://data/arr/c/0/0": CURL error[28] Timeout was reached',
    'ValueError: ABORTED: Error reading "s3://data/x": AWS error: 500 Internal Error',
    "RuntimeError: INTERNAL: Error reading from gs://b/o: CURL error[56] Failure when receiving data from the peer",
    "OSError: When reading information for key 'a' in bucket 'b': AWS Error NETWORK_CONNECTION during HeadObject "
    "operation: curlCode: 28, Timeout was reached",
    "OSError: [Errno 16] Please reduce your request rate.",
    "OSError: [Errno 108] Cannot send after transport endpoint shutdown: '/lustre/data/x.bin'",
    "OSError: [Errno 103] Software caused connection abort",
    "OSError: [Errno 11] Resource temporarily unavailable: '/lustre/lock'",
    "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and "
    "we cannot find the requested files in the local cache. Please check your connection and try again.",
]
SERVICES = [
    "sqlalchemy.exc.OperationalError: (pymysql.err.OperationalError) (2013, 'Lost connection to MySQL server')",
    "psycopg2.OperationalError: server closed the connection unexpectedly",
    "pymysql.err.OperationalError: (2006, 'MySQL server has gone away')",
    "grpc._channel._InactiveRpcError: RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
    '\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.3.1.1:8001: Connection refused"',
    "grpc._channel._InactiveRpcError: RPC that terminated with:\n\tstatus = StatusCode.DEADLINE_EXCEEDED",
    "tritonclient.utils.InferenceServerException: [StatusCode.UNAVAILABLE] failed to connect to all addresses",
    "tritonclient.utils.InferenceServerException: [StatusCode.DEADLINE_EXCEEDED] Deadline Exceeded",
    "pymongo.errors.AutoReconnect: db.team:27017: connection closed",
    "pymongo.errors.ServerSelectionTimeoutError: No servers found yet",
    "kafka.errors.NoBrokersAvailable: NoBrokersAvailable",
    "pymongo.errors.NetworkTimeout: db.team:27017: timed out",
    "pymysql.err.OperationalError: (2003, \"Can't connect to MySQL server on 'db' ([Errno 111] Connection refused)\")",
    *(
        f'psycopg2.OperationalError: connection to server at "db", port 5432 failed: {why}'
        for why in ("Connection refused", "timeout expired", "Connection timed out", "No route to host")
    ),
    'psycopg2.OperationalError: could not translate host name "db" to address: Try again',
    "redis.exceptions.TimeoutError: Timeout reading from cache.team:6379",
]
ANSWERED = [
    *(
        f"grpc._channel._InactiveRpcError: <_InactiveRpcError of RPC that ended with:\n\tstatus = StatusCode.{code}"
        for code in ("INVALID_ARGUMENT", "UNAUTHENTICATED", "PERMISSION_DENIED")
    ),
    'psycopg2.OperationalError: connection to server at "db", port 5 failed: FATAL:  database "trian" does not exist',
    "pymysql.err.OperationalError: (1049, \"Unknown database 'x'\") while connecting",
    "redis.exceptions.ResponseError: unknown command 'connectx'",
    "pymongo.errors.OperationFailure: Authentication failed. connect",
]


def diagnosed(log: str, code: int = 1) -> Diagnosis:
    return classify([RankLog(log=log.encode(), rank=0)], [End(exit_code=code, rank=0)])


@pytest.mark.parametrize("before", ["", TRACEBACK], ids=["alone", "traceback"])
@pytest.mark.parametrize("line", STORAGE)
def test_storage_that_does_not_answer_ends_no_job_at_once(line: str, before: str) -> None:
    found = diagnosed(f"{before}{line}\n")
    assert (found.reason, found.retry, found.explicit) == (Reason.INPUTS, Retry.YES, True), found.rule


def test_a_checkpoint_that_storage_refuses_is_a_checkpoint_error() -> None:
    found = diagnosed('ValueError: UNAVAILABLE: Error writing "gs://ck/7" in GCS kvstore: HTTP response code: 503\n')
    assert (found.reason, found.retry) == (Reason.CHECKPOINT, Retry.YES)


def test_a_package_index_that_is_not_reached_ends_no_job_at_once() -> None:
    assert diagnosed(RETRYING + NO_PACKAGE).retry is Retry.YES
    assert diagnosed(NO_PACKAGE).retry is Retry.NO
    uv = "  x Failed to download `a==2`\n  |-> Failed to fetch: `https://index.corp/a/`\n  `-> operation timed out\n"
    assert diagnosed(uv, 2).retry is Retry.YES


@pytest.mark.parametrize("line", SERVICES)
def test_a_service_of_the_user_is_no_peer(line: str) -> None:
    found = diagnosed(f"{TRACEBACK}{line}\n")
    assert (found.reason, found.retry) == (Reason.INPUTS, Retry.YES), found.rule
    assert found.sub_reason == "a service did not answer"


@pytest.mark.parametrize("line", ANSWERED)
def test_a_service_that_answers_that_it_may_not_be_is_no_outage(line: str) -> None:
    found = diagnosed(f"{TRACEBACK}{line}\n")
    assert found.retry in (Retry.NO, Retry.ONCE), found.rule


def test_a_version_that_the_index_does_not_have_is_missing_also_after_a_retried_read() -> None:
    versions = NO_PACKAGE.replace("from versions: none", "from versions: 2.0.0, 2.1.0")
    assert (diagnosed(RETRYING + versions).reason, diagnosed(RETRYING + versions).retry) == (Reason.IMPORT, Retry.NO)


def test_a_peer_that_is_lost_stays_one() -> None:
    ray = "ray.exceptions.RpcError: StatusCode.UNAVAILABLE lost connection to raylet"
    assert diagnosed(f"{TRACEBACK}{ray}\n").reason is Reason.MPI_RUNTIME
    assert diagnosed("ORTE has lost communication with a remote daemon.\n").reason is Reason.MPI_RUNTIME
    line = "E0412 02:02:02.000000 77 coordination_service_agent.cc:725] UNAVAILABLE: failed to connect to all addresses"
    assert diagnosed(f"{line}\n", 134).reason is Reason.MPI_RUNTIME
