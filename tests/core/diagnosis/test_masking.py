"""Evidence is shown to people who may not read the log: no secret is in it."""

from __future__ import annotations

import pytest

from coda.diagnosis import RankLog, classify
from coda.diagnosis.masking import masked


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        pytest.param("cloning https://bot:s3cr3tpw@git.example/x.git", "s3cr3tpw", id="URL"),
        pytest.param("redis://:pa55word@cache:6379", "pa55word", id="URL without a user"),
        pytest.param("https://oauth2token123456@git.example/x", "oauth2token123456", id="token in a URL"),
        pytest.param("Authorization: Bearer abc.def-123456", "abc.def-123456", id="bearer"),
        pytest.param("headers={'Authorization': 'token 0123456789'}", "token 0123456789", id="header"),
        pytest.param("PASSWORD=hunter22 is wrong", "hunter22", id="environment"),
        pytest.param('{"api_key": "k-99887766"}', "k-99887766", id="JSON"),
        pytest.param("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG", "wJalrXUtnFEMI", id="AWS secret"),
        pytest.param("key AKIAABCDEFGHIJKLMNOP is not valid", "AKIAABCDEFGHIJKLMNOP", id="AWS key id"),
        pytest.param("login failed for hf_abcdefghijklmnopqrstuv", "hf_abcdefghijklmnopqrstuv", id="hub token"),
        pytest.param("using ghp_0123456789abcdefABCDEF0123456789abcd", "ghp_0123456789", id="forge token"),
        pytest.param("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abcDEF", "eyJzdWIi", id="JWT"),
        pytest.param("https://x.blob.example/c?sv=1&sig=aB3dE%2Fxyz&se=2", "aB3dE", id="signed URL"),
        pytest.param("train.py --hub-token abcd1234efgh", "abcd1234efgh", id="option"),
        pytest.param("-----BEGIN RSA PRIVATE KEY-----MIIEpAIBAAKCAQEA", "MIIEpAIB", id="private key"),
    ],
)
def test_a_secret_is_masked(text: str, secret: str) -> None:
    assert secret not in masked(text)
    assert "***" in masked(text)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.39 GiB total capacity)",
        "KeyError: 'token_type_ids'",
        "ValueError: the tokenizer has no padding token",
        "FileNotFoundError: [Errno 2] No such file or directory: '/data/auth/users.csv'",
        "see https://pytorch.example/docs/errors.html",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_evidence_is_masked_and_short() -> None:
    log = b"PermissionError: 403 Client Error for https://me:topsecret@hub.example/" + b"x" * 5000
    evidence = classify([RankLog(log=log)]).evidence
    assert "topsecret" not in evidence
    assert len(evidence) <= 400
