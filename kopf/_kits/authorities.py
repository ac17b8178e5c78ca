"""
Certificates with their own authority, renewed without interruption of trust.

At first, a new authority is only announced, so that clients learn to trust it besides the old one. Later, it signs the
new certificates of the server. The old authority is trusted until it expires. The result depends only on the known
keyring and the time, so all replicas get the same result.
"""

import dataclasses
import datetime
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Self

from kopf._kits.certificates import CLOCK_SKEW, MissingDependencyError, build_common_extensions, classify

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

AUTHORITY_LIFETIMES = 4
"""The lifetime of an authority (in lifetimes of certificates). It is replaced after half of its lifetime."""


@dataclasses.dataclass(frozen=True, slots=True)
class Keyring:
    """A server's certificate and its key, the authorities to be trusted, and the key of the newest one; all as PEM."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes

    FILES = ('ca.crt', 'ca.key', 'tls.crt', 'tls.key')

    @classmethod
    def load(cls, files: Mapping[str, bytes]) -> Self:
        """Create a keyring from the parts named in `FILES`; raise `KeyError` if some are missing."""
        return cls(*(files[name] for name in cls.FILES))

    def dump(self) -> dict[str, bytes]:
        """Return the parts, named as in `FILES`."""
        return dict(zip(self.FILES, (self.authorities, self.authority_key, self.certificate, self.key), strict=True))


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """
    When certificates are renewed.

    Args:
        lifetime: how long a certificate is valid; it is renewed when a third of that is left.
        overlap: how long a new authority is only announced before it is used.
    """

    lifetime: datetime.timedelta
    overlap: datetime.timedelta


def renew(known: Keyring | None, names: Collection[str], schedule: Schedule, now: datetime.datetime) -> Keyring:
    """
    Return the keyring for this moment, renewed if it is due; the same object otherwise.

    Args:
        known: the present keyring; if it is absent or unusable, a new one is created.
        names: the host names and IP addresses of the server.
        schedule: the lifetimes of certificates and authorities.
        now: the current time.

    Raises:
        MissingDependencyError: if the library for certificates is not installed.
    """
    try:
        from cryptography import x509  # noqa: F401
    except ImportError:
        raise MissingDependencyError(
            "Certificates for a webhook service need an extra library: run `pip install cryptography` or "
            "`pip install 'kopf[dev]>=1.46'`."
        ) from None
    try:
        parts = None if known is None else _Parts.parse(known)
    except (ValueError, TypeError):
        parts = None
    fresh = _renew(parts, names, schedule, now)
    return known if known is not None and fresh is parts else fresh.dump()


@dataclasses.dataclass(frozen=True, slots=True)
class _Parts:
    """A decoded keyring; the newest authority is the first."""

    authorities: tuple['x509.Certificate', ...]
    authority_key: 'ec.EllipticCurvePrivateKey'
    certificate: 'x509.Certificate | None' = None
    key: 'ec.EllipticCurvePrivateKey | None' = None

    @classmethod
    def parse(cls, keyring: Keyring) -> '_Parts':
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        authorities = x509.load_pem_x509_certificates(keyring.authorities)
        authority_key: Any = serialization.load_pem_private_key(keyring.authority_key, None)
        certificate = x509.load_pem_x509_certificate(keyring.certificate)
        key: Any = serialization.load_pem_private_key(keyring.key, None)
        if authorities[0].public_key() != authority_key.public_key() or certificate.public_key() != key.public_key():
            raise ValueError("The keys are of other certificates.")
        return cls(tuple(authorities), authority_key, certificate, key)

    def dump(self) -> Keyring:
        assert self.certificate is not None and self.key is not None
        return Keyring(
            b''.join(map(_dump, self.authorities)),
            _dump_key(self.authority_key),
            _dump(self.certificate),
            _dump_key(self.key),
        )


def _renew(parts: _Parts | None, names: Collection[str], schedule: Schedule, now: datetime.datetime) -> _Parts:
    if parts is not None:
        valid = tuple(authority for authority in parts.authorities if authority.not_valid_after_utc > now)
        if len(valid) != len(parts.authorities):
            # The private key belongs to the newest authority. If that has expired, a new keyring is created.
            parts = dataclasses.replace(parts, authorities=valid) if valid[:1] == parts.authorities[:1] else None
    if parts is None or _is_aging(parts.authorities[0], schedule, now):
        key, authority = _make_authority(schedule, now)
        known = () if parts is None else parts.authorities
        parts = (
            dataclasses.replace(parts, authorities=(authority, *known), authority_key=key)
            if parts is not None
            else _Parts((authority,), key)
        )
    return _issue(parts, names, schedule, now) if _is_due(parts, names, schedule, now) else parts


def _is_aging(authority: 'x509.Certificate', schedule: Schedule, now: datetime.datetime) -> bool:
    return authority.not_valid_after_utc - now < schedule.lifetime * AUTHORITY_LIFETIMES / 2


def _is_due(parts: _Parts, names: Collection[str], schedule: Schedule, now: datetime.datetime) -> bool:
    """Check whether the server needs another certificate."""
    certificate, authority = parts.certificate, parts.authorities[0]
    if certificate is None or certificate.not_valid_after_utc <= now or _get_names(certificate) != classify(names):
        return True
    if now - (authority.not_valid_before_utc + CLOCK_SKEW) < schedule.overlap:
        return False  # some clients may not trust the authority yet
    return (
        not _is_signed(certificate, parts.authorities[:1])
        or certificate.not_valid_after_utc - now < schedule.lifetime / 3
    )


def _is_signed(certificate: 'x509.Certificate', authorities: Collection['x509.Certificate']) -> bool:
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # names, keys, algorithms: there are errors of many types
            continue
        return True
    return False


def _get_names(certificate: 'x509.Certificate') -> tuple[list[str], list[Any]]:
    from cryptography import x509

    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return found.get_values_for_type(x509.DNSName), found.get_values_for_type(x509.IPAddress)


def _make_authority(
    schedule: Schedule,
    now: datetime.datetime,
) -> tuple['ec.EllipticCurvePrivateKey', 'x509.Certificate']:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # Why unique names? Authorities of the same name differ only by their keys, which some clients mishandle.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f'kopf webhooks {serial:x}'[:64])])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + schedule.lifetime * AUTHORITY_LIFETIMES)
    )
    builder = build_common_extensions(builder, key.public_key(), key.public_key(), ca=True, server=False)
    return key, builder.sign(key, hashes.SHA256())


def _issue(parts: _Parts, names: Collection[str], schedule: Schedule, now: datetime.datetime) -> _Parts:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    authority = parts.authorities[0]
    key = ec.generate_private_key(ec.SECP256R1())
    hosts, addresses = classify(names)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, [*hosts, *map(str, addresses)][0][:64])])
    alternatives = [*map(x509.DNSName, hosts), *map(x509.IPAddress, addresses)]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        # The certificate must expire before its authority: otherwise, clients could not verify it at the end.
        .not_valid_after(min(now + schedule.lifetime, authority.not_valid_after_utc))
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    )
    issuer = parts.authority_key
    builder = build_common_extensions(builder, key.public_key(), issuer.public_key(), ca=False, server=True)
    return dataclasses.replace(parts, certificate=builder.sign(issuer, hashes.SHA256()), key=key)


def _dump(certificate: 'x509.Certificate') -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)


def _dump_key(key: 'ec.EllipticCurvePrivateKey') -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
