"""Where a webhook may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.webhooks import ParsedUrl, WebhookUrlError, check_destination, check_url
from jobs.webhooks.addresses import is_allowed_address

ALLOWED = ("hooks.internal", "10.0.0.5", "[fd00::5]")


@pytest.mark.parametrize(
    ("url", "parsed", "authority"),
    [
        ("https://example.com", ("https", "example.com", 443, "/"), "example.com"),
        ("https://Example.COM.:443/a/b?c=d&e", ("https", "example.com", 443, "/a/b?c=d&e"), "example.com"),
        ("HTTPS://example.com?x", ("https", "example.com", 443, "/?x"), "example.com"),
        ("https://[2606:4700::1111]/", ("https", "2606:4700::1111", 443, "/"), "[2606:4700::1111]"),
        (
            "https://xn--bcher-kva.example/@x",
            ("https", "xn--bcher-kva.example", 443, "/@x"),
            "xn--bcher-kva.example",
        ),
    ],
)
def test_a_public_https_url_is_taken_apart(
    url: str, parsed: tuple[str, str, int, str], authority: str
) -> None:
    checked = check_url(url, allowed_hosts=ALLOWED)
    assert (checked.scheme, checked.host, checked.port, checked.target) == parsed
    assert checked.authority == authority
    assert not checked.is_allowed_host


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://hooks.internal:8080/x", "hooks.internal:8080"),
        ("http://HOOKS.internal/x", "hooks.internal"),
        ("https://10.0.0.5:8443/", "10.0.0.5:8443"),
        ("http://[fd00::5]:9000/", "[fd00::5]:9000"),
    ],
)
def test_an_allowed_host_may_use_plain_http_and_any_port(url: str, authority: str) -> None:
    checked = check_url(url, allowed_hosts=ALLOWED)
    assert checked.is_allowed_host
    assert checked.authority == authority


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://",
        "https:///path",
        "https://example.com:8443/",
        "https://example.com:0/",
        "https://example.com:99999/",
        "https://example.com:port/",
        "https://user@example.com/",
        "https://user:password@example.com/",
        "https://@example.com/",
        "https://example.com/#fragment",
        "https://example.com/#",
        "https://example.com/ space",
        "https://example.com/\n",
        "https://example.com\t.evil.example/",
        "https://example.com\\@evil.example/",
        "https://exam\u00adple.com/",
        "https://b\u00fccher.example/",
        "https://\u2460.example/",
        "https://exa%6dple.com/",
        "https://-example.com/",
        "https://example..com/",
        "https://[::1]evil.example/",
        "https://[fe80::1%25eth0]/",
        "https://[v1.x]/",
        "https://[example.com]/",
        "https://" + "a." * 127 + "com/",
        "https://example.com/" + "a" * 2048,
        "http://hooks.internal.evil.example/",
        "http://nothooks.internal/",
        "http://user@hooks.internal/",
    ],
)
def test_a_url_outside_the_rules_is_refused_with_a_reason(url: str) -> None:
    with pytest.raises(WebhookUrlError) as caught:
        check_url(url, allowed_hosts=ALLOWED)
    assert caught.value.param == "webhook_url"
    assert caught.value.message.startswith("The URL")


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://localhost:3000/hook", "localhost"),
        ("http://example.com/", "example.com"),
        ("https://example.com:8443/", "example.com"),
        ("https://127.0.0.1/", "127.0.0.1"),
        ("https://[::1]/", "::1"),
    ],
)
def test_the_error_names_the_setting_that_allows_the_host(url: str, host: str) -> None:
    with pytest.raises(WebhookUrlError) as caught:
        check_destination(url, allowed_hosts=())
    message = caught.value.message
    assert f"LONGBATCH_WEBHOOKS__ALLOWED_HOSTS='[\"{host}\"]'" in message
    assert check_url(url, allowed_hosts=[host]).is_allowed_host


@given(url=st.one_of(st.text(), st.text().map("https://{}".format), st.from_regex(r"https://[!-~]*\Z")))
def test_any_text_is_either_a_url_of_port_443_or_refused(url: str) -> None:
    try:
        checked = check_url(url, allowed_hosts=())
    except WebhookUrlError:
        return
    assert isinstance(checked, ParsedUrl)
    assert (checked.scheme, checked.port) == ("https", 443)
    assert checked.target.startswith(("/", "?"))


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "1.1.1.1",
        "172.32.0.1",
        "192.167.255.255",
        "11.0.0.1",
        "2606:4700::1111",
        "2a00:1450::1",
        "::ffff:8.8.8.8",
    ],
)
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_allowed_address(address)


@pytest.mark.parametrize(
    "address",
    [
        # IPv4
        "0.0.0.0",  # noqa: S104 refused, not bound
        "10.1.2.3",
        "100.64.0.1",
        "100.100.100.200",
        "127.0.0.1",
        "127.255.255.254",
        "169.254.169.254",
        "172.16.0.1",
        "172.31.255.255",
        "192.0.2.1",
        "192.168.1.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.1",
        "240.0.0.1",
        "255.255.255.255",
        # IPv6
        "::",
        "::1",
        "100::1",
        "2001::1",
        "2001:db8::1",
        "fc00::1",
        "fd00:ec2::254",
        "fe80::1",
        "fe80::1%eth0",
        "2606:4700::1111%eth0",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "::ffff:169.254.169.254",
        # What `is_global` of some Python calls global
        "192.0.0.8",
        "192.88.99.1",
        "224.0.0.1",
        "168.63.129.16",
        "::127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::",
        "fec0::1",
        "ff02::1",
        "3fff::1",
        "5f00::1",
        "::ffff:0:127.0.0.1",
        # A Teredo address that carries 127.0.0.1
        "2001:0:4136:e378:8000:63bf:80ff:fffe",
    ],
)
def test_addresses_that_are_no_public_servers_are_refused(address: str) -> None:
    assert not is_allowed_address(address)


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_fares_the_same_inside_ipv6(address: object) -> None:
    assert is_allowed_address(f"::ffff:{address}") == is_allowed_address(str(address))


def test_what_is_no_address_is_an_error() -> None:
    with pytest.raises(ValueError, match="does not appear"):
        is_allowed_address("localhost")
