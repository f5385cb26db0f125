"""Which environment variables are never shown: decided by name alone, in one place."""

from __future__ import annotations

import re

REDACTED = "<redacted>"

# TOKENIZERS_PARALLELISM is a setting that people look for, not a token.
_SECRET = re.compile(
    r"SECRET|TOKEN(?!IZ)|PASSWORD|PASSWD|(?:^|_)PASS(?:$|_)|(?:^|_)AUTH$|(?:^|_)PAT$|PASSPHRASE|CREDENTIAL|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY",
    re.IGNORECASE,
)


def is_secret(name: str) -> bool:
    """Tell whether the value of the variable `name` must not be shown or stored in clear."""
    return _SECRET.search(name) is not None
