"""Which hosts and ports programs in a sandbox may reach, and which addresses their names may have.

Pure decisions for `sandbox.proxy`: no sockets. An allowed name must not become a door to the machine it runs
on, so what a name resolves to is judged too.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_DEFAULT_PORTS = frozenset({80, 443})
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the list."""

    host: str
    """Lower-case name or address; of a wildcard what follows the `*.`."""
    ports: frozenset[int]
    """Ports it opens."""
    wildcard: bool
    """Whether it means every name below `host` instead of `host` itself."""

    def matches(self, host: str, port: int) -> bool:
        """Whether a normalised host and port are meant."""
        if port not in self.ports:
            return False
        return host.endswith("." + self.host) if self.wildcard else host == self.host


def parse_port(text: str) -> int:
    """1 to 65535; raises ValueError."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text[:20]!r} is not a port")
    return int(text)


def normal_host(text: str) -> str:
    """A host name or address in the one form compared here. Raises ValueError for anything doubtful.

    IPv6 stands in brackets in requests; here without. Forms that only some resolvers take for an address
    (`127.1`, `0x7f000001`, `2130706433`) are refused: what is compared must be what is connected to."""
    if text.startswith("[") and text.endswith("]"):
        address = text[1:-1]
        if "%" in address or ":" not in address:
            raise ValueError(f"{text[:60]!r} is not an address")
        return str(ipaddress.IPv6Address(address))
    name = text.lower()
    labels = name.split(".")
    if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError(f"{text[:60]!r} is not a host name")
    if labels[-1][0].isdigit():  # no top-level domain starts with a digit
        return str(ipaddress.IPv4Address(name))
    return name


def split_host_port(text: str, default_port: int | None) -> tuple[str, int]:
    """`host:port`, `[v6]:port`, or with a default only `host`. Raises ValueError."""
    match = re.fullmatch(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([^:]*))?", text, re.DOTALL)
    if not match or (match[2] is None and default_port is None):
        raise ValueError(f"{text[:60]!r} is not HOST:PORT")
    port = default_port if match[2] is None else parse_port(match[2])
    assert port is not None
    return normal_host(match[1]), port


def parse_rule(entry: str) -> Rule:
    """One entry of `SandboxSpec.allowed_hosts`. Raises ValueError that says what is wrong with it."""
    wildcard = entry.startswith("*.")
    try:
        host, port = split_host_port(entry.removeprefix("*."), 0)
    except ValueError as error:
        hint = "; give HOST, HOST:PORT, *.DOMAIN or [IPV6]:PORT"
        raise ValueError(f"allowed host {entry[:80]!r}: {error}{hint}") from None
    if wildcard and (address_of(host) or "." not in host):
        raise ValueError(f"allowed host {entry[:80]!r}: a wildcard needs a domain such as *.example.org")
    return Rule(host, frozenset({port}) if port else _DEFAULT_PORTS, wildcard)


def address_of(host: str) -> Address | None:
    """The address that a normalised host is, if it is one."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class AllowList:
    """The rules of one sandbox."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)

    @classmethod
    def parse(cls, entries: Sequence[str]) -> Self:
        """From `SandboxSpec.allowed_hosts`. Raises ValueError."""
        return cls([parse_rule(entry) for entry in entries])

    def rule_for(self, host: str, port: int) -> Rule | None:
        """The rule that lets a normalised host and port through; one for the name itself goes first."""
        found = [rule for rule in self._rules if rule.matches(host, port)]
        return min(found, key=lambda rule: rule.wildcard, default=None)


def address_problem(rule: Rule, address: Address) -> str | None:
    """Why an address that an allowed name has may not be connected to, or None.

    - An address that is itself in the list is always fine, and so is loopback for `localhost`.
    - A name in the list may have a private address (a package mirror inside), but not one of this machine
      or of its cloud's metadata service.
    - A name that only a wildcard covers must be public: whoever runs that domain chooses its addresses."""
    if not rule.wildcard and (address_of(rule.host) or rule.host == "localhost"):
        return None
    real = _embedded(address)
    here = real.is_loopback or real.is_link_local or real.is_unspecified or real.is_multicast
    if here or real.is_reserved:
        return f"{address} is loopback, link-local or reserved; allow the address itself if it is meant"
    if rule.wildcard and not real.is_global:
        return f"{address} is private; allow the name itself instead of a wildcard if it is meant"
    return None


def _embedded(address: Address) -> Address:
    """The IPv4 address that an IPv6 address stands for, where it does."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        return address.ipv4_mapped or address.sixtofour or address
    return address
