"""The commands: their arguments, and what they print, in one list. Results go to stdout, errors to stderr."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from .. import __version__
from ..errors import ConfigError, EnrichkitError
from ..local.process import LocalServerError
from ..options import MOST_CAPACITY
from ..report import plural
from ..secrets import redact
from .arguments import ArgumentError, options_of

__all__ = ["enrichkit"]

Function = TypeVar("Function", bound=Callable[..., Any])


class Commands(click.Group):
    """A group that tells what enrichkit raises in a few words, without a traceback, and ends with 1."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        try:
            sys.exit(super().main(*args, **{**extra, "standalone_mode": False}))
        except click.exceptions.NoArgsIsHelpError as error:  # the help is what it says
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
        except Exception as error:  # a defect, of ours or of a plugin's
            if ctx.params["traceback"]:
                raise
            said = f"{type(error).__name__}: {redact(str(error))}. This is a defect; --traceback shows where it is."
            raise click.ClickException(said) from error


def _sources(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from ..config import source_names

    try:
        return [name for name in source_names() if name.startswith(incomplete)]
    except ConfigError:  # of the TOML file; completion has nowhere to say it
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
        help="An option of enrich(), for example timeout=0.5, on_error=null or retry.attempts=5; several times.",
    )(function)


def _with_type(function: Function) -> Function:
    return click.option(
        "-t",
        "--type",
        "types",
        metavar="TYPE[,TYPE...]",
        help="Spark types of the key columns, for example bigint or string,date; strings if absent.",
    )(function)


def _with_json(function: Function) -> Function:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")(function)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit codes: 0 ok, 1 what was asked for failed, 2 the command line is wrong.",
)
@click.option("--traceback", is_flag=True, help="Show where a defect is.")
@click.version_option(__version__, prog_name="enrichkit")
def enrichkit(traceback: bool) -> None:
    """Look after the sources that Spark jobs are enriched from."""


@enrichkit.command(short_help="List the installed connectors.")
@_with_json
def connectors(as_json: bool) -> None:
    """List the connectors that are installed, and what each can do."""
    from .inventory import inventory

    _print(inventory(), as_json)


@enrichkit.command(short_help="Open a source and look keys up.")
@_with_source
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@_with_type
@click.option("--spark", is_flag=True, help="Look them up in a Spark job, which decodes the values, on this machine.")
@_with_options
@_with_json
def check(
    name: str, keys: tuple[str, ...], types: str | None, spark: bool, options: dict[str, Any], as_json: bool
) -> None:
    """
    Open the source NAME and look each KEY up.

    NAME is that of a table in enrichkit.toml, or of a connector with its defaults and its environment variables. A key
    of several columns has its parts separated by commas. A key that the source does not hold is no failure.
    """
    from .check import check as run

    found = run(name, keys, types, options, spark=spark)
    _print(found, as_json)
    if found.failed:
        raise click.exceptions.Exit(1)


@enrichkit.command(short_help="Say what enrich() with some options comes to.")
@_with_source
@click.option("--keys", type=click.IntRange(1), help="Distinct keys in the data, an estimate.")
@click.option("--rows", type=click.IntRange(1), help="Rows in the data.")
@click.option("--task-slots", type=click.IntRange(1), help="Tasks that run at a time: executors x cores.")
@click.option("--expressions", type=click.IntRange(1), default=1, help="Enrich expressions in one stage.")
@click.option("--latency", type=float, metavar="SECONDS", help="What one call takes.")
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
    """Say what enrich() on the source NAME comes to: calls, attempts, time."""
    from ..explanation import explain as run

    numbers = {"keys": keys, "rows": rows, "task_slots": task_slots, "expressions": expressions, "latency": latency}
    report = run(name, **numbers, **options)  # type: ignore[arg-type]  # checked by click, and by explain
    if as_json:
        _print_json(report)
    else:
        click.echo(str(report))


