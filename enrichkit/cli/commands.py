"""All commands, with their arguments and help texts. Results go to stdout, errors to stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from ..errors import ConfigError, EnrichkitError
from ..local.process import LocalServerError
from ..options import MOST_CAPACITY
from ..reports.text import plural
from ..secrets import redact
from ..version import VERSION
from .arguments import ArgumentError, options_of

__all__ = ["enrichkit"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Commands(click.Group):
    """A group of commands that reports an exception as one short message without a traceback, with exit code 1."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            sys.exit(super().main(*args, **{**extra, "standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:  # its message is the help text, which is already laid out
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            from .output import show_error

            show_error(error)
            sys.exit(error.exit_code)
        except click.Abort:
            click.echo("Aborted!", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except ArgumentError as error:
            raise click.UsageError(str(error)) from error
        except (EnrichkitError, LocalServerError) as error:
            raise click.ClickException(redact(str(error))) from error
        except Exception as error:  # a bug of enrichkit or of a plugin
            if ctx.params["traceback"]:
                raise
            raise click.ClickException(
                f"{type(error).__name__}: {redact(str(error))}. This is a bug in enrichkit or in a plugin. To see "
                "where, run enrichkit --traceback with the same command."
            ) from error


def _sources(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from ..sources.config import source_names

    try:
        return [name for name in source_names() if name.startswith(incomplete)]
    except ConfigError:  # the TOML file is wrong, but completion cannot show a message
        return []


def _options(_: click.Context, __: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any]:
    try:
        return options_of(texts)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from error


def _with_source(function: Function) -> Function:
    return click.argument("name", shell_complete=_sources)(function)


def _with_options(function: Function) -> Function:
    return click.option(
        "-o",
        "--option",
        "options",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_options,
        help="An option of enrich(), for example timeout=0.5, on_error=null or retry.attempts=5. Can be repeated.",
    )(function)


def _with_type(function: Function) -> Function:
    return click.option(
        "-t",
        "--type",
        "types",
        metavar="TYPE[,TYPE...]",
        help="Spark types of the key columns, for example bigint or string,date. Default: string for each column.",
    )(function)


def _with_json(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")(function)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit codes: 0 success, 1 the command failed, 2 the command line is wrong.",
)
@click.option("--traceback", is_flag=True, help="Show the Python traceback of a bug.")
@click.version_option(VERSION, prog_name="enrichkit")
def enrichkit(traceback: bool) -> None:
    """Check and measure the sources that enrich() looks keys up in."""


@enrichkit.command(short_help="List the connectors.")
@_with_json
def connectors(as_json: bool) -> None:
    """List the installed connectors and what each of them can do."""
    from .inventory import inventory

    _print(inventory(), as_json)


@enrichkit.command(short_help="Open a source and look up keys.")
@_with_source
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@_with_type
@click.option(
    "--spark",
    is_flag=True,
    help="Look the keys up in a Spark job on this machine. The job also decodes the values as the declared type.",
)
@_with_options
@_with_json
def check(
    name: str, keys: tuple[str, ...], types: str | None, spark: bool, options: dict[str, Any], as_json: bool
) -> None:
    """
    Open the source NAME and look up each KEY.

    NAME is the name of a source in enrichkit.toml, or of a connector, which then takes its settings from its defaults
    and from environment variables. If keys have several columns, separate the parts of a KEY with commas. The command
    fails if a lookup fails, but not if the source does not hold a key.
    """
    from .check import check as run

    result = run(name, keys, types, options, spark=spark)
    _print(result, as_json)
    if result.failed:
        raise click.exceptions.Exit(1)


@enrichkit.command(short_help="Estimate the calls and the time that enrich() needs.")
@_with_source
@click.option("--keys", type=click.IntRange(1), help="Estimated number of distinct keys in the data.")
@click.option("--rows", type=click.IntRange(1), help="Number of rows in the data.")
@click.option("--task-slots", type=click.IntRange(1), help="Tasks that run at the same time: executors x cores.")
@click.option("--expressions", type=click.IntRange(1), default=1, help="Number of enrich() expressions in one stage.")
@click.option("--latency", type=float, metavar="SECONDS", help="Duration of one call.")
@_with_options
@_with_json
def explain(
    name: str,
    keys: int | None,
    rows: int | None,
    task_slots: int | None,
    expressions: int,
    latency: float | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """Estimate the calls, attempts and time that enrich() on the source NAME needs. No source is contacted."""
    from ..reports.explanation import explain as run

    numbers = {"keys": keys, "rows": rows, "task_slots": task_slots, "expressions": expressions, "latency": latency}
    report = run(name, **numbers, **options)  # type: ignore[arg-type]  # click and explain check the types
    if as_json:
        _print_json(report)
    else:
        click.echo(str(report))


@enrichkit.command(short_help="Pack what the executors of a cluster need.")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--output", default="enrichkit-env.tar.gz", show_default=True, help="Path of the archive.")
@click.option(
    "--with",
    "extra",
    multiple=True,
    metavar="PACKAGE",
    help="What your project adds: a folder of a package, a module, a project, or a requirement such as boto3.",
)
@click.option("--python", help="Python's version on the executors, for example 3.12; else that of this machine.")
@click.option("--platform", help="linux-x86_64 or linux-aarch64; else that of this machine.")
@click.option("--bare", is_flag=True, help="Leave out pyarrow, pandas and NumPy, because the executors have them.")
@click.option("--executor-python", metavar="PATH", help="Path of the Python on the executors; else that of their PATH.")
@click.option("--check", "checked", metavar="FILE", help="Make nothing, and look at this archive instead.")
@_with_json
def pack(
    names: tuple[str, ...],
    output: str,
    extra: tuple[str, ...],
    python: str | None,
    platform: str | None,
    bare: bool,
    executor_python: str | None,
    checked: str | None,
    as_json: bool,
) -> None:
    """
    Pack enrichkit and the connectors NAME, or all that this machine has, for the executors of a cluster.

    The archive has neither PySpark nor a Python: its programs run with the Python of the executor. If the archive is
    for this platform and Python, it is started here before it is written. The command prints the lines that submit a
    job with the archive.
    """
    from .pack import check, make

    target = {"python": python, "platform": platform}
    if checked is not None:
        packed = check(checked, names, **target)
    else:
        packed = make(names, output=output, extra=extra, bare=bare, executor_python=executor_python, **target)
    if as_json:
        _print_json(packed)
    else:
        click.echo(str(packed))


@enrichkit.command(short_help="Say what each executor of a cluster lacks.")
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=_sources)
@click.option("--master", help="Spark's master, for example spark://host:7077 or yarn.")
@click.option("--remote", metavar="URL", help="A Spark Connect server, for example sc://host:15002.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark. Can be repeated.")
@click.option("--archive", metavar="FILE", help="An archive of enrichkit pack, which the executors get first.")
@click.option("--tasks", type=click.IntRange(1, 100_000), help="Number of tasks. Default: twice the task slots.")
@_with_options
@_with_json
def doctor(
    names: tuple[str, ...],
    master: str | None,
    remote: str | None,
    conf: tuple[str, ...],
    archive: str | None,
    tasks: int | None,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """
    Run a small job that says what each executor lacks, and whether it reaches each source NAME.

    Without --master and --remote the session is the one that Spark's own settings name. The command fails if something
    was found, or if an executor did not answer.
    """
    from .doctor import doctor as run

    found = run(names, master=master, remote=remote, conf=conf, archive=archive, tasks=tasks, options=options)
    if as_json:
        _print_json(found)
    else:
        click.echo(str(found))
    if found.findings:
        raise click.exceptions.Exit(1)


@enrichkit.command(short_help="List all mistakes in a file of sources.")
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "--no-secrets",
    is_flag=True,
    help="Do not check that the secrets exist on this machine. Only workers need them.",
)
@_with_json
def lint(config: Path | None, no_secrets: bool, as_json: bool) -> None:
    """
    List all mistakes in CONFIG, a TOML file of sources.

    Without CONFIG, the command reads the file that the environment variable ENRICHKIT_CONFIG names, or enrichkit.toml.
    No source is contacted.
    """
    from ..sources.config import config_file
    from .lint import lint as run

    path = config or config_file()
    if path is None:
        raise click.UsageError("There is no enrichkit.toml here, and ENRICHKIT_CONFIG is not set. Name a file.")
    sources, findings = run(path, secrets=not no_secrets)
    if as_json:
        _print_json({"file": str(path), "sources": sources, "findings": findings})
    else:
        from .output import show, text

        count = (plural(len(findings), "finding"), "red" if findings else "green")
        show(*findings, text(f"{path}: {plural(sources, 'source')}, ", count))
    if findings:
        raise click.exceptions.Exit(1)


@enrichkit.command(short_help="Measure how fast a source answers.")
@_with_source
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--keys-from",
    type=click.File(errors="surrogateescape"),  # accepts bytes that are not UTF-8, which `keys_of` then rejects
    metavar="FILE",
    help="A file with one key per line; - is the standard input.",
)
@_with_type
@click.option(
    "--capacity",
    "capacities",
    type=click.IntRange(1, MOST_CAPACITY),
    multiple=True,
    help="A number of calls in flight. Can be repeated. Default: all powers of two up to twice the usual capacity.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3600),
    default=2.0,
    show_default=True,
    help="Duration of the measurement of each capacity.",
)
@_with_options
@_with_json
def bench(
    name: str,
    keys: tuple[str, ...],
    keys_from: Iterable[str] | None,
    types: str | None,
    capacities: tuple[int, ...],
    seconds: float,
    options: dict[str, Any],
    as_json: bool,
) -> None:
    """
    Measure how fast the source NAME answers, for several numbers of calls in flight.

    The command looks up each KEY again and again, as fast as the real source answers. Think before you measure a source
    that other people use.
    """
    from .bench import bench as run

    lines = [line.rstrip("\r\n") for line in keys_from or ()]
    result = run(name, [*keys, *filter(None, lines)], types, options, capacities=capacities, seconds=seconds)
    _print(result, as_json)
    if result.suggested is None:
        raise click.exceptions.Exit(1)


@enrichkit.command("new-connector", short_help="Create a connector of your own, with tests.")
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path, file_okay=False),
    default=".",
    help="Folder in which the package is created. Default: the current folder.",
)
def new_connector(name: str, into: Path) -> None:
    """
    Create a plugin package with a connector NAME.

    The new connector reads a JSON file, so that its tests pass. Replace the file with your store.
    """
    from .scaffold import new_connector as run

    folder = run(name, into)
    click.echo(f"Made {folder}. Now:")
    for line in (f"pip install --editable '{folder}[test]'", f"pytest {folder}", "enrichkit connectors"):
        click.echo(f"  {line}")


