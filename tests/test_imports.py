"""What importing enrichkit loads, each time in a fresh process."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAVY = (
    "pyarrow",
    "pandas",
    "numpy",
    "pyspark",
    "msgspec",
    "asyncmy",
    "asyncpg",
    "redis",
    "hiredis",
    "pyreqwest",
    "uvloop",
)
PLUGINS = ("enrichkit_redis", "enrichkit_postgres", "enrichkit_http", "enrichkit_mariadb", "enrichkit_sqlite")


def loaded_by(program: str, names: tuple[str, ...] = (*HEAVY, *PLUGINS)) -> list[str]:
    """Run *program* and return which of *names* it has loaded."""
    program = f"{textwrap.dedent(program)}\nimport sys\nprint(*[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_enrichkit_loads_nothing_heavy() -> None:
    assert loaded_by("import enrichkit") == []


def test_all_public_names_are_there_without_anything_heavy() -> None:
    assert loaded_by("import enrichkit\nassert all(hasattr(enrichkit, name) for name in enrichkit.__all__)") == []


def test_options_secrets_and_sources_need_nothing_heavy() -> None:
    program = """
        import enrichkit
        from enrichkit import Cache, ConnectorConfig, Options, Retry, Secret
        enrichkit.register("users", ConnectorConfig())
        Options(retry=Retry(attempts=5), cache=Cache(ttl=60))
        enrichkit.connectors()
    """
    assert loaded_by(program) == []


def test_a_wrong_call_of_enrich_is_refused_without_a_session() -> None:
    program = """
        import enrichkit
        try:
            enrichkit.enrich("redis", "user_id", timeuot=1)
        except ValueError as error:
            assert "Did you mean 'timeout'?" in str(error)
        else:
            raise AssertionError
    """
    assert "pyspark" not in loaded_by(program)


@pytest.mark.parametrize("module", ["handover", "run", "dispatch", "calls", "loop", "cache"])
def test_the_engine_knows_neither_spark_nor_pandas_nor_arrow(module: str) -> None:
    names = ("pyspark", "pandas", "numpy", "pyarrow", *PLUGINS)
    assert loaded_by(f"import enrichkit.engine.{module}", names) == []


def test_a_worker_of_the_arrow_carrier_needs_no_pandas() -> None:
    """pyarrow loads pandas by itself where it is installed, so here it cannot be."""
    program = """
        import pickle
        import sys

        class Absent:
            def find_spec(self, name, *rest):
                if name.partition(".")[0] == "pandas":
                    raise ModuleNotFoundError(name, name=name)

        sys.meta_path.insert(0, Absent())
        import pyarrow as pa
        from enrichkit.worker import arrow_batches
        from enrichkit.options import Options
        from enrichkit.plan import Plan
        from enrichkit.testing.scripted import ScriptedConfig, ScriptedConnector

        class Source(ScriptedConnector):
            def __init__(self, config):
                super().__init__()

        plan = Plan(
            source="scripted", connector=Source, config=ScriptedConfig(), capacity=4, batch_size=2, window=100,
            options=Options(), value_type=pa.string(), fallbacks={}, engine_key="e", cache_key="c",
        )
        batches = iter([pa.array([1, 2**53 + 1, None]), pa.array([], pa.int64()), pa.array([2, 1])])
        values = pa.concat_arrays(list(arrow_batches(pickle.dumps(plan), batches))).to_pylist()
        assert values == ["v1", "v9007199254740993", None, "v2", "v1"], values
    """
    assert loaded_by(program, ("enrichkit.pandas_border", "enrichkit.keys")) == ["enrichkit.keys"]


def test_the_public_testing_module_loads_neither_spark_nor_pandas() -> None:
    assert loaded_by("import enrichkit.testing, enrichkit.testing.fixtures", ("pyspark", "pandas")) == []
