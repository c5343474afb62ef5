"""Jobs on what fsspec reads: the same as on the directory itself, or one line that says why not.

``local`` is fsspec's second name for local files, which this project does not know to be local.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("fsspec")

import rocketstore
from journal.errors import StorageError, UsageError
from pyspark_qindex.filesystem import RemoteFileSystem, expand, file_system, local_path
from pyspark_qindex.jobs.audit import audit
from pyspark_qindex.jobs.migrate import migrate
from pyspark_qindex.jobs.stats import stats
from pyspark_qindex.jobs.transfer import export_stores, find_exports, import_stores
from qindex.view.reader import StoreReader
from tests.cli.support import run
from tests.spark.faults import FAULTS
from tests.spark.fleet import make_plain, make_rocket, make_stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]


def url(path: Path) -> str:
    return f"local://{path}"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of each kind, one of them damaged, one with delays and consumers."""
    root = tmp_path_factory.mktemp("places")
    make_plain(root / "plain", count=60)
    make_stored(root / "stored", count=6)
    FAULTS["entry_checksum"].plant(FAULTS["entry_checksum"].make(root / "damaged"))
    make_rocket(root / "rocket", count=120)
    with rocketstore.open(root / "rocket", background=False) as store:
        store.commit_offset("workers", "orders", 1, 3)
    return root


def same_but_for_the_place(frame: DataFrame, root: Path) -> list[str]:
    rows = [json.dumps(row.asDict(), default=str) for row in frame.collect()]
    return sorted(row.replace(url(root), str(root)) for row in rows)


def test_audit(spark: SparkSession, places: Path) -> None:
    here, there = audit(spark, [str(places)]), audit(spark, [url(places)])
    assert here.summary["stores"] == there.summary["stores"] == 4
    wanted = same_but_for_the_place(here["findings"], places)
    assert wanted
    assert same_but_for_the_place(there["findings"], places) == wanted
    assert all(row.store.startswith("local://") for row in there["findings"].collect())
    assert same_but_for_the_place(there["counts"], places) == same_but_for_the_place(
        here["counts"], places
    )
    for result in (here, there):
        result.finish()


def test_stats(spark: SparkSession, places: Path) -> None:
    result = stats(spark, [url(places)])
    queues = {(row.store, row.queue): row.messages for row in result["queues"].collect()}
    assert queues[url(places / "plain"), "orders"] == 40
    assert queues[url(places / "stored"), "big"] == 4
    assert queues[url(places / "rocket"), "orders/0"] == 20
    assert result["files"].where(f"store = '{url(places / 'stored')}' and live > 0").count() == 3
    (lag,) = result["lag"].collect()
    assert (lag.store, lag.queue, lag.committed) == (url(places / "rocket"), "orders/1", 3)
    result.finish()


def test_export(spark: SparkSession, places: Path, tmp_path: Path) -> None:
    paths = [url(places / name) for name in ("plain", "stored", "rocket")]
    outcome = export_stores(spark, paths, str(tmp_path / "there"))
    assert (outcome.summary["messages"], outcome.summary["damaged"]) == (72 + 6 + 120, 0)
    result = import_stores(spark, [f"file://{tmp_path / 'there'}"], f"file://{tmp_path / 'new'}")
    made = Path(result.targets[url(places / "stored")])
    assert made == tmp_path / "new" / "stores" / "stored"
    for name, queue in (("stored", "big"), ("plain", "orders")):
        wanted = [row.body for row in StoreReader(places / name).queue(queue).entries()]
        found = StoreReader(tmp_path / "new" / "stores" / name).queue(queue).entries()
        assert [row.body for row in found] == wanted


def test_migrate(spark: SparkSession, places: Path, tmp_path: Path) -> None:
    """How far delayed messages were delivered is read where the store is."""
    config = places / "rocket" / "config"
    config.mkdir(exist_ok=True)
    (config / "delayOffset.json").write_text('{"offsetTable":{2:1}}')
    result = migrate(spark, [url(places / "rocket")], str(tmp_path))
    (left,) = result["left_behind"].collect()
    assert (left.queue, left.what, left.value) == ("orders/1", "consumer offset", "workers: 3")
    rows = [row.asDict() for row in result["moves"].collect()]
    result.finish()
    assert len(rows) == 120
    delayed = [row for row in rows if row["queue"] == "SCHEDULE_TOPIC_XXXX/1"]
    assert [(row["reason"], row["what"]) for row in delayed] == [
        ("delivered", "it was put again where it belongs"),
        (None, "its delay (level 2) is not carried over"),
    ]


