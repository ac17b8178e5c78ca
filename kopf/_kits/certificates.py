"""
Self-signed certificates for webhook servers, so that developers need not create any by hand.

The certificate is its own authority: the CA bundle for the API is the certificate itself. The libraries for it
are large, so they are extras of the package, and are imported only here, when a certificate is created.
"""

import datetime
import ipaddress
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from kopf._cogs.helpers.explanations import ExplainedError

if TYPE_CHECKING:
    from cryptography import x509

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

LIFETIME = datetime.timedelta(days=3650)
"""The lifetime of the certificate. It is not renewed while the operator runs, so it must outlive any operator."""
CLOCK_SKEW = datetime.timedelta(days=1)
"""The tolerance for clocks: those of virtual machines with clusters are often behind."""

_MAX_COMMON_NAME = 64  # the limit of X.509


class MissingDependencyError(ExplainedError, ImportError):
    """Raised if a required library is not installed; the message names it, and the alternatives."""


def build_certificate(hostnames: Collection[str], password: str | None = None) -> tuple[bytes, bytes]:
    """
    Create a self-signed certificate of a server; return it and its private key, both as PEM.

    Args:
        hostnames: the names and IP addresses of the server, at least one. The first name is the subject's common
            name. Addresses that only mean "everywhere", such as ``0.0.0.0``, are skipped.
        password: encrypts the private key, if given.

    Raises:
        MissingDependencyError: if the library for certificates is not installed.
        ValueError: if there are no names.
    """
    names, addresses = classify(hostnames)
    if not names and not addresses:
        raise ValueError(f"A certificate needs a host name or an IP address, which these are not: {list(hostnames)!r}")
    subject = [*names, *map(str, addresses)][0][:_MAX_COMMON_NAME]
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        return _build_by_certbuilder(subject, names, addresses, password)
    return _build_by_cryptography(subject, names, addresses, password)


def classify(hostnames: Iterable[str]) -> tuple[list[str], list[IPAddress]]:
    """Split the hosts into names and addresses, without duplicates and without addresses that mean "everywhere"."""
    names: dict[str, None] = {}
    addresses: dict[IPAddress, None] = {}
    for hostname in hostnames:
        try:
            address = ipaddress.ip_address(hostname.strip('[]'))
        except ValueError:
            # Certificates contain international names only in their ASCII form.
            names[hostname.encode('idna').decode() if not hostname.isascii() else hostname] = None
        else:
            if not address.is_unspecified:
                addresses[address] = None
    return list(names), list(addresses)


def _build_by_cryptography(
    subject: str,
    names: list[str],
    addresses: list[IPAddress],
    password: str | None,
) -> tuple[bytes, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    # Why elliptic curves? RSA keys take a noticeable time at each start.
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)])
    alternatives = [*map(x509.DNSName, names), *map(x509.IPAddress, addresses)]
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + LIFETIME)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    )
    certificate = build_common_extensions(builder, key.public_key(), key.public_key(), ca=True, server=True).sign(
        key, hashes.SHA256()
    )
    encryption = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption),
    )


def build_common_extensions(
    builder: 'x509.CertificateBuilder',
    key: Any,
    issuer_key: Any,
    *,
    ca: bool,
    server: bool,
) -> 'x509.CertificateBuilder':
    """Add the extensions for the usage and the keys, which strict clients such as those of Go and OpenSSL require."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    usage = x509.KeyUsage(
        digital_signature=server,
        key_cert_sign=ca,
        crl_sign=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )
    if server:
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder


def _build_by_certbuilder(
    subject: str,
    names: list[str],
    addresses: list[IPAddress],
    password: str | None,
) -> tuple[bytes, bytes]:
    try:
        import certbuilder
        from oscrypto import asymmetric
    except Exception as error:  # the library itself fails with some versions of OpenSSL, not only its import
        problem = "" if isinstance(error, ImportError) else f" (certbuilder cannot be used here: {error})"
        raise MissingDependencyError(
            f"Self-signed certificates need an extra library{problem}: run `pip install cryptography` or "
            f"`pip install 'kopf[dev]>=1.46'`. Otherwise, give certificates to the webhook server as certfile= and "
            f"pkeyfile=, or let it serve HTTP only by insecure=True."
        ) from None
    now = datetime.datetime.now(datetime.UTC)
    public_key, private_key = asymmetric.generate_pair('rsa', bit_size=2048)
    builder = certbuilder.CertificateBuilder({'common_name': subject}, public_key)
    builder.self_signed = True
    builder.ca = True
    builder.key_usage = {'digital_signature', 'key_cert_sign'}
    builder.extended_key_usage = {'server_auth'}
    builder.subject_alt_domains = names
    builder.subject_alt_ips = list(map(str, addresses))
    builder.begin_date = now - CLOCK_SKEW
    builder.end_date = now + LIFETIME
    certificate: bytes = certbuilder.pem_armor_certificate(builder.build(private_key))
    key: bytes = asymmetric.dump_private_key(private_key, password, encoding='pem')
    return certificate, key
