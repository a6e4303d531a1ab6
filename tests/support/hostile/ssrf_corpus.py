"""URLs that lead, or once led somebody's server, to where no webhook may go; `PORT` is the canary's.

Sources: OWASP's SSRF cheat sheet, the IANA special-purpose registries, clouds' metadata services, and the
disagreements between URL parsers that Orange Tsai collected ("A New Era of SSRF", 2017).
"""

# Hosts that are some spelling of an address which is no public server's.
LOOPBACK = """
    127.0.0.1 127.0.0.1. 127.0.1.1 127.1 127.0.1 127.255.255.254 0177.0.0.1 0177.0.0.01 0x7f.0.0.1
    0x7f.1 0x7f000001 2130706433 017700000001 0x7F000001 127.0.0.0x1 0 0.0.0.0 0x0 00000000
    000.000.000.000 localhost LOCALHOST localhost. foo.localhost localhost.localdomain
""".split()  # noqa: SIM905  # one in a line each would be pages
PRIVATE = """
    10.0.0.1 10.255.255.255 172.16.0.1 172.31.255.255 192.168.0.1 192.168.255.255 100.64.0.1
    100.127.255.255 0.1.2.3 192.0.0.1 192.0.0.8 192.0.0.170 192.0.2.1 192.31.196.1 192.52.193.1
    192.88.99.1 192.175.48.1 198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1
    239.255.255.255 240.0.0.1 255.255.255.255 0xa000001 167772161 012.0.0.1 10.1 printer.local
    router.lan wiki.intranet nas.home.arpa intranet
""".split()  # noqa: SIM905  # one in a line each would be pages
METADATA = """
    169.254.169.254 169.254.0.1 169.254.170.2 2852039166 0xa9fea9fe 0251.0376.0251.0376 169.254.43518
    100.100.100.200 168.63.129.16 192.0.0.192 metadata.google.internal METADATA.google.internal.
    instance-data.ec2.internal metadata
""".split()  # noqa: SIM905  # one in a line each would be pages
IPV6 = """
    [::1] [::] [0:0:0:0:0:0:0:1] [::127.0.0.1] [::7f00:1] [::ffff:127.0.0.1] [::ffff:7f00:1]
    [::FFFF:127.0.0.1] [0:0:0:0:0:ffff:127.0.0.1] [::ffff:10.0.0.1] [::ffff:169.254.169.254]
    [::ffff:a9fe:a9fe] [::ffff:0:127.0.0.1] [64:ff9b::7f00:1] [64:ff9b::127.0.0.1] [64:ff9b::a9fe:a9fe]
    [64:ff9b:1::7f00:1] [2002:7f00:1::] [2002:a9fe:a9fe::1] [2002:a00:1::1] [2001::1]
    [2001:0:4136:e378:8000:63bf:80ff:fffe] [2001:db8::1] [2001:10::1] [2001:20::1] [2620:4f:8000::1]
    [3fff::1] [5f00::1] [100::1] [fc00::1] [fd00::1] [fd00:ec2::254] [fd20:ce::254] [fe80::1]
    [fe80::1%25lo] [fe80::1%lo] [::1%25lo] [fec0::1] [ff02::1] [ff0e::1]
""".split()  # noqa: SIM905  # one in a line each would be pages

