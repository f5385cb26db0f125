"""Messages of the OpenSSH client; its exit code is 255 where the connection itself failed."""

from __future__ import annotations

from functools import partial

from orchestrator.diagnosis.signature import Role, Signature, signature

_root = partial(signature, Role.ROOT)
_symptom = partial(signature, Role.SYMPTOM)
_SSH = "OpenSSH 9"
_NODE = r"(?:(?:^|\s)(?!(?:orch|error|warning): )(?P<node>[\w.-]+): (?:\S+: )?)?"
"""Before the messages of orch itself: the node, unless it is several, and its address."""

SSH: tuple[Signature, ...] = (
    _root("ssh-key-changed", r"REMOTE HOST IDENTIFICATION HAS CHANGED|" + _NODE + r"the host key of \S+ has changed: it is", "config", "the host key of a node is not the one that is known: the node was reinstalled, or somebody answers in its place", "do not log in: ask the admin of the node whether its key was changed, and for the new fingerprint", "ssh-keygen -R NODE, then ssh NODE and confirm that fingerprint: only if the admin has changed the key", literal=("REMOTE HOST IDENTIFICATION HAS CHANGED", "the host key of "), retry="never",
        sample=("@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @", "  n0: the host key of [127.0.0.10]:22 has changed: it is ssh-ed25519 SHA256:x, but /root/.ssh/known_hosts line 1 has another one (1 of 2)"), near="n0: the host key of n0 is unknown: ssh-ed25519 SHA256:x", source="ganeti#1608; orch"),
    _root("ssh-host-key", r"Host key verification failed|" + _NODE + r"the host key of \S+ is (?:unknown:|not certified by|revoked \()", "config", "the host key of a node is unknown, revoked or has changed", "ssh-keyscan NODE | ssh-keygen -lf -: shows the fingerprints, to compare with those that the admin of the node gives you", "ssh NODE: log in once by hand, and confirm the same fingerprint", literal=("Host key verification failed", "the host key of "), follows=("ssh-key-changed",),
        sample=("Host key verification failed.", "orch: error: n0: the host key of n0 is unknown: ssh-ed25519 SHA256:x"), near="Host key verification succeeded", source="ceph-deploy#221; orch"),
    _root("ssh-refused-login", r"Permission denied \([a-z,-]*(?:publickey|password|keyboard-interactive)|" + _NODE + r"no key was accepted \(", "config", "a node refused the login: the key or the user is wrong", "ssh -v NODE true: shows which keys were offered", "ssh-copy-id NODE, or user: and ssh key in the inventory", literal=("Permission denied (", "no key was accepted ("), sample=("train@n0: Permission denied (publickey,password).", "  n0: train@10.0.0.1: no key was accepted (1 refused)", "orch: error: n[0-1]: no key was accepted (2 refused) (2 of 2)"), near="Permission denied: '/data'", source=_SSH),
    _root("ssh-too-many", r"kex_exchange_identification: (?:read: )?Connection (?:closed by remote host|reset by peer)", "network", "sshd of a node refused another connection at once (MaxStartups, fail2ban)", "limit the connections at a time: fanout in the inventory, pdsh -f 8", "an admin raises MaxStartups in sshd_config", literal="kex_exchange_identification:",
        sample=("kex_exchange_identification: Connection closed by remote host", "kex_exchange_identification: read: Connection reset by peer"), near="kex_exchange_identification finished", source="serverfault 1015547"),
    _root("ssh-unreachable", r"ssh: connect to host (?P<node>\S+) port (?P<port>\d+): (?P<reason>.+)", "network", "{node} cannot be reached by SSH at port {port}: {reason}", "ping {node}; nc -vz {node} {port}", "systemctl status sshd: on {node}", literal="ssh: connect to host", sample="ssh: connect to host n1 port 22: Connection timed out", near="ssh: connected to host n1 port 22", source=_SSH, retry="elsewhere"),
    _root("ssh-unknown-host", r"Could not resolve hostname (?P<node>[^\s:]+)|getaddrinfo.*Name or service not known|Temporary failure in name resolution", "config", "the name of a host cannot be resolved", "getent hosts NAME: run it on the node", "write the address of the node in the inventory", literal=("Could not resolve hostname", "Name or service not known", "Temporary failure in name resolution"),
        sample=("ssh: Could not resolve hostname n9: Name or service not known", "socket.gaierror: [Errno -3] Temporary failure in name resolution"), near="resolved hostname n9", source=f"{_SSH}; glibc"),
    _symptom("ssh-255", r"(?:exit(?:ed)? (?:code|status)|exit code|Exited with exit code|exits with return code =) 255\b", "network", "the connection to a node failed or was lost (exit code 255 of ssh)", "ssh NODE true: shows the error itself", literal=("exit code 255", "exit status 255", "return code = 255", "exited code 255"), follows=("ssh-host-key", "ssh-refused-login", "ssh-too-many", "ssh-unreachable", "ssh-unknown-host", "ssh-key-changed"),
        sample=("pdsh@login: n1: ssh exited with exit code 255", "[launch.py:341] process exits with return code = 255"), near="ssh exited with exit code 1", source=f"{_SSH}; pdsh"),
)  # fmt: skip
