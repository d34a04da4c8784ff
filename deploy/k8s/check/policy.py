"""What has to be true of every workload that we ship, whatever Kubernetes would accept."""

import ipaddress
import itertools
import re
import tomllib
from pathlib import Path

import objects as look

VERSION = tomllib.loads((Path(__file__).parents[3] / "Cargo.toml").read_text())["workspace"][
    "package"
]["version"]

# What comes after the drain: farewells, processes of agents that are ended (15 seconds, SHUTDOWN in
# services/tools/src/processes/hosting.rs), the last rows, the last spans.
AFTER_DRAIN = 30

# How long a pod of tools may at least take to come back after it went, in the patience of session.
COMING_BACK = 120

# What a process has without anybody calling it, what an open stream takes (the bench measures it), how
# many times its size a request takes, and what webhooks may take that came over HTTP (ROOM in
# services/triggers/src/http/body.rs, four times).
ITSELF, STREAM, REQUEST, WEBHOOKS = 128 << 20, 44 << 10, 3, 128 << 20

# What nobody may reach by way of "the internet": the addresses at which clouds tell secrets.
METADATA = ["169.254.169.254", "169.254.170.2", "100.100.100.200", "fd00:ec2::254"]

# The volume of components/database-ca.
AUTHORITY = "database-ca"

# Who calls whom among our services, and at which port: the solid arrows of ARCHITECTURE.md.
ARROWS = {
    ("session", "tools", 50052),
    ("session", "models", 50053),
    ("session", "triggers", 50054),
    ("triggers", "session", 50051),
    ("triggers", "tools", 50052),
    ("tools", "tools", 50052),
}


def problems(which, objects, _):
    workloads = look.workloads(objects)
    for one in workloads:
        for problem in [*of_pod(one), *of_containers(one), *of_service(one, objects)]:
            yield f"{look.name(one)}: {problem}"
        yield from of_others(one, objects)
    yield from of_patience(objects)
    yield from of_memory(objects)
    yield from autoscalers(which, objects)
    yield from network(objects)
    yield from arrows(objects)
    excepted = [look.name(one) for one in workloads if is_excepted(one)]
    expected = [] if which == "alternative" else ["StatefulSet tools"]
    if excepted != expected:
        yield f"the exception is made for {excepted} and not for {expected}"
    yield from of_exception(which, objects)
    for one in look.of_kind(objects, "Secret"):
        if which != "dev":
            yield f"{look.name(one)}: secrets are referred to, and made by somebody else"


def of_exception(which, objects):
    """The one exception is what README.md says, to the letter."""
    pod = look.pod(next(one for one in look.workloads(objects) if one["metadata"]["name"] == "tools"))
    profile = {"type": "Localhost", "localhostProfile": "windlass/tools.json"}
    given = [
        pod.get("hostUsers"),
        pod["securityContext"]["seccompProfile"],
        pod["securityContext"].get("appArmorProfile"),
        pod["containers"][0]["securityContext"].get("procMount"),
    ]
    expected = {
        "dev": [False, {"type": "Unconfined"}, {"type": "Unconfined"}, "Unmasked"],
        "alternative": [None, {"type": "RuntimeDefault"}, None, None],
    }.get(which, [False, profile, {"type": "Unconfined"}, "Unmasked"])
    if given != expected:
        yield f"the exception is {given} and not {expected}"


def is_excepted(workload):
    """Whether a pod is allowed more than the standard `restricted`."""
    pod = look.pod(workload)
    loose = [pod.get("securityContext", {})]
    loose += [one.get("securityContext", {}) for one in look.containers(workload)]
    return any(
        one.get("procMount", "Default") != "Default"
        or one.get("seccompProfile", {}).get("type", "RuntimeDefault") != "RuntimeDefault"
        or one.get("appArmorProfile", {}).get("type", "RuntimeDefault") != "RuntimeDefault"
        for one in loose
    )


def of_pod(workload):
    pod = look.pod(workload)
    security = pod.get("securityContext", {})
    if security.get("runAsNonRoot") is not True or not security.get("runAsUser"):
        yield "has to run as somebody who is not root"
    if "seccompProfile" not in security:
        yield "has no seccomp profile"
    if pod.get("automountServiceAccountToken") is not False:
        yield "has a token of Kubernetes that nobody needs"
    if pod.get("enableServiceLinks") is not False:
        yield "gets variables that Kubernetes invents"
    for field in ["hostNetwork", "hostPID", "hostIPC"]:
        if pod.get(field):
            yield f"has {field}"
    for volume in pod.get("volumes", []):
        if "hostPath" in volume:
            yield f"mounts a path of the node, {volume['hostPath']}"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"the volume {volume['name']} has no size"
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault" and pod.get("hostUsers") is not False:
        yield "may do more than others, and is no user namespace of its own"


