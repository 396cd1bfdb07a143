#!/bin/sh
# The steps of a new user: from an empty folder to a Spark job that uses a connector for a store that no page mentions.
#
#     tests/new_user.sh DIST >tests/new_user.txt
#
# DIST is the folder of the wheels. The commands are those of docs/new-connector.md with another name. The user writes
# the files of this script: the connector, its tests, and a program that fills the store. tests/test_new_user.py runs
# this script and compares its output with tests/new_user.txt.
set -eu
wheels=$(cd "$1" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
ln -s "$wheels" dist
unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
# These settings shorten the output.
export PIP_QUIET=2 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTEST_ADDOPTS=--quiet

run() { printf '\n$ %s\n' "$1" && eval "$1"; }
write() { printf '\n# %s\n' "$1" && tee "$1"; }
edit() { sed -i "$2" "$1" && printf '\n# %s: %s\n' "$1" "$2"; }

run "python3 -m venv .venv"
run ". .venv/bin/activate"
run "pip install --find-links dist 'enrichkit[cli,spark,testing]'"
run "enrichkit new-connector rocksdb"
run "pip install --editable 'enrichkit-rocksdb[test]'"
run "pytest enrichkit-rocksdb"

write enrichkit-rocksdb/enrichkit_rocksdb/__init__.py <<'END'
"""The rocksdb connector of enrichkit: text keys and text values, from a RocksDB database that other programs write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enrichkit import Call, ConfigError, Connector, ConnectorConfig, Failure, FatalError, PermanentError, hookimpl


@dataclass(frozen=True, kw_only=True)
class RocksdbConfig(ConnectorConfig):
    path: str
    returns: Any = "string"

    def __post_init__(self) -> None:
        if not isinstance(self.path, str) or not self.path:
            raise ConfigError(f"RocksdbConfig.path is {self.path!r}; it must name a folder, for example '/data/users'.")


class RocksdbConnector(Connector[RocksdbConfig]):
    name = "rocksdb"
    config_class = RocksdbConfig
    capacity, batch_size, max_batch_size = 4, 200, 1000
    requires, pip = ("rocksdict",), "pip install enrichkit-rocksdb"
    key_types = (str,)
    encoding = "text"  # the values are UTF-8 bytes
    _db = None

    async def open(self) -> None:
        from rocksdict import AccessType, Options, Rdict

        how = {"options": Options(raw_mode=True), "access_type": AccessType.read_only()}
        try:
            self._db = await asyncio.to_thread(Rdict, self.config.path, **how)
        except Exception as error:
            raise FatalError(f"rocksdb cannot open its folder ({type(error).__name__}). Is it there?") from None

    async def fetch_many(self, keys: Sequence[str], call: Call) -> Mapping[str, Any]:
        good, refused = {}, {}
        for key in keys:
            try:
                good[key] = key.encode()
            except (AttributeError, UnicodeEncodeError):
                refused[key] = Failure(PermanentError("rocksdb takes only text as a key"), rejected=True)
        values = await asyncio.to_thread(self._db.get, list(good.values()))
        found = {key: value for key, value in zip(good, values, strict=True) if value is not None}
        if call.many:
            found = {key: [value] for key, value in found.items()}
        return found | refused

    async def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()


@hookimpl
def enrichkit_connector() -> type[RocksdbConnector]:
    return RocksdbConnector
END

write enrichkit-rocksdb/tests/test_contract.py <<'END'
import pytest
from enrichkit.testing import ConnectorContract
from rocksdict import Options, Rdict

from enrichkit_rocksdb import RocksdbConfig, RocksdbConnector


class TestRocksdbContract(ConnectorContract):
    @pytest.fixture
    def connector(self, tmp_path):
        Rdict(str(tmp_path), Options(raw_mode=True)).close()
        return RocksdbConnector(RocksdbConfig(path=str(tmp_path)))

    @pytest.fixture
    def known(self, tmp_path):
        values = {"u1": "Ann", "o'clock": "Bob", "ü": "Eve"}
        with Rdict(str(tmp_path), Options(raw_mode=True)) as db:
            for key, value in values.items():
                db[key.encode()] = value.encode()
        return values

    @pytest.fixture
    def missing_key(self):
        return "nobody"
END

edit enrichkit-rocksdb/pyproject.toml 's/^dependencies = \[/&"rocksdict", /'
run "pip install --editable 'enrichkit-rocksdb[test]'"
run "pytest enrichkit-rocksdb"

write fill.py <<'END'
from rocksdict import Options, Rdict

with Rdict("people.db", Options(raw_mode=True)) as db:
    db[b"u1"], db[b"u2"] = b"Ann", b"Bob"
END
run "python fill.py" # not on the page

write enrichkit.toml <<'END'
[sources.people]
type = "rocksdb"
path = "people.db"
END
run "enrichkit connectors"
run "enrichkit lint"
run "enrichkit check people u1 nobody"

write job.py <<'END'
from enrichkit import enrich, local

with local.spark() as spark:
    users = spark.createDataFrame([("u1",), ("u2",), ("u3",)], "user_id string")
    users.withColumn("name", enrich("people", "user_id")).show()
END
run "python job.py"
