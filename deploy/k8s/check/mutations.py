"""Shows that the policy sees what it is there for: breaks manifests and images in one way at a time.

    mutations.py <rendered.yaml>
"""

import copy
import sys
from pathlib import Path

import yaml

import alerts
import images
import objects as look
import policy
import schemas


ALERTS = Path(__file__).parents[1] / "components" / "monitoring" / "alerts.yaml"


def find(objects, kind, name):
    return next(one for one in objects if (one["kind"], one["metadata"]["name"]) == (kind, name))


def session(objects):
    return look.pod(find(objects, "Deployment", "session"))


def container(objects):
    return session(objects)["containers"][0]


def rules(objects, name, direction):
    return find(objects, "NetworkPolicy", name)["spec"][direction]


def remove(objects, kind, name):
    objects.remove(find(objects, kind, name))


def alert(objects):
    """The first one, WindlassDown."""
    return find(objects, "PrometheusRule", "windlass")["spec"]["groups"][0]["rules"][0]


def target(objects, name):
    return find(objects, "HorizontalPodAutoscaler", name)["spec"]["scaleTargetRef"]


TOOLS = {"app.kubernetes.io/name": "tools"}

# What is broken, what does it, and words of the complaint.
MUTATIONS = [
    ("root", lambda all: session(all)["securityContext"].update(runAsNonRoot=False), "not root"),
    ("user 0", lambda all: session(all)["securityContext"].update(runAsUser=0), "not root"),
    ("a token", lambda all: session(all).pop("automountServiceAccountToken"), "token"),
    ("the host's network", lambda all: session(all).update(hostNetwork=True), "hostNetwork"),
    ("a path of the node", lambda all: session(all).update(volumes=[{"name": "a", "hostPath": {"path": "/"}}]), "path of the node"),
    ("a capability", lambda all: container(all)["securityContext"]["capabilities"].update(add=["SYS_ADMIN"]), "capabilities"),
    ("a writable root", lambda all: container(all)["securityContext"].pop("readOnlyRootFilesystem"), "can write"),
    ("privileges", lambda all: container(all)["securityContext"].update(allowPrivilegeEscalation=True), "privileges"),
    ("no limit", lambda all: container(all)["resources"]["limits"].pop("memory"), "no memory in its limits"),
    ("no probe", lambda all: container(all).pop("livenessProbe"), "livenessProbe"),
    ("a probe of another", lambda all: container(all)["readinessProbe"]["grpc"].update(service="models"), "readinessProbe"),
    ("latest", lambda all: container(all).update(image="windlass/session:latest"), "no version"),
    ("no tag", lambda all: container(all).update(image="registry:5000/windlass/session"), "no version"),
    ("another version", lambda all: container(all).update(image="windlass/session:9.9.9"), "Cargo.toml"),
    ("a short grace", lambda all: session(all).update(terminationGracePeriodSeconds=30), "killed"),
    ("a secret of another", lambda all: container(all)["envFrom"].append({"secretRef": {"name": "windlass-models"}}), "of another service"),
    ("no patience", lambda all: container(all).pop("env"), "loses patience"),
    ("more grace than patience", lambda all: look.pod(find(all, "StatefulSet", "tools")).update(terminationGracePeriodSeconds=61), "loses patience"),
    ("no bound for requests", lambda all: container(all)["env"].pop(1), "does not say how many streams"),
    ("more streams than memory", lambda all: container(all)["env"][2].update(value="16384"), "more than its limit"),
    ("no migration", lambda all: session(all).pop("initContainers"), "migrate"),
    ("an authority for nobody", lambda all: session(all).update(volumes=[{"name": "database-ca"}]), "container migrate does not see the authority"),
    ("one node", lambda all: session(all).pop("topologySpreadConstraints"), "one node"),
    ("spread among others", lambda all: session(all)["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"].update(TOOLS), "not its own"),
    ("spread among nobody", lambda all: session(all)["topologySpreadConstraints"][1].pop("labelSelector"), "not its own"),
    ("no autoscaler", lambda all: remove(all, "HorizontalPodAutoscaler", "models"), "nobody scales Deployment models"),
    ("an autoscaler of nothing", lambda all: target(all, "triggers").update(name="trigger"), "there is no Deployment trigger"),
    ("an autoscaler of tools", lambda all: target(all, "session").update(kind="StatefulSet", name="tools"), "not to be scaled"),
    ("a balancer", lambda all: find(all, "Service", "session")["spec"].update(clusterIP="10.1.1.1"), "headless"),
    ("no way to metrics", lambda all: find(all, "Service", "session")["spec"]["ports"].pop(), "scrape"),
    ("a word about TLS", lambda all: find(all, "Service", "session")["spec"]["ports"][0].pop("appProtocol"), "TLS"),
    ("no budget", lambda all: remove(all, "PodDisruptionBudget", "session"), "PodDisruptionBudget"),
    ("no network policy", lambda all: remove(all, "NetworkPolicy", "session"), "NetworkPolicy"),
    ("no denial", lambda all: remove(all, "NetworkPolicy", "default-deny"), "denies"),
    ("metadata", lambda all: find(all, "NetworkPolicy", "models")["spec"]["egress"][0]["to"][0]["ipBlock"].pop("except"), "169.254.169.254"),
    ("everybody", lambda all: find(all, "NetworkPolicy", "session")["spec"]["ingress"][0].pop("from"), "everybody"),
    ("a call by tools", lambda all: rules(all, "session", "ingress")[0]["from"].append({"podSelector": {"matchLabels": TOOLS}}), "ingress allows tools -> session 50051"),
    ("calls of all namespaces", lambda all: rules(all, "session", "ingress")[0].update({"from": [{"namespaceSelector": {}}]}), "ingress allows models -> session 50051"),
    ("calls to all ports of all", lambda all: rules(all, "tools", "egress")[0].update(to=[{"podSelector": {}}], ports=[{"port": 50051, "endPort": 50054}]), "egress allows tools -> models 50053"),
    ("no way to tools", lambda all: rules(all, "session", "egress").pop(0), "egress does not allow session -> tools 50052"),
    ("no way from triggers", lambda all: rules(all, "tools", "ingress")[0]["from"].pop(1), "ingress does not allow triggers -> tools 50052"),
    ("a second exception", lambda all: container(all)["securityContext"].update(procMount="Unmasked"), "exception"),
    ("an exception undone", lambda all: look.pod(find(all, "StatefulSet", "tools"))["securityContext"]["seccompProfile"].update(type="RuntimeDefault"), "exception"),
    ("a secret", lambda all: all.append({"kind": "Secret", "metadata": {"name": "a"}}), "somebody else"),
    ("a field that is none", lambda all: session(all).update(hostuser=False), "not valid"),
    ("no runbook", lambda all: alert(all).pop("annotations"), "its runbook has to be"),
    ("an alert without a section", lambda all: alert(all).update(alert="WindlassGone"), "no section with this name"),
    ("a section without an alert", lambda all: alert(all).update(alert="WindlassGone"), "has a section WindlassDown"),
    ("a sum over namespaces", lambda all: alert(all).update(expr="sum by (service) (up)"), "mixes the namespaces"),
    ("another namespace", lambda all: find(all, "PrometheusRule", "windlass")["metadata"].update(namespace="shop"), "we are in shop"),
]

