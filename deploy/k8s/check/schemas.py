"""Whether Kubernetes understands the objects, and the operators theirs."""

import kubernetes_validate

import objects as look

# The oldest version that can run the sandbox, and the newest there are schemas for.
VERSIONS = ["1.33", "1.37"]

# Kinds of operators, for which there are no schemas: what has to be there, by path.
CUSTOM = {
    "ServiceMonitor": ("monitoring.coreos.com/v1", {"selector": dict, "endpoints": list}),
    "PrometheusRule": ("monitoring.coreos.com/v1", {"groups": list}),
    "Certificate": ("cert-manager.io/v1", {"secretName": str, "issuerRef": dict, "dnsNames": list}),
}


def problems(_, objects, __):
    seen = set()
    for one in objects:
        key = (one["apiVersion"], look.name(one), one["metadata"].get("namespace"))
        if key in seen:
            yield f"{look.name(one)} is there twice"
        seen.add(key)
        if one["kind"] in CUSTOM:
            yield from shape(one)
        else:
            yield from schema(one)


def schema(one):
    for version in VERSIONS:
        try:
            kubernetes_validate.validate(one, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            path = ".".join(map(str, error.path))
            yield f"{look.name(one)}: not valid in Kubernetes {version}: {path}: {error.message}"


def shape(one):
    version, fields = CUSTOM[one["kind"]]
    if one["apiVersion"] != version:
        yield f"{look.name(one)}: expected apiVersion {version}"
    for field, kind in fields.items():
        if not isinstance(one["spec"].get(field), kind) or not one["spec"][field]:
            yield f"{look.name(one)}: spec.{field} has to be a {kind.__name__} that is not empty"
    if one["kind"] == "ServiceMonitor":
        for endpoint in one["spec"]["endpoints"]:
            if not {"port", "path"} <= endpoint.keys():
                yield f"{look.name(one)}: an endpoint without port or path"
