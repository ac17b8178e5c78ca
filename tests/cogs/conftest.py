"""Certificates for the tests of TLS: an authority, a server, and a client."""

import dataclasses
import datetime
import ipaddress
import pathlib
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


@dataclasses.dataclass
class PKI:
    """An authority and two certificates of it, as files: for localhost, and for a client."""

    ca: pathlib.Path
    server_cert: pathlib.Path
    server_key: pathlib.Path
    client_cert: pathlib.Path
    client_key: pathlib.Path

    def as_server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.ca))
        context.load_cert_chain(self.server_cert, self.server_key)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # the servers of clusters are not as strict as Python 3.13
        return context


def _issue(
    name: str,
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [
                    x509.DNSName(name),
                    x509.IPAddress(ipaddress.ip_address('127.0.0.1')),
                ]
                if name == 'localhost'
                else [x509.DNSName(name)]
            ),
            critical=False,
        )
    )
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


@pytest.fixture(scope='session')
def pki(tmp_path_factory: pytest.TempPathFactory) -> PKI:
    """Return certificates without key identifiers, as clusters often have."""
    folder = tmp_path_factory.mktemp('pki')
    ca = _issue('authority', None)
    pairs = {'server': _issue('localhost', ca), 'client': _issue('alice', ca)}
    (folder / 'ca.crt').write_bytes(ca[0].public_bytes(serialization.Encoding.PEM))
    for name, (cert, key) in pairs.items():
        (folder / f'{name}.crt').write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        (folder / f'{name}.key').write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return PKI(
        folder / 'ca.crt', folder / 'server.crt', folder / 'server.key', folder / 'client.crt', folder / 'client.key'
    )