@enrichkit.command(short_help="Enrich 200,000 rows and check every value.")
@click.option("--rows", type=click.IntRange(1), default=200_000, show_default=True, help="Number of rows to enrich.")
def demo(rows: int) -> None:
    """
    Start Redis, PostgreSQL, an HTTP service and Spark on this machine, enrich rows from all three in one Spark query,
    and check every value.
    """
    try:
        from ..local.demo import main

        code = main(["--rows", str(rows)])
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"The demo needs the package {error.name}, which is not installed. Run: pip install 'enrichkit[all,local]'"
        ) from error
    raise click.exceptions.Exit(code)


@enrichkit.command(short_help="Show a monitor that runs in another program.")
@click.argument("url")
def top(url: str) -> None:
    """
    Show the monitor at URL, the address that enrichkit.monitor() printed, until it ends.
    """
    from rich.console import Console

    from .watch import top as watch

    watch(url, Console())


@enrichkit.command(short_help="Show the figures of a report.")
@click.argument("file", type=click.Path(path_type=Path))
@_with_json
def report(file: Path, as_json: bool) -> None:
    """
    Show the figures of FILE, a report that Monitor.report() wrote as HTML or JSON.
    """
    from ..observe.report import read, text_of

    view = read(file)
    if as_json:
        _print_json(view)
    else:
        click.echo(text_of(view))


