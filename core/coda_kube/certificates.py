"""Certificates between kube-scheduler and the extender: an authority of Coda's own, and two leaves that it signs.

The only module that knows `cryptography`, which only the operator and the lab have. Times come from outside.
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coda_kube.objects.names import SYSTEM_NAMESPACE

DAY_S: Final = 86_400
AUTHORITY_S: Final = 10 * 365 * DAY_S
"""kube-scheduler reads the authority only at its start, so the authority outlives every scheduler."""

LEAF_S: Final = 30 * DAY_S
SKEW_S: Final = DAY_S
"""A new certificate is valid from before its making: the clock of a node may be behind."""

SERVER_NAME: Final = f"coda-extender.{SYSTEM_NAMESPACE}.svc"
CLIENT_NAME: Final = "coda-scheduler"


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes


def new_authority(now_s: float) -> KeyPair:
    """Return an authority that signs leaves and nothing else."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("coda")
    builder = _builder(name, name, key, now_s, AUTHORITY_S)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _signed(builder, key, key)


def new_leaf(authority: KeyPair, *, serves: bool, now_s: float, valid_s: float = LEAF_S) -> KeyPair:
    """Return the extender's certificate (`serves`) or kube-scheduler's. Neither may stand in for the other."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    name = SERVER_NAME if serves else CLIENT_NAME
    builder = _builder(_name(name), issuer.subject, key, now_s, valid_s)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if serves:
        local = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME), x509.DNSName("localhost"), local]), critical=False
        )
    return _signed(builder, key, issuer_key)


def files_of(leaf: KeyPair, authority: KeyPair) -> dict[str, bytes]:
    """Return the files that both sides read, by name."""
    return {"tls.crt": leaf.certificate, "tls.key": leaf.key, "ca.crt": authority.certificate}


def end_s(certificate: bytes) -> float | None:
    """Return when a certificate (PEM) ends, in seconds since 1970; None if it is none."""
    try:
        return x509.load_pem_x509_certificate(certificate).not_valid_after_utc.timestamp()
    except ValueError:
        return None


def is_good(pair: KeyPair, authority: KeyPair, *, now_s: float) -> bool:
    """True if the authority signed the leaf, the key is its own, and less than a third of its time is over."""
    try:
        leaf = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
        leaf.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature):
        return False
    begin_s, end_s = leaf.not_valid_before_utc.timestamp(), leaf.not_valid_after_utc.timestamp()
    return leaf.public_key() == key.public_key() and begin_s <= now_s < begin_s + (end_s - begin_s) / 3


def is_authority(pair: KeyPair, *, now_s: float) -> bool:
    """True if the pair can sign leaves from now on, for longer than they last.

    One of a clock that was ahead is none yet: nobody believes what it signs before it begins."""
    try:
        found = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
    except (ValueError, TypeError):
        return False
    begin_s, end_s = found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp()
    return found.public_key() == key.public_key() and begin_s <= now_s < end_s - 2 * LEAF_S


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now_s: float, valid_s: float
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_moment(now_s - SKEW_S))
        .not_valid_after(_moment(now_s + valid_s))
    )


def _signed(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> KeyPair:
    certificate = builder.sign(issuer_key, hashes.SHA256())
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _moment(time_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(time_s), datetime.UTC)