# The same of the Dockerfile: what is written in place of what.
IMAGES = [
    ("another Rust", "ARG RUST=1.95", "ARG RUST=1.70", "the least that Cargo.toml allows"),
    ("latest", "debian:bookworm-slim", "debian:latest", "names no release"),
    ("root", "USER 65532:65532", "USER root", "not of a user with a number"),
    ("no user", "USER 65532:65532\n", "", "not of a user with a number"),
    ("another program", '["triggers"]', '["models"]', "does not run triggers"),
    ("a service without an image", " AS models", " AS modles", "no stage models"),
    ("a crate that is not there", "-p sandbox", "-p sandbocks", "no such crate"),
    ("a program that is not built", "target/dist/evidence", "target/dist/proof", "which it does not build"),
    ("a program that is not installed", "/out/sandbox-init", "/out/sandbox", "which nobody installs"),
    ("a folder that is not there", "deploy/agents/", "deploy/people/", "which is not there"),
    ("a stage that is not there", "--from=root", "--from=roof", "no such stage"),
]


def problems(objects):
    return [*policy.problems("base", objects, None), *alerts.problems("base", objects, None)]


def main(path: str) -> int:
    objects = [one for one in yaml.safe_load_all(Path(path).read_text()) if one]
    # Alerts are no part of the base.
    objects.append(yaml.safe_load(ALERTS.read_text()))
    missed = 0
    for problem in problems(objects):
        missed += 1
        print(f"the check complains of what nobody broke: {problem}", file=sys.stderr)
    if not any("not there" in one for one in alerts.problems("base", objects, None, Path("/nowhere"))):
        missed += 1
        print("the check does not see that there is no runbook", file=sys.stderr)
    for what, change, words in MUTATIONS:
        broken = copy.deepcopy(objects)
        change(broken)
        found = problems(broken)
        if words == "not valid":
            found = list(schemas.schema(find(broken, "Deployment", "session")))
        if not any(words in problem for problem in found):
            missed += 1
            print(f"the check does not see {what}: {found}", file=sys.stderr)
    dockerfile = images.DOCKERFILE.read_text()
    for what, old, new, words in IMAGES:
        found = list(images.problems(dockerfile.replace(old, new)))
        if not any(words in problem for problem in found):
            missed += 1
            print(f"the check does not see {what} in the Dockerfile: {found}", file=sys.stderr)
    mistakes = len(MUTATIONS) + len(IMAGES)
    print(f"manifests: the check sees {mistakes - missed} of {mistakes} mistakes")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
