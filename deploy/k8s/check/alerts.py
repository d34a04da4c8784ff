"""Whether every alert says what to do. Whether its metrics exist, a scenario asks the services."""

import re
from pathlib import Path

import objects as look

RUNBOOK = Path(__file__).parents[3] / "docs" / "runbook.md"


def problems(_, objects, __):
    headings = set()
    if RUNBOOK.exists():
        headings = {one.strip().lower() for one in re.findall(r"^#+ (.*)$", RUNBOOK.read_text(), re.M)}
    for rules in look.of_kind(objects, "PrometheusRule"):
        for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
            alert = rule.get("alert", "")
            if not re.fullmatch("Windlass[A-Za-z]+", alert):
                yield f"{look.name(rules)}: an alert without a name of ours: {alert}"
            if rule.get("labels", {}).get("severity") not in ["warning", "critical"]:
                yield f"{alert}: has no severity"
            if not rule.get("expr") or not rule.get("for"):
                yield f"{alert}: has no expr or no for"
            annotations = rule.get("annotations", {})
            if not annotations.get("summary"):
                yield f"{alert}: has no summary"
            if annotations.get("runbook") != f"docs/runbook.md#{alert.lower()}":
                yield f"{alert}: its runbook has to be docs/runbook.md#{alert.lower()}"
            if headings and alert.lower() not in headings:
                yield f"{alert}: docs/runbook.md has no heading with this name"
