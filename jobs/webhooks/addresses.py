"""Which IP addresses belong to the public internet."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

# Every range that holds no public servers. Written out because `is_global` of Python's ipaddress accepts many
# of them and changes between releases. Source: IANA special-purpose registries unless noted.
_REFUSED_IPV4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private
            "100.64.0.0/10",  # carrier-grade NAT; also a cloud's metadata service
            "127.0.0.0/8",  # loopback
            "168.63.129.16/32",  # Azure's host services
            "169.254.0.0/16",  # link-local, the metadata services of most clouds
            "172.16.0.0/12",  # private
            "192.0.0.0/24",  # protocol assignments
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, broadcast
        ),
    )
)
# Only this is routed. Outside it lie loopback, IPv4-compatible (::/96) and IPv4-translated (::ffff:0:0:0/96),
# NAT64 (64:ff9b::/96, 64:ff9b:1::/48), discard-only, SRv6 (5f00::/16), unique local (fc00::/7), link-local
# (fe80::/10), site-local (fec0::/10) and multicast (ff00::/8).
_ROUTED_IPV6: Final = IPv6Network("2000::/3")
_REFUSED_IPV6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, with Teredo (2001::/32), which carries an IPv4 address
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4, which carries an IPv4 address
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    )
)


def is_allowed_address(ip: str | IPv4Address | IPv6Address) -> bool:
    """Return True if a public server can have the address.

    IPv4 in IPv6 is unwrapped if mapped; every other form of it is refused.

    Raises:
        ValueError: it is not an IP address.
    """
    address = ip_address(ip)
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            is_routed = address.scope_id is None and address in _ROUTED_IPV6
            return is_routed and not any(address in network for network in _REFUSED_IPV6)
        address = address.ipv4_mapped
    return not any(address in network for network in _REFUSED_IPV4)
