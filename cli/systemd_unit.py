"""The systemd unit that runs `longbatch up`: its text and its places."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

NAME: Final = "longbatch.service"
SYSTEM_UNITS: Final = Path("/etc/systemd/system")
_SYSTEM_SETTINGS: Final = "/etc/longbatch/longbatch.env"
# `up` stops everything within 10 s.
_STOP_SECONDS: Final = 30
_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:=,+@-]+")
# For a user's own services, too: the others need user namespaces, which some systems forbid.
_HARDENING: Final = (
    "NoNewPrivileges=yes",
    "LockPersonality=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
)
# No ProtectHome: models and the program may be there. No ProtectClock or PrivateDevices: they hide GPUs.
_SYSTEM_HARDENING: Final = (
    "ProtectSystem=full",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectControlGroups=yes",
)


@dataclass(frozen=True)
class Unit:
    """A unit that runs `longbatch up`.

    Attributes:
        command: program and arguments.
        user: whose service of the system it is; None for a service of the user who installs it.
    """

    command: Sequence[str]
    user: str | None = None

    @property
    def settings_file(self) -> str:
        """The file of LONGBATCH_… variables that it reads, in systemd's notation."""
        return _SYSTEM_SETTINGS if self.user else "%E/longbatch/longbatch.env"

    def text(self) -> str:
        """Write the unit."""
        lines = ["[Unit]", "Description=Longbatch: database, broker, engine, API and workers"]
        if self.user:
            lines += ["Wants=network-online.target", "After=network-online.target"]
        lines += [
            # After a boot, an engine may load for many minutes, and `up` refuses it until it answers.
            "StartLimitIntervalSec=0",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join(map(quoted, self.command))}",
            f"EnvironmentFile=-{self.settings_file}",
        ]
        if self.user:
            # The data directory is /var/lib/longbatch: `up` takes its parent from this variable. A service
            # has callers on other machines: their webhooks reach this one only if the settings allow it.
            lines += [
                f"User={self.user}",
                "StateDirectory=longbatch",
                "StateDirectoryMode=0711",
                "Environment=XDG_DATA_HOME=%S LONGBATCH_WEBHOOKS__ALLOWED_HOSTS=[]",
            ]
        lines += [
            "Restart=on-failure",
            "RestartSec=10",
            "RestartPreventExitStatus=2",  # a wrong option: it would fail again
            "KillMode=mixed",  # `up` stops its processes itself, in order
            "KillSignal=SIGTERM",
            f"TimeoutStopSec={_STOP_SECONDS}",
            *_HARDENING,
            *(_SYSTEM_HARDENING if self.user else ()),
            "",
            "[Install]",
            f"WantedBy={'multi-user' if self.user else 'default'}.target",
        ]
        return "\n".join(lines) + "\n"


def user_units(environment: Mapping[str, str]) -> Path:
    """Return the folder of a user's own units.

    Raises:
        RuntimeError: this user has no home directory.
    """
    base = environment.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "systemd" / "user"


def quoted(argument: str) -> str:
    """Quote an argument of ExecStart, which expands % and $ also within quotes."""
    escaped = argument.replace("%", "%%").replace("$", "$$")
    if _PLAIN.fullmatch(argument):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
