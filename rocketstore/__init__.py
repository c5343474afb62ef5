"""The message store of RocketMQ 4.9.3, byte for byte: CommitLog, ConsumeQueue, IndexFile.

>>> import rocketstore
>>> with rocketstore.open("store") as store:  # doctest: +SKIP
...     put = store.put("orders", b"body", keys="o-17", tags="new")
...     store.get("orders", 0, 0).messages[0].body
...     store.query("orders", "o-17")
"""

# First: it sees that the package below is ours.
import rocketstore._packages  # noqa: F401, I001

# Only then: this import lets later imports find the compiled modules.
import journal  # noqa: F401
from rocketstore.repair.derived_files import RebuildResult, RebuiltFile, rebuild
from rocketstore.get_result import GetResult, GetStatus
from rocketstore.format.message import BatchResult, PutResult, StoredMessage
from rocketstore.options import Options
from rocketstore.retention import Retention
from rocketstore.store import Store
from rocketstore.store import open_store as open

__all__ = [
    "BatchResult",
    "GetResult",
    "GetStatus",
    "Options",
    "PutResult",
    "RebuildResult",
    "RebuiltFile",
    "Retention",
    "Store",
    "StoredMessage",
    "open",
    "rebuild",
]