def of_containers(workload):
    for one in look.containers(workload):
        security = one.get("securityContext", {})
        who = f"container {one['name']}"
        if security.get("allowPrivilegeEscalation") is not False or security.get("privileged"):
            yield f"{who} may get privileges"
        if security.get("readOnlyRootFilesystem") is not True:
            yield f"{who} can write to its image"
        if security.get("capabilities") != {"drop": ["ALL"]}:
            yield f"{who} has capabilities"
        resources = one.get("resources", {})
        for kind, names in [
            ("requests", ["cpu", "memory", "ephemeral-storage"]),
            ("limits", ["memory", "ephemeral-storage"]),
        ]:
            for missing in set(names) - resources.get(kind, {}).keys():
                yield f"{who} has no {missing} in its {kind}"
        yield from of_image(who, one["image"])
    for one in look.pod(workload)["containers"]:
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"]:
            if probe not in one:
                yield f"container {one['name']} has no {probe}"


def of_image(who, image):
    if "@sha256:" in image:
        return
    _, _, tag = image.rpartition("/")[2].partition(":")
    if tag in ["", "latest"]:
        yield f"{who}: {image} names no version"
    elif re.match("windlass/", image) and tag != VERSION:
        yield f"{who}: {image} is not the version of Cargo.toml, {VERSION}"


def of_service(workload, objects):
    """What only our own four have to do."""
    name = workload["metadata"]["name"]
    if name not in look.SERVICES:
        return
    pod, container = look.pod(workload), look.pod(workload)["containers"][0]
    config = next(one for one in container["envFrom"] if "configMapRef" in one)["configMapRef"]["name"]
    config = look.config(objects, config)
    drain = float(config["DRAIN"]) + container["lifecycle"]["preStop"]["sleep"]["seconds"]
    if pod["terminationGracePeriodSeconds"] < drain + AFTER_DRAIN:
        yield f"is killed before a drain of {drain} seconds is over"
    for secret in (one["secretRef"]["name"] for one in container["envFrom"] if "secretRef" in one):
        if any(secret.startswith(f"windlass-{other}") for other in look.SERVICES if other != name):
            yield f"gets to know {secret}, which is of another service"
    if not pod.get("topologySpreadConstraints"):
        yield "may be all on one node"
    labels = look.pod_labels(workload)
    for one in pod.get("topologySpreadConstraints", []):
        selector, keys = one.get("labelSelector"), set(one.get("matchLabelKeys", []))
        # One that selects nobody spreads nobody, and Kubernetes says nothing.
        if not selector or not look.selects(selector, labels) or keys - labels.keys():
            yield f"is spread over {one['topologyKey']} among pods that are not its own"
    if [one["args"] for one in pod.get("initContainers", [])] != [["migrate"]]:
        yield "does not migrate before it starts"
    for one in look.containers(workload):
        yield from of_authority(pod, one)
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    for probe in ["startupProbe", "readinessProbe"]:
        asks = container[probe]
        encrypted = "TLS_CERT" in config
        if not encrypted and asks.get("grpc") != {"port": ports["grpc"], "service": name}:
            yield f"its {probe} does not ask the gRPC health service for {name}"
        if encrypted and asks.get("httpGet") != {"path": "/health", "port": "metrics"}:
            yield f"its {probe} does not ask /health"
    service = next(one for one in look.of_kind(objects, "Service") if one["metadata"]["name"] == name)
    if service["spec"].get("clusterIP") != "None":
        yield "callers do not see all of its pods: its Service is not headless"
    offered = {one["name"]: one for one in service["spec"]["ports"]}
    if offered.get("metrics", {}).get("port") != ports["metrics"]:
        yield "nobody can scrape it: its Service has no port for metrics"
    plain = offered["grpc"].get("appProtocol") == "kubernetes.io/h2c"
    if plain == ("TLS_CERT" in config):
        yield "its Service says the wrong thing about TLS"


def of_authority(pod, container):
    """Whoever goes to Postgres has to know its authority: the service, and what migrates before it."""
    given = any(one["name"] == AUTHORITY for one in pod.get("volumes", []))
    if given and not any(one["name"] == AUTHORITY for one in container.get("volumeMounts", [])):
        yield f"container {container['name']} does not see the authority of Postgres"


def of_patience(objects):
    """A turn is not to fail because a pod of tools is replaced."""
    pods = {one["metadata"]["name"]: look.pod(one) for one in look.workloads(objects)}
    environment = pods["session"]["containers"][0].get("env", [])
    patience = next((one["value"] for one in environment if one["name"] == "TOOLS_PATIENCE"), 0)
    if float(patience) < pods["tools"]["terminationGracePeriodSeconds"] + COMING_BACK:
        yield f"session loses patience with a pod of tools that is replaced, after {patience} seconds"


def of_memory(objects):
    """Callers together cannot have a process killed. The limit of tools is for what agents run."""
    for name in ["session", "models", "triggers"]:
        pods = (look.pod(one) for one in look.workloads(objects) if one["metadata"]["name"] == name)
        service = next(pods)["containers"][0]
        given = {one["name"]: one.get("value") for one in service.get("env", [])}
        streams, requests = given.get("MAX_STREAMS"), given.get("MAX_REQUEST_BYTES")
        if streams is None or requests is None:
            yield f"{name} does not say how many streams and bytes of requests it may hold"
            continue
        most = ITSELF + STREAM * int(streams) + REQUEST * int(requests)
        most += WEBHOOKS if name == "triggers" else 0
        limit = service["resources"]["limits"].get("memory")
        if limit and most > look.bytes_of(limit):
            yield f"{name} may hold {most >> 20} MiB, which is more than its limit"


