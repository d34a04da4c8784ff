"""Whether every alert says what to do, and whether every section about what to do has an alert.
Whether the metrics exist, a scenario asks the services."""

import re
from pathlib import Path

import objects as look

ROOT = Path(__file__).parents[3]
RUNBOOK = "docs/runbook.md"

# What adds up, or picks, and does not say for which namespace.
MIXED = re.compile(r"\b(?:sum|min|max|avg|count)\b(?! by \([^)]*\bnamespace\b)")


def problems(_, objects, __, root=ROOT):
    all_rules = look.of_kind(objects, "PrometheusRule")
    if not all_rules:
        return
    runbook = root / RUNBOOK
    if not runbook.exists():
        yield f"{RUNBOOK} is not there"
        return
    sections = set(re.findall(r"^## (Windlass[A-Za-z]+)$", runbook.read_text(), re.M))
    alerts = set()
    for rules in all_rules:
        for rule in (rule for group in rules["spec"]["groups"] for rule in group["rules"]):
            alerts.add(rule.get("alert", ""))
            yield from of_rule(rules, rule, sections)
    for one in sorted(sections - alerts):
        yield f"{RUNBOOK} has a section {one}, and there is no such alert"


def of_rule(rules, rule, sections):
    alert, expression = rule.get("alert", ""), rule.get("expr", "")
    if not re.fullmatch("Windlass[A-Za-z]+", alert):
        yield f"{look.name(rules)}: an alert without a name of ours: {alert}"
    if rule.get("labels", {}).get("severity") not in ["warning", "critical"]:
        yield f"{alert}: has no severity"
    if not expression or not rule.get("for"):
        yield f"{alert}: has no expr or no for"
    annotations = rule.get("annotations", {})
    if not annotations.get("summary"):
        yield f"{alert}: has no summary"
    if annotations.get("runbook") != f"{RUNBOOK}#{alert.lower()}":
        yield f"{alert}: its runbook has to be {RUNBOOK}#{alert.lower()}"
    if alert not in sections:
        yield f"{alert}: {RUNBOOK} has no section with this name"
    if MIXED.search(expression):
        yield f"{alert}: mixes the namespaces that one Prometheus watches"
    # The namespace of an overlay is put into everything but text.
    here = rules["metadata"].get("namespace")
    named = set(re.findall(r'\bnamespace="([^"]*)"', expression))
    if here and named - {here}:
        yield f"{alert}: is about {', '.join(sorted(named))}, and we are in {here}"
