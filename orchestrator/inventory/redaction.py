"""The environment variables that hold secrets, by name alone."""

from __future__ import annotations

import re

REDACTED = "<redacted>"

# Exceptions, which are settings that users need to see: TOKENIZERS_PARALLELISM, MAX_TOKENS, TOKENS_PER_BATCH, NCCL_IB_PKEY
# (a partition), AWS_REGION. No NCCL variable is a secret.
_SECRET = re.compile(
    r"^(?!NCCL_)(?:"
    r".*(?:SECRET|(?<!MAX_)(?<!MIN_)(?<!NUM_)TOKEN(?!IZ|S_PER)|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|CREDENTIAL|AUTHORIZATION"
    r"|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CONNECTION_?STRING|WEBHOOK|COOKIE|JWT)"
    r"|.*(?:^|_)PASS(?:$|_)"
    r"|.*(?:^|_)(?:KEYS?|AUTH|PAT|PWD|DSN|DATABASE_URL)$|SSHPASS$"
    r"|AWS_(?!(?:DEFAULT_)?REGION$)"
    r")",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """True if the value of the variable `name` must not be printed or stored."""
    return _SECRET.match(name) is not None
