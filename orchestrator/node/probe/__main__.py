"""
Print the facts of this node as one JSON object.

    python3 <bundle>/orchestrator/node/probe/__main__.py [--root FOLDER] [REQUEST]

REQUEST is a JSON object with `node`, `names`, `folders` and `code` (collect.py), each of them optional.
"""

from __future__ import annotations

import os
import sys

# Started by path, not installed: import the modules of the bundle, and no module of this folder as a top-level one, such as code.
sys.path[0] = os.path.abspath(__file__).rpartition("/orchestrator/")[0]

from orchestrator.node.probe.serve import print_facts


def main() -> int:
    import json  # after the path is set

    words = sys.argv[1:]
    root = "/"
    if words[:1] == ["--root"] and len(words) > 1:
        root, words = words[1], words[2:]
    try:
        request = json.loads(words[0]) if words else {}
    except ValueError:
        request = None
    if not isinstance(request, dict) or len(words) > 1:
        sys.stderr.write(__doc__ or "")
        return 2
    print_facts(request, root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
