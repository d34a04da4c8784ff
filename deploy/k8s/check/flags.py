"""Whether every variable in the manifests is one that the programs read, with a value that they take."""

import os
import re
import subprocess
from functools import cache

import objects as look

# Read by libraries, not by a flag: the one that talks to buckets, and the one that knows authorities.
FOREIGN = re.compile("AWS_[A-Z_]+|SSL_CERT_DIR")

# What a secret brings. The first is no database, so that a program gets as far as to say so.
SECRETS = {
    "DATABASE_URL": "nothing",
    "REDIS_URL": "redis://nobody",
    "AUTH_INTERNAL_SECRET": "0123456789abcdef0123456789abcdef",
}
UNDERSTOOD = "DATABASE_URL is not a Postgres URL"


def problems(_, objects, programs):
    known = {service: variables(programs, service) for service in look.SERVICES}
    for workload in look.workloads(objects):
        service = workload["metadata"]["name"]
        if service not in look.SERVICES:
            continue
        for container in look.containers(workload):
            who = f"{look.name(workload)}: container {container['name']}"
            environment, unknown = read(container, objects, known, service)
            yield from early(who, container)
            for name in unknown:
                yield f"{who}: no flag reads {name}"
            yield from refused(who, programs / service, environment)


@cache
def variables(programs, service):
    """The variables that `--help` names."""
    shown = subprocess.run([programs / service, "--help"], capture_output=True, text=True, check=True)
    return set(re.findall(r"\[env: ([A-Z_0-9]+)[=\]]", shown.stdout))


def read(container, objects, known, service):
    """The environment of a container, and the names in it that nobody knows."""
    environment, unknown = {}, []
    for source in container.get("envFrom", []):
        reference = source.get("configMapRef") or source["secretRef"]
        data = look.config(objects, reference["name"])
        # All services share these, so it is enough if one of them knows a name.
        unknown += [one for one in data if not any(one in names for names in known.values())]
        if "configMapRef" in source:
            environment |= data
    own = {one["name"]: one.get("value", "something") for one in container.get("env", [])}
    used = set(re.findall(r"\$\(([A-Z_]+)\)", " ".join(own.values())))
    unknown += [
        one for one in own if one not in known[service] | used and not FOREIGN.fullmatch(one)
    ]
    for name, value in own.items():
        environment[name] = re.sub(r"\$\(([A-Z_]+)\)", lambda found: own[found[1]], value)
    return environment, unknown


def early(who, container):
    """Kubernetes replaces only what is named before, and leaves the rest as it is."""
    known = set()
    for one in container.get("env", []):
        for name in re.findall(r"\$\(([A-Z_]+)\)", one.get("value", "")):
            if name not in known:
                yield f"{who}: {one['name']} needs {name}, which comes later or not at all"
        known.add(one["name"])


def refused(who, program, environment):
    """What the program itself says about the values."""
    environment = {"PATH": os.environ["PATH"]} | environment | SECRETS
    # Nobody listens there, and the program would try until it gives up.
    environment.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    ran = subprocess.run([program, "migrate"], env=environment, capture_output=True, text=True, timeout=30)
    if ran.returncode != 1 or UNDERSTOOD not in ran.stderr:
        yield f"{who}: {program.name} does not take its environment: {ran.stderr.strip() or ran.stdout.strip()}"
