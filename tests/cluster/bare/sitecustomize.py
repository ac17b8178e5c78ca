"""Python as in an image with kopf alone: no client libraries are found, which take longer to load than kopf itself.

It is on the path of the processes that tests start on the sandbox: operators would try to log in by all of them.
"""

import sys

sys.modules.update(dict.fromkeys(["kubernetes", "kubernetes_asyncio", "pykube"]))  # type: ignore[arg-type]
