"""
The manifests and the image recipe of `examples/kubernetes`, as far as they can be checked without Kubernetes.

Every object has the form that the API's own schemas want; Spark's client makes pods of the lines of the job that have
it, too; and the commands of the image are run in a mount namespace, in which `/opt` is empty.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from enrichkit.local.java import java_home
from enrichkit.local.process import start, stop
from enrichkit.local.spark import launched, scala_version, spark_home
from enrichkit.testing.bench import wait_until

from .environments import ROOT, environment
from .kubernetes_api import Recorder, recorder
from .test_wheels import wheels

__all__ = ["wheels"]  # a fixture

pytestmark = [pytest.mark.service, pytest.mark.timeout(600)]

FOLDER = ROOT / "examples" / "kubernetes"
MANIFESTS = sorted(FOLDER.glob("*.yaml"))
VERSIONS = ("1.30", "1.37")
VALIDATE = """
import json, sys
import kubernetes_validate

found = json.load(sys.stdin)
for version in sys.argv[1:]:
    for each in found:
        try:
            kubernetes_validate.validate(each, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            print(version, each["kind"], list(error.path), error.message)
"""
IMAGE = "registry.example/jobs/orders:1"


def faults(objects: Iterable[Any]) -> str:
    """Return what is wrong with these objects by the schemas of the API; empty: nothing."""
    python = environment("kubernetes", "kubernetes-validate==1.37.0", "pyyaml")
    command = [python, "-c", VALIDATE, *VERSIONS]
    return subprocess.run(command, input=json.dumps([*objects]), capture_output=True, text=True, check=True).stdout


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def lines_of_the_job() -> list[str]:
    """Return the arguments of `spark-submit` in the manifest of the job."""
    (job,) = documents(FOLDER / "job.yaml")
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[0] == "/opt/spark/bin/spark-submit"
    return [str(part) for part in command[1:]]


def submitted(server: Recorder, lines: list[str], role: str, tmp_path: Path) -> dict[str, Any]:
    """Submit a job to the recorder by Spark's own client, and return the first pod of this role that it makes."""
    home = spark_home()
    env = {
        **os.environ,
        "JAVA_HOME": str(java_home()),
        "SPARK_HOME": str(home),
        "SPARK_SCALA_VERSION": scala_version(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    more = ["--conf=spark.kubernetes.submission.waitAppCompletion=false", "--conf=spark.ui.enabled=false"]
    arguments = [re.sub("^--master=.*", f"--master=k8s://{server.url}", line) for line in lines]
    if role == "executor":  # a driver outside of the cluster, which asks for its executors
        program = tmp_path / "program.py"
        program.write_text(
            "import sys\nfrom pyspark.sql import SparkSession\nSparkSession.builder.getOrCreate()\nsys.stdin.read()\n"
        )
        arguments = [line.replace("=cluster", "=client") for line in arguments[:-1]]
        python = f"--conf=spark.pyspark.driver.python={sys.executable}"
        more += ["--conf=spark.driver.host=127.0.0.1", python, str(program)]
        arguments = [*arguments, *more]
    else:
        arguments = [*arguments[:-1], *more, arguments[-1]]
    log = tmp_path / "log"
    command = launched(env, "org.apache.spark.deploy.SparkSubmit", *arguments)
    process = start(command, log=log, env=env, stdin=subprocess.PIPE)
    try:
        assert wait_until(lambda: bool(server.pods(role)) or process.poll() is not None), log.read_text()[-3000:]
        if role == "driver":
            assert process.wait(60) == 0, log.read_text()[-3000:]
        assert server.pods(role), log.read_text()[-3000:]
    finally:
        stop(process)
    return server.pods(role)[0]


@pytest.mark.more
def test_the_manifests_have_the_form_that_the_api_wants() -> None:
    found = [each for path in MANIFESTS for each in documents(path)]
    assert {each["kind"] for each in found} == {
        "Job", "PersistentVolumeClaim", "Pod", "Role", "RoleBinding", "Secret", "ServiceAccount",
    }  # fmt: skip
    assert faults(found) == ""


@pytest.mark.more
def test_a_misspelt_field_would_be_found() -> None:
    (job,) = documents(FOLDER / "job.yaml")
    job["spec"]["template"]["spec"]["serviceAcountName"] = "spark"
    assert "serviceAcountName" in faults([job])


@pytest.mark.more
@pytest.mark.parametrize("role", ["driver", "executor"])
def test_spark_makes_pods_of_the_job_that_the_api_would_take(role: str, tmp_path: Path) -> None:
    """With the image of the job and, at once, with the volume for the archive."""
    with recorder() as server:
        pod = submitted(server, [f"--properties-file={FOLDER / 'volume.conf'}", *lines_of_the_job()], role, tmp_path)
        assert faults(server.made) == ""
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    variables = {each["name"]: each for each in container["env"]}
    if role == "driver":
        assert pod["spec"]["serviceAccountName"] == "spark"
        assert "SHOP_PASSWORD" not in variables
        assert "local:///opt/jobs/orders.py" in container["args"]
    else:
        secret = variables["SHOP_PASSWORD"]
        assert secret["valueFrom"]["secretKeyRef"] == {"name": "shop", "key": "password"}
        assert container["resources"]["limits"]["memory"] == f"{4096 + 2048}Mi"
    (mount,) = (each for each in container["volumeMounts"] if each["mountPath"] == "/opt/environment")
    (volume,) = (each for each in pod["spec"]["volumes"] if each["name"] == mount["name"])
    (claim,) = (each for each in documents(FOLDER / "volume.yaml") if each["kind"] == "PersistentVolumeClaim")
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert mount["readOnly"] is True


@pytest.mark.cluster
def test_the_commands_of_the_image_make_a_python_that_has_the_connectors(wheels: Path, tmp_path: Path) -> None:
    """As root of a mount namespace of its own, in which `/opt` and `/tmp` are new; `python3` is that of the tests."""
    text = (FOLDER / "Containerfile").read_text().replace("\\\n", "")
    commands = re.findall(r"^RUN (.*)$", text, re.MULTILINE)
    environ = dict(re.findall(r"^ENV (\w+)=(\S+)$", text, re.MULTILINE))
    copies = re.findall(r"^COPY (\S+) (\S+)$", text, re.MULTILINE)
    sources = {"dist": wheels, "orders.py": FOLDER / "orders.py"}
    assert {source for source, _ in copies} == set(sources)
    python = Path(sys._base_executable)  # type: ignore[attr-defined]  # of CPython
    script = ["set -eu", "mount -t tmpfs tmpfs /opt"]
    script += ["mkdir -p /opt/bin /opt/of", f"ln -s {python} /opt/bin/python3", "export PATH=/opt/bin:$PATH"]
    script += [f"cp -r {source} /opt/of/{name}" for name, source in sources.items()]
    script += ["mount -t tmpfs tmpfs /tmp"]
    script += [f"mkdir -p $(dirname {target}) && cp -r /opt/of/{source} {target}" for source, target in copies]
    script += [*commands, *(f"export {name}={value}" for name, value in environ.items())]
    program = (
        "import ast, enrichkit_redis, enrichkit_http, hiredis, pandas, pyarrow, pyreqwest; "
        "print(enrichkit_redis.__file__); ast.parse(open('/opt/jobs/orders.py').read())"
    )
    script += ["cd /", f'python3 -s -c "{program}"']
    unwanted = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    env = {name: value for name, value in os.environ.items() if name not in unwanted}
    env |= {"PIP_QUIET": "1", "PIP_ROOT_USER_ACTION": "ignore", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    namespace = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    done = subprocess.run([*namespace, "sh", "-c", "\n".join(script)], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["/opt/enrichkit/enrichkit_redis/__init__.py"]
