"""Which module imports which, by reading them; and what importing enrichkit loads, each time in a fresh process."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import enrichkit

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
    "starlette",
    "uvicorn",
    "rich",
    "prometheus_client",
    "opentelemetry",
)
PLUGINS = (
    "enrichkit_redis",
    "enrichkit_postgres",
    "enrichkit_http",
    "enrichkit_mariadb",
    "enrichkit_sqlite",
    "enrichkit_llm",
)

PACKAGE = Path(enrichkit.__file__).parent
ROOT_MODULES_MAX = 14

ROOT = {
    "columnar",
    "errors",
    "functions",
    "hookspecs",
    "interface",
    "leases",
    "limits",
    "options",
    "outcome",
    "plan",
    "secrets",
    "tls",
    "version",
}
"""Modules at the root that every side may import; they import only each other."""

MAY_IMPORT = {
    "hookspecs": {*ROOT, "observe.stats"},  # what a hook is handed
    "plan": {*ROOT, "observe.sender"},  # the address of the monitor
    "driver": {*ROOT, "sources", "values", "observe.active", "observe.hooks"},
    "sources": {*ROOT} - {"plan", "outcome"},
    "values": {"interface", "columnar", "errors"},
    "batches": {*ROOT, "driver", "journal", "sources", "values", "reports.text", "worker.keys"},
    "worker": {*ROOT, "engine", "values", "observe.task", "journal"},
    "options": {*ROOT, "journal.config"},
    "journal.config": {"errors"},
    "journal": {"errors", "columnar", "interface"},
    "engine": {
        "interface",
        "leases",
        "limits",
        "outcome",
        "options",
        "errors",
        "functions",
        "observe.stats",
        "observe.clock",
    },
    "observe.stats": set(),
    "observe.clock": set(),
    "observe.sender": set(),
    "observe.hooks": {"hookspecs", "interface", "observe.stats"},
    "observe.task": {
        "interface",
        "plan",
        "engine",
        "observe.stats",
        "observe.clock",
        "observe.sender",
        "observe.hooks",
    },
    "observe": {"errors", "outcome", "reports.model"},
    "reports": {*ROOT, "driver", "sources", "engine", "values"},
    "shipping": {"errors", "version"},
    "sql": {*ROOT, "values"},
    "plugin": {*ROOT, "values"},
}
"""
Each side, or module that stands for itself, and what it may import besides itself: sides, and single modules of sides.

`local`, `testing` and `cli` use all of the others. `observe` has two halves: the modules with lines of their own run on
workers, below the engine or around it, and the rest runs on the driver.
"""

SHIPPED_CLOSURE = ("driver.udf", "worker.entry")
"""The driver makes this import but does not run it: the closure that Spark ships runs on a worker."""

ON_WORKERS = {"observe.task", "observe.clock", "observe.hooks", "observe.sender", "observe.stats"}
"""The modules of `observe` that a task needs."""


def imports_of(module: str, path: Path, *, for_types: bool) -> Iterator[str]:
    """Yield the modules of enrichkit that *module* imports, inside functions too; for type hints only if asked."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    tree = ast.parse(path.read_text())
    hints = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in hints and not for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (name.name.removeprefix("enrichkit.") for name in node.names if name.name[:10] == "enrichkit.")
        elif isinstance(node, ast.ImportFrom):
            origin = (node.module or "").split(".") if node.module else []
            if node.level:
                origin = [*package[: len(package) - node.level + 1], *origin]
            elif origin[0] == "enrichkit":
                origin = origin[1:]
            else:
                continue
            for name in node.names:
                found = [*origin, name.name]
                is_module = (PACKAGE.joinpath(*found).with_suffix(".py")).exists()
                yield ".".join(found if is_module else origin)


def modules() -> dict[str, Path]:
    """Return the modules of enrichkit by name, without the `enrichkit.` before it."""
    found = {
        ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): file
        for file in PACKAGE.rglob("*.py")
        if "template" not in file.parts
    }
    return {name: file for name, file in found.items() if name not in ("__init__", "__main__")}


def test_the_root_has_few_modules() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= ROOT_MODULES_MAX


def test_the_map_has_each_folder_and_the_list_of_the_engine_each_module() -> None:
    contributing = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    folders = {file.parent.name for file in PACKAGE.glob("*/__init__.py")}
    assert {folder for folder in folders if f"`enrichkit/{folder}/`" not in contributing} <= {"testing", "cli"}
    engine = ast.get_docstring(ast.parse((PACKAGE / "engine/__init__.py").read_text())) or ""
    listed = [line.split()[0] for line in engine.splitlines() if line.startswith("    ")]
    assert sorted(listed) == sorted(file.name for file in (PACKAGE / "engine").glob("[!_]*.py"))