# Whole URLs whose parts parsers disagree on, or that bend the rules.
SHAPES = (
    "http://PUBLIC:PORT/",
    "http://127.0.0.1:PORT/",
    "HTTP://127.0.0.1:PORT/",
    "https://PUBLIC:22/",
    "https://PUBLIC:80/",
    "https://PUBLIC:0/",
    "https://PUBLIC:65536/",
    "https://PUBLIC:-1/",
    "https://PUBLIC:44 3/",
    "https://user@127.0.0.1:PORT/",
    "https://user:password@PUBLIC/",
    "https://PUBLIC@127.0.0.1:PORT/",
    "https://PUBLIC:443@127.0.0.1:PORT/",
    "https://PUBLIC#@127.0.0.1:PORT/",
    "https://PUBLIC%23@127.0.0.1:PORT/",
    "https://127.0.0.1:PORT#@PUBLIC/",
    "https://127.0.0.1:PORT\\@PUBLIC/",
    "https://PUBLIC\\@127.0.0.1:PORT/",
    "https://PUBLIC\\.127.0.0.1:PORT/",
    "https://127.0.0.1:PORT?@PUBLIC/",
    "https://[::1]@PUBLIC:PORT/",
    "https://[::1]PUBLIC/",
    "https://[::1",
    "https://::1/",
    "https://[127.0.0.1]/",
    "https://127.0.0.1%2f@PUBLIC/",
    "https://127.0.0.1%00.PUBLIC/",
    "https://PUBLIC%0d%0aHost:x/",
    "https://PUBLIC\r\nX: y/",
    "https://PUBLIC/\r\nX: y",
    "https://PUBLIC/ HTTP/1.1\r\nX: y",
    " https://127.0.0.1:PORT/",
    "https://127.0.0.1 :PORT/",
    "https://127.0.0.1\t:PORT/",
    "https:127.0.0.1:PORT/",
    "https:/127.0.0.1:PORT/",
    "https:///127.0.0.1:PORT/",
    "//127.0.0.1:PORT/",
    "127.0.0.1:PORT",
    "\u2460\u2461\u2466.0.0.1",
    "https://\u2460\u2461\u2466.0.0.1:PORT/",
    "https://\uff11\uff12\uff17.0.0.1/",
    "https://127\u30020\u30020\u30021:PORT/",
    "https://localho\u017ft:PORT/",
    "https://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3:PORT/",
    "ftp://127.0.0.1:PORT/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:PORT/_x",
    "dict://127.0.0.1:PORT/x",
    "ldap://127.0.0.1:PORT/",
    "jar:https://PUBLIC!/",
    "javascript:alert(1)",
    "data:text/plain,x",
    "unix:///var/run/docker.sock",
    "wss://127.0.0.1:PORT/",
    "https://.../",
    "https://./",
    "https://a..b/",
    "https://" + "a" * 64 + ".example/",
    "https://" + "a." * 130 + "com/",
    "https://PUBLIC/" + "a" * 2048,
)

# Names that a stranger's name server may answer for: at first look they are anybody's.
REBINDING: tuple[tuple[str, list[str]], ...] = (
    ("127.0.0.1.nip.io", ["127.0.0.1"]),
    ("localtest.me", ["127.0.0.1"]),
    ("spoofed.burpcollaborator.net", ["127.0.0.1"]),
    ("both.example", ["93.184.215.14", "127.0.0.1"]),
    ("both-reversed.example", ["127.0.0.1", "93.184.215.14"]),
    ("six.example", ["2606:4700::1111", "::1"]),
    ("loopback-six.example", ["::1"]),
    ("mapped.example", ["::ffff:127.0.0.1"]),
    ("compatible.example", ["::127.0.0.1"]),
    ("nat64.example", ["64:ff9b::7f00:1"]),
    ("sixtofour.example", ["2002:7f00:1::"]),
    ("scoped.example", ["fe80::1%lo"]),
    ("zero.example", ["0.0.0.0"]),  # noqa: S104  # the system takes it for loopback
    ("unspecified.example", ["::"]),
    ("metadata.example", ["169.254.169.254"]),
    ("azure.example", ["168.63.129.16"]),
    ("alibaba.example", ["100.100.100.200"]),
    ("private.example", ["10.0.0.1"]),
    ("multicast.example", ["224.0.0.1"]),
    ("nothing.example", []),
)


def urls(port: int) -> list[str]:
    """Every URL, each with the canary's port where it can have one."""
    hosts = [*LOOPBACK, *PRIVATE, *METADATA, *IPV6]
    shapes = [shape.replace("PORT", str(port)).replace("PUBLIC", "example.com") for shape in SHAPES]
    return [*(f"https://{host}/" for host in hosts), *(f"https://{host}:{port}/" for host in hosts), *shapes]
