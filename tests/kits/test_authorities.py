"""The renewal of authorities and certificates: at any time, a client that was told the bundle trusts the server."""

import datetime
import sys

import pytest
from cryptography import x509
from cryptography.x509 import verification

from kopf._kits.authorities import Keyring, Schedule, renew
from kopf._kits.certificates import MissingDependencyError

NAMES = ['svc.ns.svc', 'svc', '10.1.2.3']
DAY = datetime.timedelta(days=1)
SCHEDULE = Schedule(lifetime=90 * DAY, overlap=9 * DAY)
START = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def is_trusted(bundle: bytes, keyring: Keyring, now: datetime.datetime) -> bool:
    store = verification.Store(x509.load_pem_x509_certificates(bundle))
    verifier = verification.PolicyBuilder().store(store).time(now).build_server_verifier(x509.DNSName('svc.ns.svc'))
    try:
        verifier.verify(x509.load_pem_x509_certificate(keyring.certificate), [])
    except verification.VerificationError:
        return False
    return True


def test_a_new_keyring_is_trusted_until_it_expires() -> None:
    keyring = renew(None, NAMES, SCHEDULE, START)
    assert is_trusted(keyring.authorities, keyring, START)
    assert is_trusted(keyring.authorities, keyring, START + 89 * DAY)
    assert not is_trusted(keyring.authorities, keyring, START + 91 * DAY)
    assert Keyring.load(keyring.dump()) == keyring


@pytest.mark.long
def test_clients_trust_the_server_over_years_of_renewals() -> None:
    """A client that is told the bundle a while after it was renewed always trusts the server."""
    keyring: Keyring | None = None
    told: list[tuple[datetime.datetime, bytes]] = []
    certificates, bundles = set(), set()
    now = START
    while now < START + 1500 * DAY:
        keyring = renew(keyring, NAMES, SCHEDULE, now)
        told.append((now, keyring.authorities))
        known = [bundle for time, bundle in told if time <= now - 8 * DAY]
        for bundle in known[-1:] + [keyring.authorities]:
            assert is_trusted(bundle, keyring, now), now
        assert keyring.authorities.count(b'BEGIN') <= 2
        certificates.add(keyring.certificate)
        bundles.add(keyring.authorities)
        now += 3 * DAY
    assert 20 <= len(certificates) <= 40
    assert 8 <= len(bundles) <= 20


def test_nothing_is_renewed_for_long() -> None:
    keyring = renew(None, NAMES, SCHEDULE, START)
    for days in (0, 1, 30, 59):
        assert renew(keyring, NAMES, SCHEDULE, START + days * DAY) is keyring
    fresh = renew(keyring, NAMES, SCHEDULE, START + 61 * DAY)
    assert fresh.certificate != keyring.certificate
    assert fresh.authorities == keyring.authorities


def test_a_new_authority_is_announced_before_it_is_used() -> None:
    keyring = renew(None, NAMES, SCHEDULE, START)
    time = START
    while keyring.authorities.count(b'BEGIN') == 1:
        before, time = keyring, time + DAY
        keyring = renew(keyring, NAMES, SCHEDULE, time)
    assert keyring.authorities.endswith(before.authorities)
    assert keyring.certificate == before.certificate
    assert renew(keyring, NAMES, SCHEDULE, time + 8 * DAY) is keyring
    used = renew(keyring, NAMES, SCHEDULE, time + 9 * DAY)
    assert used.certificate != keyring.certificate
    assert used.authorities == keyring.authorities
    assert not is_trusted(before.authorities, used, time + 9 * DAY)


def test_other_names_need_another_certificate_at_once() -> None:
    keyring = renew(None, NAMES, SCHEDULE, START)
    fresh = renew(keyring, [*NAMES, 'more'], SCHEDULE, START)
    assert fresh.authorities == keyring.authorities
    names = (
        x509.load_pem_x509_certificate(fresh.certificate)
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    assert names.get_values_for_type(x509.DNSName) == ['svc.ns.svc', 'svc', 'more']


@pytest.mark.parametrize('days', [91, 361, 3000])
def test_certificates_are_renewed_after_a_long_downtime(days: int) -> None:
    keyring = renew(None, NAMES, SCHEDULE, START)
    now = START + days * DAY
    fresh = renew(keyring, NAMES, SCHEDULE, now)
    assert is_trusted(fresh.authorities, fresh, now)
    assert (keyring.authorities in fresh.authorities) is (days < 360)


@pytest.mark.parametrize('name', Keyring.FILES)
def test_broken_ones_are_made_anew(name: str) -> None:
    keyring, other = renew(None, NAMES, SCHEDULE, START), renew(None, NAMES, SCHEDULE, START)
    for value in (b'', b'rubbish', other.dump()[name]):
        fresh = renew(Keyring.load({**keyring.dump(), name: value}), NAMES, SCHEDULE, START)
        assert is_trusted(fresh.authorities, fresh, START)


def test_a_keyring_with_missing_parts_is_not_loaded() -> None:
    with pytest.raises(KeyError):
        Keyring.load({'ca.crt': b''})


def test_a_missing_library_is_named_with_its_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'cryptography', None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'kopf\[dev\]>=1\.46'"):
        renew(None, NAMES, SCHEDULE, START)
