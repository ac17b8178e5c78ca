"""The syntax of patterns in Go: each row was seen on a real server."""

import pytest

from kopf._kits.testing.schemas.gopatterns import complaint


@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "",
            "^[a-z]+$",
            r"a\\1",
            r"\(?=a",
            "[(?=]",
            "(?<n>a)",
            "(?P<n>a)",
            "(?i)a",
            "(?-i)x",
            "(?i:a)",
            "a(?i)*",
            "^*",
        ),
        *(
            r"\z",
            r"\d+",
            r"\x41",
            r"\p{L}",
            r"\12",
            "a{,3}",
            "a{01}",
            "a{2,}",
            "a*?",
            "[]a]",
            "[^]]",
            "[a-]",
            "[[:alpha:]-z]",
        ),
        *(r"[\d-z]", r"\Q(\E", r"\Q[", "{2", "é", r"[\]]"),
    ],
)
def test_these_patterns_are_accepted(pattern):
    assert complaint(pattern) is None


@pytest.mark.parametrize(
    "pattern, problem",
    [
        *[(pattern, "invalid or unsupported Perl syntax: `(?!`") for pattern in ("^(?!x).*$", "(?:a)(?!b)(?=c)")],
        ("a(?=b)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(?>a)", "invalid or unsupported Perl syntax: `(?>`"),
        ("(?P=n)", "invalid or unsupported Perl syntax: `(?P`"),
        ("(?x)a", "invalid or unsupported Perl syntax: `(?x`"),
        ("(?i-)a", "invalid or unsupported Perl syntax: `(?i-)`"),
        ("(?", "invalid or unsupported Perl syntax: `(?`"),
        ("(?<=a)b", "invalid named capture: `(?<=a)b`"),
        ("(?<a-b>c)", "invalid named capture: `(?<a-b>`"),
        *[
            (rf"a{escape}b", f"invalid escape sequence: `{escape}`")
            for escape in (r"\1", r"\8", r"\Z", r"\E", r"\u", r"\é")
        ],
        (r"[\b]", r"invalid escape sequence: `\b`"),
        ("a\\", "trailing backslash at end of expression: ``"),
        ("a++", "invalid nested repetition operator: `++`"),
        ("a*?{2}", "invalid nested repetition operator: `*?{2}`"),
        ("a{2,1}", "invalid repeat count: `{2,1}`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("a|+?", "missing argument to repetition operator: `+?`"),
        ("(?i)*", "missing argument to repetition operator: `*`"),
        ("a(b", "missing closing ): `a(b`"),
        ("a)", "unexpected ): `a)`"),
        ("a[b", "missing closing ]: `[b`"),
        ("[]", "missing closing ]: `[]`"),
        ("[az-a]", "invalid character class range: `z-a`"),
    ],
)
def test_these_patterns_are_refused_in_the_words_of_go(pattern, problem):
    assert complaint(pattern) == problem