@enrichkit.command(short_help="Say all that is wrong in a file of sources.")
@click.argument("config", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--no-secrets", is_flag=True, help="Do not look whether the secrets are here: only workers need them.")
@_with_json
def lint(config: Path | None, no_secrets: bool, as_json: bool) -> None:
    """
    Say all that is wrong in CONFIG, a TOML file of sources.

    Without CONFIG it is the file that ENRICHKIT_CONFIG names, or enrichkit.toml. No source is asked.
    """
    from ..config import config_file
    from .lint import lint as run

    path = config or config_file()
    if path is None:
        raise click.UsageError("There is no enrichkit.toml here, and ENRICHKIT_CONFIG is not set. Name a file.")
    sources, findings = run(path, secrets=not no_secrets)
    if as_json:
        _print_json({"file": str(path), "sources": sources, "findings": findings})
    else:
        from .output import show, text

        counted = (plural(len(findings), "finding"), "red" if findings else "green")
        show(*findings, text(f"{path}: {plural(sources, 'source')}, ", counted))
    if findings:
        raise click.exceptions.Exit(1)


@enrichkit.command(short_help="Measure how fast a source answers.")
@_with_source
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option(
    "--keys-from",
    type=click.File(errors="surrogateescape"),  # as Python reads arguments; keys_of says which key is no UTF-8
    metavar="FILE",
    help="A file with one key in each line; - is stdin.",
)
@_with_type
@click.option(
    "--capacity",
    "capacities",
    type=click.IntRange(1, MOST_CAPACITY),
    multiple=True,
    help="Measure this one; several times.",
)
@click.option("--seconds", type=click.FloatRange(0.1, 3600), default=2.0, show_default=True, help="For each capacity.")
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
    Measure how fast the source NAME answers, by calls in flight.

    This asks a real source as often as it answers: think before you point it at one that others use.
    """
    from .bench import bench as run

    more = [line.rstrip("\r\n") for line in keys_from or ()]
    measured = run(name, [*keys, *filter(None, more)], types, options, capacities=capacities, seconds=seconds)
    _print(measured, as_json)
    if measured.suggested is None:
        raise click.exceptions.Exit(1)


@enrichkit.command("new-connector", short_help="Make a connector of your own, with tests.")
@click.argument("name")
@click.option("--into", type=click.Path(path_type=Path, file_okay=False), default=".", help="Folder to make it in.")
def new_connector(name: str, into: Path) -> None:
    """Make a connector NAME: a plugin package whose tests pass, to be changed."""
    from .scaffold import new_connector as run

    folder = run(name, into)
    click.echo(f"Made {folder}. Now:")
    for line in (f"pip install --editable '{folder}[test]'", f"pytest {folder}", "enrichkit connectors"):
        click.echo(f"  {line}")


@enrichkit.command(short_help="Enrich 200,000 rows, and check every value.")
@click.option("--rows", type=click.IntRange(1), default=200_000, show_default=True, help="Rows of the events.")
def demo(rows: int) -> None:
    """Enrich rows from a real Redis, PostgreSQL and HTTP service in one Spark query, and check every value."""
    try:
        from ..local.demo import main

        code = main(["--rows", str(rows)])
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"The demo needs the package {error.name}, which is not installed. Run: pip install 'enrichkit[all,local]'"
        ) from error
    raise click.exceptions.Exit(code)


def _print(report: Any, as_json: bool) -> None:
    if as_json:
        _print_json(report)
    else:
        from .output import show

        show(report)


def _print_json(document: Any) -> None:
    import json

    import msgspec

    # In ASCII, which every output takes; msgspec writes UTF-8, which has no lone surrogates. click ends well when who
    # reads has gone.
    click.echo(json.dumps(_plain(msgspec.to_builtins(document, enc_hook=repr)), indent=2))


def _plain(value: Any) -> Any:
    """Return *value* with what JSON lacks as msgspec writes it: a key that is no text, NaN and infinity."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