def test_imports_go_one_way() -> None:
    """Also those for type hints: a module that names a type of another has to be read together with it."""
    wrong = []
    for module, path in modules().items():
        side = module.partition(".")[0]
        name = module if module in MAY_IMPORT else side
        allowed = MAY_IMPORT.get(name, ROOT if side in ROOT else None)
        for imported in imports_of(module, path, for_types=True):
            if allowed is None or imported == "" or any(is_in(imported, other) for other in (name, *allowed)):
                continue
            if (module, imported) != SHIPPED_CLOSURE:
                wrong.append(f"{module} imports {imported}")
    assert [] == wrong


def is_in(module: str, other: str) -> bool:
    """Whether *module* is *other*, or a part of it."""
    return f"{module}.".startswith(f"{other}.")


@pytest.mark.parametrize("module", ["observe.stats", "observe.clock", "observe.sender"])
def test_what_counts_and_pushes_needs_the_standard_library_only(module: str) -> None:
    tree = ast.parse(modules()[module].read_text())
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    names |= {node.module or "." for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert set() == {name.partition(".")[0] for name in names} - sys.stdlib_module_names


@pytest.mark.slow
def test_a_worker_reaches_only_its_half_of_observe() -> None:
    """Whatever the code of a worker imports, inside functions too: neither server, page nor view are among it."""
    found: set[str] = set()
    waiting = ["worker.entry"]
    while waiting:
        module = waiting.pop()
        if module in modules() and module not in found:
            found.add(module)
            waiting += imports_of(module, modules()[module], for_types=False)
    assert ON_WORKERS == {module for module in found if is_in(module, "observe")}


def test_a_worker_loads_nothing_that_only_the_driver_needs() -> None:
    """Neither what plans, serves or shows, although `import enrichkit` gives all these names."""
    here = {"enrichkit.observe", "enrichkit.observe.totals", *(f"enrichkit.{name}" for name in ON_WORKERS)}
    sides = ("driver", "sources", "reports", "batches", "shipping", "cli", "local", "testing", "observe")
    names = [f"enrichkit.{module}" for module in modules() if module.partition(".")[0] in sides]
    packages = ("starlette", "uvicorn", "rich", "prometheus_client", "opentelemetry")
    program = "import enrichkit.worker.entry, enrichkit.worker.task"
    assert set(loaded_by(program, (*names, *packages))) <= here


def test_each_public_name_is_that_of_its_module() -> None:
    """What a type checker reads in `enrichkit/__init__.py` is what a program gets."""
    for node in ast.walk(ast.parse((PACKAGE / "__init__.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            for name in node.names:
                assert getattr(enrichkit, name.name) is getattr(import_module(f"enrichkit.{node.module}"), name.name)
    assert set(enrichkit.__all__) <= set(dir(enrichkit))
    with pytest.raises(AttributeError, match=r"^module 'enrichkit' has no attribute 'enrichh'$"):
        enrichkit.enrichh  # noqa: B018


def test_no_modules_import_each_other() -> None:
    """Neither do they name each other's types."""
    root = {"__init__": PACKAGE / "__init__.py"}
    graph = {
        module: {name or "__init__" for name in imports_of(module, path, for_types=True)} - {module}
        for module, path in (modules() | root).items()
    }
    graph["driver.udf"].remove("worker.entry")  # see `SHIPPED_CLOSURE`
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


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
    assert loaded_by("import enrichkit.plugin") == []


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


@pytest.mark.parametrize("module", ["bridge", "run", "engine", "records", "loop", "cache"])
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
        from enrichkit.worker.entry import arrow_batches
        from enrichkit.options import Options
        from enrichkit.plan import Plan
        from enrichkit.testing.scripted import ScriptedConfig, ScriptedConnector

        class Source(ScriptedConnector):
            def __init__(self, config):
                super().__init__()

        plan = Plan(
            source="scripted", connector=Source, config=ScriptedConfig(), capacity=4, batch_size=2, window=100,
            options=Options(), value_type=pa.string(), default_values={}, engine_key="e", cache_key="c",
        )
        batches = iter([pa.array([1, 2**53 + 1, None]), pa.array([], pa.int64()), pa.array([2, 1])])
        values = pa.concat_arrays(list(arrow_batches(pickle.dumps(plan), batches))).to_pylist()
        assert values == ["v1", "v9007199254740993", None, "v2", "v1"], values
    """
    assert loaded_by(program, ("enrichkit.worker.pandas_arrow", "enrichkit.worker.keys")) == ["enrichkit.worker.keys"]


def test_the_public_testing_module_loads_neither_spark_nor_pandas() -> None:
    assert loaded_by("import enrichkit.testing, enrichkit.testing.fixtures", ("pyspark", "pandas")) == []
