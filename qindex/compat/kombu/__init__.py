"""kombu and Celery without a broker: their messages are in a store that their processes share.

>>> import qindex.compat.kombu  # doctest: +SKIP
>>> app = celery.Celery(broker="qindex:///srv/data")  # doctest: +SKIP

The import registers the scheme ``qindex``. Where nothing imports it, name the transport:
``broker_transport = "qindex.compat.kombu:Transport"``.
"""

from __future__ import annotations

try:
    from kombu.transport import TRANSPORT_ALIASES
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f'{error.name} is missing: pip install "qindex[celery]"', name=error.name
    ) from error

from qindex.compat.kombu.channel import Channel
from qindex.compat.kombu.qos import QoS
from qindex.compat.kombu.transport import Transport

__all__ = ["Channel", "QoS", "Transport"]

TRANSPORT_ALIASES["qindex"] = "qindex.compat.kombu:Transport"
