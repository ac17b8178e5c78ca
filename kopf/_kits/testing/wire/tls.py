"""
Certificates for one run of the sandbox: a CA, the server's certificate, and certificates of clients.

Why elliptic curves? Creating such a key takes a millisecond, whereas an RSA key takes a fifth of a second. The library
``cryptography`` is used if it is installed, the command ``openssl`` otherwise.
"""

import dataclasses
import datetime
import shutil
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

DAYS = 30


class CertificatesUnavailable(RuntimeError):
    """Raised when neither the library nor the command is available."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both in PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """A certificate authority in memory."""

    def __init__(self) -> None:
        self._maker: _Library | _Command = _Library() if _has_library() else _Command()
        self.certificate = self._maker.certificate

    def server(self) -> Pair:
        """Return the certificate of a server on the loopback addresses."""
        return self._maker.sign('sandbox', (), server=True)

    def client(self, user: str, groups: tuple[str, ...]) -> Pair:
        """Return the certificate of a client: its user is the common name, its groups are the organisations."""
        return self._maker.sign(user, groups, server=False)

    def context(self) -> ssl.SSLContext:
        """Return the server's TLS context: clients may present certificates of this CA, but need not."""
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=self.certificate.decode())
        context.verify_mode = ssl.CERT_OPTIONAL
        context.set_alpn_protocols(['http/1.1'])
        pair = self.server()
        with tempfile.NamedTemporaryFile() as file:  # The standard library reads keys from files only.
            file.write(pair.certificate + pair.key)
            file.flush()
            context.load_cert_chain(file.name)
        return context


def _has_library() -> bool:
    try:
        import cryptography.x509  # noqa: F401
    except ImportError:
        return False
    return True


class _Library:
    """Certificates by the library ``cryptography``."""

    def __init__(self) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = self._subject('kopf-sandbox-ca', ())
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=True,
            crl_sign=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        self.certificate = self._pem(self._signed(builder))

    def sign(self, user: str, groups: tuple[str, ...], *, server: bool) -> Pair:
        import ipaddress

        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID

        key = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            self._builder(self._subject(user, groups), key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )
        if server:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(
                    [
                        x509.DNSName('localhost'),
                        x509.DNSName('kubernetes.default.svc'),
                        x509.IPAddress(ipaddress.ip_address('127.0.0.1')),
                        x509.IPAddress(ipaddress.ip_address('::1')),
                    ]
                ),
                critical=False,
            )
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Pair(self._pem(self._signed(builder)), pem)

    def _subject(self, user: str, groups: tuple[str, ...]) -> 'x509.Name':
        from cryptography import x509
        from cryptography.x509.oid import NameOID

        return x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, user),
            ]
        )

    def _builder(self, subject: 'x509.Name', key: 'ec.EllipticCurvePrivateKey') -> 'x509.CertificateBuilder':
        from cryptography import x509

        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )

    def _signed(self, builder: 'x509.CertificateBuilder') -> 'x509.Certificate':
        from cryptography.hazmat.primitives import hashes

        return builder.sign(self._key, hashes.SHA256())

    def _pem(self, certificate: 'x509.Certificate') -> bytes:
        from cryptography.hazmat.primitives import serialization

        return certificate.public_bytes(serialization.Encoding.PEM)


class _Command:
    """Certificates by the command ``openssl``."""

    def __init__(self) -> None:
        if shutil.which('openssl') is None:
            raise CertificatesUnavailable(
                'The sandbox speaks TLS and has to make certificates: install the Python '
                'package "cryptography", or the command "openssl".'
            )
        self._key = self._new_key()
        with tempfile.TemporaryDirectory() as folder:
            key = Path(folder, 'ca.key')
            key.write_bytes(self._key)
            self.certificate = self._run(
                'req',
                '-x509',
                '-new',
                '-key',
                str(key),
                '-days',
                str(DAYS),
                '-subj',
                '/CN=kopf-sandbox-ca',
                '-addext',
                'keyUsage=critical,digitalSignature,keyCertSign,cRLSign',
            )

    def sign(self, user: str, groups: tuple[str, ...], *, server: bool) -> Pair:
        key = self._new_key()
        extensions = f'basicConstraints=critical,CA:FALSE\nextendedKeyUsage={"server" if server else "client"}Auth\n'
        if server:
            extensions += 'subjectAltName=DNS:localhost,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:::1\n'
        subject = ''.join(f'/O={group}' for group in groups) + f'/CN={user}'
        with tempfile.TemporaryDirectory() as folder:
            paths = {name: Path(folder, name) for name in ('ca.crt', 'ca.key', 'key', 'csr', 'ext')}
            for name, data in (
                ('ca.crt', self.certificate),
                ('ca.key', self._key),
                ('key', key),
                ('ext', extensions.encode()),
            ):
                paths[name].write_bytes(data)
            paths['csr'].write_bytes(self._run('req', '-new', '-key', str(paths['key']), '-subj', subject))
            certificate = self._run(
                'x509',
                '-req',
                '-in',
                str(paths['csr']),
                '-CA',
                str(paths['ca.crt']),
                '-CAkey',
                str(paths['ca.key']),
                '-CAcreateserial',
                '-days',
                str(DAYS),
                '-extfile',
                str(paths['ext']),
            )
        return Pair(certificate, key)

    def _new_key(self) -> bytes:
        return self._run('genpkey', '-algorithm', 'EC', '-pkeyopt', 'ec_paramgen_curve:P-256')

    def _run(self, *arguments: str) -> bytes:
        process = subprocess.run(['openssl', *arguments], capture_output=True)
        if process.returncode:
            raise CertificatesUnavailable(f'"openssl {arguments[0]}" has failed: {process.stderr.decode().strip()}')
        return process.stdout
