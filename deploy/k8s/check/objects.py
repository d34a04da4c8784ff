"""Ways to look at rendered objects."""

SERVICES = ["session", "tools", "models", "triggers"]


def name(one: dict) -> str:
    return f"{one['kind']} {one['metadata']['name']}"


def of_kind(objects: list[dict], *kinds: str) -> list[dict]:
    return [one for one in objects if one["kind"] in kinds]


def workloads(objects: list[dict]) -> list[dict]:
    return of_kind(objects, "Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob")


def pod(workload: dict) -> dict:
    return workload["spec"]["template"]["spec"]


def containers(workload: dict) -> list[dict]:
    return pod(workload).get("initContainers", []) + pod(workload)["containers"]


def pod_labels(workload: dict) -> dict:
    return workload["spec"]["template"]["metadata"]["labels"]


def bytes_of(quantity: str) -> int:
    """What Kubernetes calls memory, in the units that we use."""
    return int(quantity[:-2]) << {"Ki": 10, "Mi": 20, "Gi": 30}[quantity[-2:]]


def selects(selector: dict, labels: dict) -> bool:
    """Whether a label selector matches, with the operators that we use."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for one in selector.get("matchExpressions", []):
        if one["operator"] != "In":
            raise ValueError(f"the check does not know the operator {one['operator']}")
        if labels.get(one["key"]) not in one["values"]:
            return False
    return True


def config(objects: list[dict], prefix: str) -> dict:
    """The data of the one ConfigMap or Secret whose name is `prefix` and a hash of its content."""
    for one in of_kind(objects, "ConfigMap", "Secret"):
        if one["metadata"]["name"] == prefix:
            return one.get("data", {})
    return {}