@enrichkit.group(short_help="List, show and expire the answers of a journal.")
def journal() -> None:
    """List, show and expire the answers of a journal. No source is contacted."""


@journal.command("list", short_help="List the answers by source and scope.")
@click.argument("path")
@_with_json
def journal_list(path: str, as_json: bool) -> None:
    """
    List what the journal at PATH holds, by source and scope.

    PATH is the folder or the URI of a Journal.
    """
    from .journal import list_answers

    _print(list_answers(path), as_json)


@journal.command("show", short_help="Show the answers to keys.")
@click.argument("path")
@click.argument("keys", nargs=-1, required=True, metavar="KEY...")
@_with_json
def journal_show(path: str, keys: tuple[str, ...], as_json: bool) -> None:
    """
    Show all answers to each KEY in the journal at PATH, the oldest first.

    The answers of all sources, scopes and types are shown. If keys have several columns, separate the parts of a KEY
    with commas.
    """
    from .journal import show_answers

    _print(show_answers(path, keys), as_json)


@journal.command("expire", short_help="Delete old answers.")
@click.argument("path")
@click.option(
    "--older-than",
    required=True,
    metavar="DURATION",
    help="How long nothing was written into a file that is deleted: a number with s, m, h or d, for example 30d.",
)
@click.option("--scope", metavar="NAME", help="Delete only what this scope has written, for example run=2026-07-30.")
def journal_expire(path: str, older_than: str, scope: str | None) -> None:
    """
    Delete the files of the journal at PATH into which nothing was written for DURATION.

    Jobs that have read such a file keep its answers until they read the journal again.
    """
    from .journal import duration_of, expire

    click.echo(str(expire(path, duration_of(older_than), scope)))


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        _print_json(report)
    else:
        from .output import show

        show(report)


def _print_json(document: Any) -> None:
    import json

    import msgspec

    # json writes ASCII, which every output can encode; msgspec would write UTF-8, which cannot encode lone surrogates.
    # click.echo ends the process quietly when the reader of a pipe is gone.
    click.echo(json.dumps(_plain(msgspec.to_builtins(document, enc_hook=repr)), indent=2))


def _plain(value: Any) -> Any:
    """
    Return *value* with everything replaced that JSON cannot express, as msgspec's own JSON encoder would replace it.

    Keys that are not text become text; NaN and infinity become None.
    """
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
