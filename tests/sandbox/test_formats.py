"""Formats of strings that a real server was seen to accept and to refuse."""

import time

import pytest

from kopf._kits.testing.schemas import formats

UUID = "a3bb189e-8bf9-{}888-9912-ace4e6543002"
CASES = [
    ("bsonobjectid", ["507f1f77bcf86cd799439011"], ["507f1f77bcf86cd79943901"]),
    ("byte", ["aGVsbG8="], ["aGVsbG8", ""]),
    ("cidr", ["1.2.3.4/8", "::1/64"], ["1.2.3.4/33", "1.2.3.4"]),
    ("creditcard", ["4111111111111111", "4111 1111 1111 1111"], ["4111111111111112"]),
    ("date", ["2020-02-29"], ["2021-02-29", "20200229", "2020-2-9"]),
    (
        "date-time",
        ["2020-01-01T00:00:00Z", "2020-01-01t00:00:00.123456789z", "2020-01-01T00:00:00+01:00"],
        ["2020-01-01T00:00:00", "2020-01-01T00:00:00+0100", "2020-01-01T24:00:00Z"],
    ),
    ("duration", ["1h30m", "1.5h", "-5s", "0", "1d", "3 weeks", "2 hours 3 min", "5M", "P1D", "1µs"], ["5", "x", ""]),
    ("email", ["x@y", "é@x.de", "X Y <x@y.z>", '"q q"@x.de', "x@[1.2.3.4]"], ["a@b@c", "mailto:x@y.z", "x"]),
    ("hexcolor", ["#fff", "FFFFFF"], ["#ff", "#gggggg"]),
    ("hostname", ["example.com", "x", "ab-cd.example.com"], ["a.b", "1.2.3.4", "a-.com", "-a.com", "x" * 64 + ".com"]),
    ("ipv4", ["1.2.3.4", "01.2.3.4", "::ffff:1.2.3.4"], ["1.2.3", "::1", "1..2.3"]),
    ("ipv6", ["::1"], ["1.2.3.4", "fe80::1%eth0"]),
    ("isbn", ["0-306-40615-2", "9780306406157"], ["0-306-40615-3"]),
    ("isbn10", ["0306406152"], ["9780306406157"]),
    ("isbn13", ["978-0-306-40615-7"], ["0306406152"]),
    ("k8s-long-name", ["a.b-c"], ["A", "a..b"]),
    ("k8s-short-name", ["a-b"], ["a.b", "x" * 64]),
    ("mac", ["00:11:22:33:44:55", "0011.2233.4455", "001122334455"], ["00:11:22:33:44", "00:11-22:33:44:55"]),
    ("rgbcolor", ["rgb(1,2,3)", "rgb(255, 255, 255)"], ["rgb(256,0,0)", "rgb(1%,2%,3%)"]),
    ("ssn", ["123-45-6789", "123 45 6789"], ["123456789"]),
    ("uri", ["http://a.b/c", "/rel", "a:b"], ["x", "http://x y/"]),
    ("uuid", [UUID.format(1)], ["x"]),
    ("uuid3", [UUID.format(3), UUID.format(3).replace("-", "").upper()], [UUID.format(4)]),
    ("uuid4", [UUID.format(4)], [UUID.format(4).replace("9912", "c912")]),
    ("bogus", ["anything"], []),
]


@pytest.mark.parametrize("format, good, bad", CASES, ids=[case[0] for case in CASES])
def test_formats_accept_good_texts_and_no_bad_ones(format, good, bad):
    assert [text for text in good if not formats.is_formatted(text, format)] == []
    assert [text for text in bad if formats.is_formatted(text, format)] == []


def test_no_text_takes_long():
    start = time.process_time()
    texts = ["x" * 300, "x " * 150, "x." * 150, "a@" * 150, '"' * 301, "1" * 300, "1h" * 150 + "!", "a.a." * 80 + "@"]
    for text in texts:
        for format, _, _ in CASES:
            formats.is_formatted(text, format)
    assert time.process_time() - start < 1