@pytest.mark.usefixtures("spark")
def test_what_has_to_be_local_says_so(places: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    cases: list[tuple[tuple[object, ...], str]] = [
        (("build-index", url(places / "rocket"), "--out", out), "works on local paths alone"),
        (("import", url(places), "--out", out), f"{url(places)}: an export must be a local path"),
        (("audit", places, "--out", "memory://x"), "memory://x: --out must be a local path"),
        (("audit", "nowhere://x", "--out", out), "nowhere://: Protocol not known: nowhere"),
        (("audit", "memory://nothing", "--out", out), "memory://nothing: no such directory"),
        (("audit", "http://127.0.0.1:1/x", "--out", out), "http://: has no directories"),
    ]
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for arguments, wanted in cases:
            result = run("pipeline", *arguments)
            (line,) = result.complaints
            assert (result.code, wanted in line) == (2, True), line
    finally:
        os.chdir(before)
    assert not any(name.startswith("memory") for name in os.listdir(tmp_path))


def test_local_paths() -> None:
    assert local_path("file:///srv/x/../y", "it") == "/srv/y"
    assert local_path("x", "it") == os.path.abspath("x")
    with pytest.raises(UsageError, match="s3://b: it must be a local path"):
        local_path("s3://b", "it")
    with pytest.raises(UsageError, match="s3://bucket/export: an export must be"):
        find_exports(["s3://bucket/export"])


class Refusing:
    """An fsspec file system whose service refuses with errors of its own."""

    root_marker = ""

    class DeniedError(Exception):
        pass

    def __init__(self, **given: Any) -> None:
        self.given = given

    @classmethod
    def _get_kwargs_from_urls(cls, path: str) -> Row:
        return {"host": path.split("/")[2], "port": 22}

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.split("/", 3)[3]

    def glob(self, _key: str, **_given: Any) -> list[str]:
        raise self.DeniedError("access\ndenied")

    ls = info = glob

    def get_file(self, _key: str, _target: str) -> None:
        raise self.DeniedError("access\ndenied")


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    fsspec.register_implementation("refusing", Refusing, clobber=True)


@pytest.mark.usefixtures("refusing")
def test_hosts_in_urls_and_errors_of_services() -> None:
    place, found, prefix = expand("refusing://disk7/srv/x/", {"port": "2222"})
    assert place == ("refusing", {"host": "disk7", "port": "2222"})
    assert (prefix, found) == ("refusing://disk7", ["/srv/x"])
    with pytest.raises(StorageError, match="can't be listed: DeniedError: access denied"):
        expand("refusing://disk7/srv/*", {})
    fs = file_system(place)
    with pytest.raises(OSError, match="DeniedError: access denied") as caught:
        fs.listdir("/srv/x")
    assert caught.value.filename == "/srv/x"
    with pytest.raises(OSError, match="DeniedError: access denied"):
        fs.stat("/srv/x")
    with pytest.raises(OSError, match="DeniedError: access denied"):
        fs.open("/srv/x", os.O_RDONLY)


def test_a_remote_store_is_not_written_and_copies_go(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    fs = RemoteFileSystem("local", {})
    fd = fs.open(tmp_path / "f", os.O_RDONLY | os.O_CLOEXEC)
    assert fs.read(fd, 9) == b"abc"
    fs.close(fd)
    with pytest.raises(OSError, match="only read"):
        fs.open(tmp_path / "f", os.O_RDWR)
    with pytest.raises(OSError, match="only read"):
        fs.unlink(tmp_path / "f")
    with pytest.raises(OSError, match="only read"):
        fs.rename(tmp_path / "f", tmp_path / "g")
    with pytest.raises(OSError, match="only read"):
        fs.mkdir(tmp_path / "d")
    with pytest.raises(OSError, match="only read"):
        fs.rmdir(tmp_path)
    copies = Path(fs._directory)
    assert len(list(copies.iterdir())) == 1
    del fs
    assert not copies.exists()
    assert (tmp_path / "f").read_bytes() == b"abc"
