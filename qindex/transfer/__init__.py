"""Messages on their way: into files and out of them, into brokers and out of them.

:func:`export_messages` and :func:`import_messages` move them between stores and files of JSON
Lines or Parquet, without loss and resumable; :func:`push` and :func:`pull` between stores and
RabbitMQ brokers.
"""

from __future__ import annotations

from qindex.transfer.exporting import ExportReport, export_messages, stream_messages
from qindex.transfer.importing import ImportReport, import_messages

__all__ = [
    "ExportReport",
    "ImportReport",
    "export_messages",
    "import_messages",
    "stream_messages",
]