def autoscalers(which, objects):
    """Who may come and go does so by itself; tools may not, because its workspaces would go too."""
    expected = set() if which == "dev" else {("Deployment", one) for one in ["session", "models", "triggers"]}
    there = {(one["kind"], one["metadata"]["name"]) for one in look.workloads(objects)}
    scaled = set()
    for one in look.of_kind(objects, "HorizontalPodAutoscaler"):
        target = one["spec"]["scaleTargetRef"]
        target = target["kind"], target["name"]
        scaled.add(target)
        if target not in there:
            yield f"{look.name(one)}: there is no {' '.join(target)} to scale"
        elif target not in expected:
            yield f"{look.name(one)}: {' '.join(target)} is not to be scaled by itself"
    for target in sorted(expected - scaled):
        yield f"nobody scales {' '.join(target)}"


def of_others(workload, objects):
    """What has to be there beside a workload."""
    labels = look.pod_labels(workload)
    for kind, field in [("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")]:
        about = [
            one
            for one in look.of_kind(objects, kind)
            # The one that denies everything is about everybody.
            if one["spec"][field] and look.selects(one["spec"][field], labels)
            # And so are those that are about all of our pods.
            and one["spec"][field].get("matchLabels", {}).keys() != {"app.kubernetes.io/part-of"}
        ]
        if not about:
            yield f"{look.name(workload)} has no {kind}"


def network(objects):
    policies = look.of_kind(objects, "NetworkPolicy")
    denies = [one for one in policies if one["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}]
    if len(denies) != 1:
        yield "no policy denies what no other allows"
    for one in policies:
        for rule in one["spec"].get("ingress", []) + one["spec"].get("egress", []):
            peers = rule.get("from", []) + rule.get("to", [])
            if not peers or not rule.get("ports"):
                yield f"{look.name(one)}: a rule for everybody or for all ports"
            for block in (peer["ipBlock"] for peer in peers if "ipBlock" in peer):
                for address in map(ipaddress.ip_address, METADATA):
                    if reaches(block, address):
                        yield f"{look.name(one)}: {block['cidr']} reaches {address}"


def arrows(objects):
    """A call has to be allowed where it comes in and where it goes out, and no other may be in either."""
    for direction in ["ingress", "egress"]:
        given = set(allowed(objects, direction))
        for caller, callee, port in sorted(given - ARROWS):
            yield f"{direction} allows {caller} -> {callee} {port}, which is no arrow of ARCHITECTURE.md"
        for caller, callee, port in sorted(ARROWS - given):
            yield f"{direction} does not allow {caller} -> {callee} {port}, an arrow of ARCHITECTURE.md"


def allowed(objects, direction):
    """All (caller, callee, port) among our services that rules of one direction let through."""
    ours = [one for one in look.workloads(objects) if one["metadata"]["name"] in look.SERVICES]
    namespace = next((one["metadata"] for one in look.of_kind(objects, "Namespace")), {})
    namespace = {"kubernetes.io/metadata.name": namespace.get("name")} | namespace.get("labels", {})
    for policy in look.of_kind(objects, "NetworkPolicy"):
        spec = policy["spec"]
        if direction.title() not in spec.get("policyTypes", ["Ingress", "Egress"]):
            continue
        for rule in spec.get(direction, []):
            peers = rule.get("from" if direction == "ingress" else "to")
            for near, far in itertools.product(ours, ours):
                if not look.selects(spec["podSelector"], look.pod_labels(near)):
                    continue
                if peers and not any(is_peer(one, look.pod_labels(far), namespace) for one in peers):
                    continue
                caller, callee = (far, near) if direction == "ingress" else (near, far)
                for port in open_ports(rule, callee):
                    yield caller["metadata"]["name"], callee["metadata"]["name"], port


def is_peer(peer, labels, namespace):
    """Whether one of our pods is meant. What a peer does not say about pods or namespace leaves none out."""
    # Nobody knows here which addresses pods have, so a block may be any of them.
    if "ipBlock" in peer:
        return True
    return look.selects(peer.get("podSelector", {}), labels) and look.selects(
        peer.get("namespaceSelector", {}), namespace
    )


def open_ports(rule, callee):
    """The ports at which a pod listens, of those that a rule opens; one that names none opens all."""
    listens = [one for container in look.pod(callee)["containers"] for one in container.get("ports", [])]
    for number, name in ((one["containerPort"], one["name"]) for one in listens):
        for one in rule.get("ports") or [{"port": name}]:
            first = number if one["port"] == name else one["port"]
            if isinstance(first, int) and first <= number <= one.get("endPort", first):
                yield number


def reaches(block, address):
    def within(network):
        network = ipaddress.ip_network(network)
        return network.version == address.version and address in network

    return within(block["cidr"]) and not any(map(within, block.get("except", [])))
