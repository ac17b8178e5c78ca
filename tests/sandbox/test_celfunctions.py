"""Kubernetes' functions in CEL rules: each of these expressions is true on a real server."""

import pytest

pytest.importorskip("cel_expr_python")

from kopf._kits.testing.schemas import cels

TRUE = """
    "a1b22".findAll("[0-9]+") == ["1", "22"] && "a1b22".findAll("[0-9]+", 1) == ["1"] && "abc".find("b+") == "b"
    [1, 2, 3].sum() == 6 && [1.5, 2.5].sum() == 4.0 && [3, 1].min() == 1 && [3, 1].max() == 3
    [duration("1s"), duration("2s")].sum() == duration("3s") && [duration("1s"), duration("2s")].max() == duration("2s")
    [timestamp("2020-01-01T00:00:00Z")].min() == timestamp("2020-01-01T00:00:00Z")
    [1, 2].isSorted() && ![2, 1].isSorted() && [].isSorted()
    sets.contains([1, 2], [1]) && !sets.intersects([1], [2]) && sets.equivalent([1, 1], [1])
    isURL("https://a/b") && !isURL("a b") && url("/path").getScheme() == ""
    url("https://u:p@a.b:80/c?d=e#f").getHost() == "a.b:80" && url("https://a.b:80/c").getHostname() == "a.b"
    url("https://a/c?k=v&k=w").getQuery()["k"] == ["v", "w"]
    isQuantity("1Gi") && !isQuantity("1X") && quantity("1Gi").isGreaterThan(quantity("1G"))
    quantity("1").add(quantity("1k")).compareTo(quantity("1001")) == 0 && quantity("5").sub(2).asInteger() == 3
    quantity("1") == quantity("1000m") && !quantity("1.5").isInteger() && quantity("50m").asApproximateFloat() == 0.05
    isSemver("1.0.0-a.b+c") && !isSemver("1.0") && !isSemver("v1.0.0") && semver("1.2.3").minor() == 2
    semver("1.2.3-2").isLessThan(semver("1.2.3-a")) && semver("1.2.3-a").isLessThan(semver("1.2.3-a.1"))
    semver("1.2.3-a.1").isLessThan(semver("1.2.3")) && semver("1.2.3+x").compareTo(semver("1.2.3")) == 0
    isIP("1.2.3.4") && isIP("::1") && !isIP("1.2.3") && ip("1.2.3.4").family() == 4 && ip("::1").isLoopback()
    ip("10.0.0.1").isGlobalUnicast() && ip("169.254.0.1").isLinkLocalUnicast() && ip("224.0.0.1").isLinkLocalMulticast()
    ip.isCanonical("127.0.0.1") && !ip.isCanonical("0::1")
    isCIDR("10.0.0.0/8") && cidr("10.0.0.0/8").containsIP("10.1.1.1") && !cidr("10.0.0.0/8").containsIP(ip("11.1.1.1"))
    cidr("10.0.0.0/8").containsCIDR("10.1.0.0/16") && cidr("10.0.0.0/8").containsCIDR(cidr("10.1.0.0/16"))
    cidr("10.1.2.3/8").masked() == cidr("10.0.0.0/8") && string(cidr("10.1.2.3/8").ip().family()) == "4"
"""


@pytest.mark.parametrize("expression", TRUE.split("\n    ")[1:])
def test_functions_of_kubernetes_are_there(expression):
    assert cels.compiled(expression, False).run({}) is True


@pytest.mark.parametrize("expression", ["quantity('x') == 1", "semver('1') == 1", "ip('x').family() == 4"])
def test_what_makes_no_sense(expression):
    with pytest.raises(cels.CelError):
        cels.compiled(expression, False).run({})
